// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How long do threads that read sockets wait, runnable, for a CPU?
 *
 * From sched_wakeup (the thread is on a run queue now), or from the switch away from a thread that was preempted, to the switch to
 * it. Both hooks run under the lock of the run queue that the thread is on, so none of this is seen out of order. sched_waking comes
 * earlier, but may come before the switch away from the very sleep that it ends. What the wakeup's IPI and the way out of idle
 * take lies before it, and is not in here. Threads that have read nothing yet have no storage, and leave at the first test.
 */
#include "readers.h"
#include "window.h"
#include <bpf/bpf_tracing.h>

/* As in core/src/runqueue.rs: nanoseconds up to STEPS, then STEPS buckets in each octave. */
enum { STEPS_BITS = 5, BUCKETS = 1024 };

/* BUCKETS entries for each CPU: set before loading. */
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

/* Only this CPU writes its run of counts, with interrupts off. */
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

/* `state` is that of `prev`, 0 if it would run on; whoever is preempted stays runnable whatever its state is to be. */
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

char LICENSE[] SEC("license") = "Dual BSD/GPL";
