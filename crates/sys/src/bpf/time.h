/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Interrupt time and current state of each CPU: written by `time.bpf.c`, read by other programs. */
#pragma once
#include "sample.h"

/* cpu_time.raised_by: more than one handler, or other code, raised NET_RX. */
#define SEVERAL (~0ull)

struct cpu_time {
	u64 net_rx_ns, net_tx_ns, other_softirq_ns, hardirq_ns, ipi_ns, reschedule_ns;
	u64 net_rx_runs, hardirqs, ipis, reschedules;
	u64 wakeups;  /* Of any thread, by anything. */
	u64 irq_since; /* When the interrupt that runs now began; 0 when none does. */
	u32 softirq;   /* The softirq that runs now + 1; 0 when none does. */
	u32 weight;    /* How many softirqs it stands for. 0: it is not examined. */
	/* For an examined softirq: when it began, and what irqs_ns() returned then. */
	u64 softirq_since;
	u64 softirq_irqs_ns;
	u64 poll_since; /* When the poll that runs in it began, and what irqs_ns() returned then. */
	u64 poll_irqs_ns;
	u64 irq;       /* The device interrupt whose handler runs now + 1; 0 when none does. */
	u64 poll_tail; /* The end of the CPU's list of NAPIs to poll, when that handler began. */
	u64 raised_by; /* The interrupt whose handler raised NET_RX, not polled since, + 1; 0: none. */
	struct sample reads;
	struct sample softirqs;
	struct sample other_polls; /* Polls outside of softirqs, wakeups by and of their kthreads. */
	struct sample drops;       /* Dropped packets. */
	struct sample scheduled;   /* Handlers of interrupts that scheduled a NAPI. */
	u64 unused[3];
}; /* Six cache lines, so that no two CPUs share one. */
AT_WORD(struct cpu_time, net_rx_ns, LAYOUT_TIME_NET_RX_NS);
AT_WORD(struct cpu_time, net_tx_ns, LAYOUT_TIME_NET_TX_NS);
AT_WORD(struct cpu_time, other_softirq_ns, LAYOUT_TIME_OTHER_SOFTIRQ_NS);
AT_WORD(struct cpu_time, hardirq_ns, LAYOUT_TIME_HARDIRQ_NS);
AT_WORD(struct cpu_time, ipi_ns, LAYOUT_TIME_IPI_NS);
AT_WORD(struct cpu_time, reschedule_ns, LAYOUT_TIME_RESCHEDULE_NS);
AT_WORD(struct cpu_time, net_rx_runs, LAYOUT_TIME_NET_RX_RUNS);
AT_WORD(struct cpu_time, hardirqs, LAYOUT_TIME_HARDIRQS);
AT_WORD(struct cpu_time, ipis, LAYOUT_TIME_IPIS);
AT_WORD(struct cpu_time, reschedules, LAYOUT_TIME_RESCHEDULES);
AT_WORD(struct cpu_time, wakeups, LAYOUT_TIME_WAKEUPS);
AT_WORD(struct cpu_time, irq_since, LAYOUT_TIME_IRQ_SINCE);
AT_WORD(struct cpu_time, reads, LAYOUT_TIME_READS);
AT_WORD(struct cpu_time, softirqs, LAYOUT_TIME_SOFTIRQS);
AT_WORD(struct cpu_time, other_polls, LAYOUT_TIME_OTHER_POLLS);
AT_WORD(struct cpu_time, drops, LAYOUT_TIME_DROPS);
AT_WORD(struct cpu_time, scheduled, LAYOUT_TIME_SCHEDULED);
SIZE_OF(struct cpu_time, 8 * LAYOUT_TIME_WORDS);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* One for each CPU: set before loading. */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct cpu_time);
} cpu_times SEC(".maps");

static __always_inline struct cpu_time *this_cpu(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpu_times, &cpu);
}

static __always_inline u64 irqs_ns(const volatile struct cpu_time *time)
{
	return time->hardirq_ns + time->ipi_ns + time->reschedule_ns;
}

/*
 * The current time, and the interrupt time at the same moment. Reads again if an interrupt comes
 * between the two.
 */
static __always_inline u64 now_and_irqs(const volatile struct cpu_time *time, u64 *irqs)
{
	u64 now;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		*irqs = irqs_ns(time);
		now = bpf_ktime_get_ns();
		if (irqs_ns(time) == *irqs)
			break;
	}
	return now;
}

/*
 * Whether this CPU runs that softirq now, without a nested device interrupt or IPI. Timer
 * interrupts are not hooked.
 */
static __always_inline bool in_softirq(const struct cpu_time *time, u32 vector)
{
	return time->softirq == vector + 1 && !time->irq_since;
}

/* The number in the name of an interrupt's thread, `irq/<number>-<name>`; -1 for other tasks. */
static __always_inline s32 irq_of_thread(const struct task_struct *task)
{
	s32 irq = 0;

	if (!(task->flags & PF_KTHREAD) || task->comm[0] != 'i' || task->comm[1] != 'r' || task->comm[2] != 'q' ||
	    task->comm[3] != '/')
		return -1;
#pragma unroll
	for (int i = 4; i < 12; i++) {
		char digit = task->comm[i];

		if (digit < '0' || digit > '9')
			return digit == '-' && i > 4 ? irq : -1;
		irq = 10 * irq + digit - '0';
	}
	return -1;
}

/* Whether the task is a kthread that polls a NAPI, `napi/<dev>-<id>`. */
static __always_inline bool is_napi_thread(const struct task_struct *task)
{
	return task->flags & PF_KTHREAD && task->comm[0] == 'n' && task->comm[1] == 'a' && task->comm[2] == 'p' &&
	       task->comm[3] == 'i' && task->comm[4] == '/';
}
