// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How often does receive work on one CPU wake a thread that sleeps on another? And how often does
 * anything wake a kthread that polls a NAPI?
 *
 * sched_waking runs on the waking CPU, before the thread gets a CPU: thread_info.cpu is still the
 * CPU where it slept. Most wakeups are unrelated to receive work and exit at the first tests, on
 * the sleeper's flags and the state that `time.bpf.c` keeps. A timer interrupt that wakes a thread
 * during NET_RX counts too. An ifb delivers packets in a tasklet.
 *
 * Also counts how often that CPU runs its idle task, as the scheduler sees it (idle_cpu()). Then
 * the woken thread does not have to preempt another task. A softirq that interrupts the idle task
 * counts as idle.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "count.h"
#include "time.h"
#include <bpf/bpf_tracing.h>

TABLE(wakeups, LAYOUT_FEWER_SLOTS)

/*
 * Absent if the kernel's BTF has no per-CPU variables (pahole before 1.18). If the BTF has it but
 * kallsyms does not (no CONFIG_KALLSYMS_ALL), the kernel refuses the program.
 */
extern const struct rq runqueues __ksym __weak;

enum { BUSY, IDLE, UNKNOWN };

static __always_inline u32 state_of(u32 cpu)
{
	const struct rq *rq;

	if (!&runqueues)
		return UNKNOWN;
	rq = bpf_per_cpu_ptr(&runqueues, cpu);
	if (!rq)
		return UNKNOWN;
	return rq->curr == rq->idle ? IDLE : BUSY;
}

/* The NAPI that a kthread polls (napi_kthread_create()), and its device; 0: not known. */
static __always_inline u64 napi_of_thread(const struct task_struct *task)
{
	const struct napi_struct *napi;

	if (!bpf_core_field_exists(struct kthread, data))
		return 0;
	napi = data_of_kthread(task);
	return (u64)BPF_CORE_READ(napi, napi_id) << 32 | (u32)BPF_CORE_READ(napi, dev, ifindex);
}

static __always_inline int count_waking(struct task_struct *sleeper, bool knows_idle)
{
	struct cpu_time *time = this_cpu();
	struct key key = {};
	struct slot *slot;
	u32 cpu, state;
	bool polls, fresh;
	u64 weight;

	if (!time)
		return 0;
	time->wakeups++;
	polls = is_napi_thread(sleeper);
	if (polls)
		weight = weight_of(&time->other_polls);
	else if (in_softirq(time, NET_RX_SOFTIRQ) || in_softirq(time, TASKLET_SOFTIRQ))
		weight = time->weight;
	else if (is_napi_thread(bpf_get_current_task_btf()))
		weight = weight_of(&time->other_polls);
	else
		return 0;
	if (!weight || (sleeper->flags & PF_KTHREAD && !polls))
		return 0;
	cpu = sleeper->thread_info.cpu;
	state = knows_idle ? state_of(cpu) : UNKNOWN;
	key.word[LAYOUT_WAKEUP_TGID_CPU] = (u64)sleeper->tgid << 32 | cpu;
	if (polls && time->irq) {
		key.word[LAYOUT_WAKEUP_IRQ] = time->irq;
		key.word[LAYOUT_WAKEUP_NAPI_IFINDEX] = napi_of_thread(sleeper);
	}
	slot = slot_of(wakeups_table(), &key, &fresh);
	if (!slot)
		return 0;
	add(slot, weight, state == IDLE ? weight : 0);
	if (state == UNKNOWN)
		__sync_fetch_and_add(&slot->sum[2], weight);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(waking, struct task_struct *sleeper)
{
	return count_waking(sleeper, true);
}

SEC("tp_btf/sched_waking")
int BPF_PROG(waking_only, struct task_struct *sleeper)
{
	return count_waking(sleeper, false);
}
