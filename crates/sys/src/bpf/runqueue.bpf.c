// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How long do runnable threads that read sockets wait for a CPU?
 *
 * A wait starts at sched_wakeup (the thread is now on a run queue) or when a running thread is
 * preempted. It ends with the switch to the thread. Both hooks run under the lock of that run
 * queue, so their order is exact. sched_waking comes earlier, but may come before the switch that
 * starts the very sleep it ends. The wakeup's IPI and the exit from idle come before sched_wakeup
 * and are not included. Threads that have not read yet have no storage and exit at the first test.
 *
 * Decoded in runqueue.rs; its row is in docs/kernel.md.
 */
#include "readers.h"
#include "window.h"
#include <bpf/bpf_tracing.h>

/* One bucket per nanosecond up to STEPS, then STEPS buckets per octave. */
enum { STEPS_BITS = LAYOUT_WAIT_STEPS_BITS, BUCKETS = LAYOUT_WAIT_BUCKETS };

/* BUCKETS entries per CPU: set before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BUCKETS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, u64);
} waits SEC(".maps");

static __always_inline u32 bucket_of(u64 ns)
{
	u64 rest = ns >> STEPS_BITS;
	u32 octave = 0;

#pragma unroll
	for (u32 bits = 32; bits; bits /= 2)
		if (rest >> bits) {
			rest >>= bits;
			octave += bits;
		}
	ns = ((u64)octave << STEPS_BITS) + (ns >> octave);
	return ns < BUCKETS ? ns : BUCKETS - 1;
}

static __always_inline void begins_to_wait(struct waiting *waiting)
{
	waiting->since = bpf_ktime_get_ns();
	waiting->window = window_now();
}

/* Only this CPU writes its counts, with interrupts off. */
static __always_inline void has_waited(struct waiting *waiting)
{
	u64 now = bpf_ktime_get_ns(), since = waiting->since, *count;
	u32 index;

	waiting->since = 0;
	if (!since || now < since || waiting->window != window_now())
		return;
	index = bpf_get_smp_processor_id() * BUCKETS + bucket_of(now - since);
	count = bpf_map_lookup_elem(&waits, &index);
	if (count)
		++*count;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(reader_wakes, struct task_struct *task)
{
	struct waiting *waiting = bpf_task_storage_get(&readers, task, NULL, 0);

	if (waiting)
		begins_to_wait(waiting);
	return 0;
}

/*
 * `state` is the state of `prev`, 0 if it stays runnable. A preempted thread stays runnable in any
 * state.
 */
SEC("tp_btf/sched_switch")
int BPF_PROG(reader_runs, bool preempt, struct task_struct *prev, struct task_struct *next, u32 state)
{
	struct waiting *waiting = bpf_task_storage_get(&readers, prev, NULL, 0);

	if (waiting) {
		waiting->since = 0;
		if (preempt || !state)
			begins_to_wait(waiting);
	}
	waiting = bpf_task_storage_get(&readers, next, NULL, 0);
	if (waiting)
		has_waited(waiting);
	return 0;
}
