// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How long is each CPU interrupted, and by what? Which interrupt schedules which NAPI instance?
 *
 * Two clock reads per interrupt and per examined softirq (sample.h). The time of a device interrupt
 * or IPI during a softirq is subtracted from the softirq's time. Timer interrupts are not hooked:
 * their few microseconds count for the interrupted code. On PREEMPT_RT a softirq can be preempted;
 * its time then includes the preempting task.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "scheduled.h"
#include <bpf/bpf_tracing.h>

/*
 * Absent if the kernel's BTF has no per-CPU variables (pahole before 1.18). If the BTF has it but
 * kallsyms does not (no CONFIG_KALLSYMS_ALL), the kernel refuses the programs that use it.
 */
extern const struct softnet_data softnet_data __ksym __weak;

/* The most NAPIs of one handler that are looked at. */
enum { MOST_SCHEDULED = 4 };

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, u32 vector)
{
	struct cpu_time *time = this_cpu();

	if (!time)
		return 0;
	time->softirq = vector + 1;
	time->weight = weight_of(&time->softirqs);
	if (time->weight) {
		time->softirq_since = now_and_irqs(time, &time->softirq_irqs_ns);
		time->poll_since = time->softirq_since;
		time->poll_irqs_ns = time->softirq_irqs_ns;
	}
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, u32 vector)
{
	struct cpu_time *time = this_cpu();
	u64 now, irqs, spent;

	if (!time || !time->softirq)
		return 0;
	time->softirq = 0;
	if (vector == NET_RX_SOFTIRQ) {
		time->net_rx_runs++;
		time->raised_by = 0;
	}
	if (!time->weight)
		return 0;
	now = now_and_irqs(time, &irqs);
	spent = (now - time->softirq_since - (irqs - time->softirq_irqs_ns)) * time->weight;
	if (vector == NET_RX_SOFTIRQ) {
		time->net_rx_ns += spent;
	} else if (vector == NET_TX_SOFTIRQ) {
		time->net_tx_ns += spent;
	} else {
		time->other_softirq_ns += spent;
	}
	return 0;
}

static __always_inline void irq_begins(void)
{
	struct cpu_time *time = this_cpu();

	if (time)
		time->irq_since = bpf_ktime_get_ns();
}

/* Nanoseconds since the interrupt began; 0 when it began before the program was attached. */
static __always_inline u64 irq_ends(struct cpu_time *time)
{
	u64 since = time->irq_since;

	time->irq_since = 0;
	return since ? bpf_ktime_get_ns() - since : 0;
}

/* The end of the list of NAPIs that this CPU has to poll; NULL: not known. */
static __always_inline const struct list_head *poll_list(const struct list_head **tail)
{
	const struct softnet_data *own;

	if (!&softnet_data)
		return NULL;
	own = bpf_this_cpu_ptr(&softnet_data);
	*tail = own->poll_list.prev;
	return &own->poll_list;
}

/*
 * Counts the NAPIs that a handler has added to the list. Nothing else changes it meanwhile:
 * interrupts are off, and only this CPU does.
 */
static __always_inline void count_added(struct cpu_time *time, u64 irq)
{
	u64 offset = bpf_core_field_offset(struct napi_struct, poll_list), weight;
	const struct list_head *tail, *list = poll_list(&tail);

	if (!list || (u64)tail == time->poll_tail || tail == list)
		return;
	weight = weight_of(&time->scheduled);
	if (!weight)
		return;
#pragma unroll
	for (int i = 0; i < MOST_SCHEDULED; i++) {
		count_scheduled((void *)tail - offset, irq, BY_HANDLER, weight);
		tail = BPF_CORE_READ(tail, prev);
		if (!tail || (u64)tail == time->poll_tail || tail == list)
			break;
	}
}

static __always_inline void handler_begins(int irq)
{
	struct cpu_time *time = this_cpu();

	if (time) {
		time->irq = (u64)irq + 1;
		time->irq_since = bpf_ktime_get_ns();
	}
}

static __always_inline void handler_ends(struct cpu_time *time)
{
	time->hardirq_ns += irq_ends(time);
	time->hardirqs++;
	time->irq = 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_handler_entry, int irq)
{
	struct cpu_time *time = this_cpu();
	const struct list_head *tail;

	if (time && poll_list(&tail))
		time->poll_tail = (u64)tail;
	handler_begins(irq);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_handler_exit, int irq)
{
	struct cpu_time *time = this_cpu();
	bool began;

	if (!time)
		return 0;
	began = time->irq == (u64)irq + 1;
	handler_ends(time);
	if (began)
		count_added(time, irq);
	return 0;
}

/* The same without that list. */
SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_entry_only, int irq)
{
	handler_begins(irq);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_exit_only)
{
	struct cpu_time *time = this_cpu();

	if (time)
		handler_ends(time);
	return 0;
}

/*
 * Then the first poll in the softirq that one handler has raised is of its NAPI, mostly. After a
 * second one it may be of either; and in the softirq other NAPIs are polled before.
 */
SEC("tp_btf/softirq_raise")
int BPF_PROG(net_rx_raised, u32 vector)
{
	struct cpu_time *time = this_cpu();

	if (time && vector == NET_RX_SOFTIRQ && time->softirq != NET_RX_SOFTIRQ + 1)
		time->raised_by = time->raised_by || !time->irq ? SEVERAL : time->irq;
	return 0;
}

static __always_inline void ipi_ends(void)
{
	struct cpu_time *time = this_cpu();

	if (time) {
		time->ipi_ns += irq_ends(time);
		time->ipis++;
	}
}

/*
 * x86: smp_call_function_many() and smp_call_function_single(). The latter is also sent for each
 * RPS wakeup.
 */
SEC("tp_btf/call_function_entry")
int BPF_PROG(call_function_entry)
{
	irq_begins();
	return 0;
}

SEC("tp_btf/call_function_exit")
int BPF_PROG(call_function_exit)
{
	ipi_ends();
	return 0;
}

SEC("tp_btf/call_function_single_entry")
int BPF_PROG(call_function_single_entry)
{
	irq_begins();
	return 0;
}

SEC("tp_btf/call_function_single_exit")
int BPF_PROG(call_function_single_exit)
{
	ipi_ends();
	return 0;
}

static __always_inline void reschedule_ends(void)
{
	struct cpu_time *time = this_cpu();

	if (time) {
		time->reschedule_ns += irq_ends(time);
		time->reschedules++;
	}
}

/*
 * x86: smp_send_reschedule(). It is sent for a wakeup that preempts the running task, and for a
 * wakeup on a CPU that idles without watching for work. The switch to the thread comes after the
 * exit.
 */
SEC("tp_btf/reschedule_entry")
int BPF_PROG(reschedule_entry)
{
	irq_begins();
	return 0;
}

SEC("tp_btf/reschedule_exit")
int BPF_PROG(reschedule_exit)
{
	reschedule_ends();
	return 0;
}

/* arm64 and others: one pair of hooks for all kinds of IPI, distinguished by a text. */
enum ipi_kind { OTHER_IPI, CALL_FUNCTION, RESCHEDULE };

static __always_inline enum ipi_kind kind_of_ipi(const char *reason)
{
	char text[16] = "";

	bpf_probe_read_kernel_str(text, sizeof(text), reason);
	if (text[0] == 'F' && text[1] == 'u' && text[2] == 'n')
		return CALL_FUNCTION; /* "Function call interrupts" */
	if (text[0] == 'R' && text[1] == 'e' && text[2] == 's')
		return RESCHEDULE; /* "Rescheduling interrupts" */
	return OTHER_IPI;
}

SEC("tp_btf/ipi_entry")
int BPF_PROG(ipi_entry, const char *reason)
{
	if (kind_of_ipi(reason) != OTHER_IPI)
		irq_begins();
	return 0;
}

SEC("tp_btf/ipi_exit")
int BPF_PROG(ipi_exit, const char *reason)
{
	enum ipi_kind kind = kind_of_ipi(reason);

	if (kind == CALL_FUNCTION)
		ipi_ends();
	else if (kind == RESCHEDULE)
		reschedule_ends();
	return 0;
}
