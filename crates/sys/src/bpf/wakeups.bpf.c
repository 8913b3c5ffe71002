// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How often does receive work on one CPU wake a thread that sleeps on another?
 *
 * sched_waking runs on the waking CPU, before the thread gets a CPU: thread_info.cpu is still the
 * CPU where it slept. Most wakeups are unrelated to receive work and exit at the first test, on the
 * state that `time.bpf.c` keeps. A timer interrupt that wakes a thread during NET_RX counts too.
 */
#define TABLE wakeups
#include "count.h"
#include "time.h"
#include <bpf/bpf_tracing.h>

SEC("tp_btf/sched_waking")
int BPF_PROG(waking, struct task_struct *sleeper)
{
	struct cpu_time *time = this_cpu();
	struct key key = {};
	struct slot *slot;
	bool fresh;
	u64 weight;

	if (!time)
		return 0;
	time->wakeups++;
	if (in_softirq(time, NET_RX_SOFTIRQ))
		weight = time->weight;
	else if (is_napi_thread(bpf_get_current_task_btf()))
		weight = weight_of(&time->other_polls);
	else
		return 0;
	if (!weight || sleeper->flags & PF_KTHREAD)
		return 0;
	key.word[0] = (u64)sleeper->tgid << 32 | sleeper->thread_info.cpu;
	slot = slot_of(&key, &fresh);
	if (slot)
		add(slot, weight, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
