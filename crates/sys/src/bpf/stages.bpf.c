// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where does receive work spend its time?
 *
 * A timer fires on each CPU (perf's cpu-clock, an hrtimer). If it interrupts NET_RX, NET_TX or a
 * NAPI kthread, the program records the kernel stack. Equal stacks of a CPU are counted together;
 * user space classifies them by their functions. The timer cannot fire while interrupts are off:
 * that time is attributed to the code that enables them again.
 *
 * Decoded in stages.rs; its row is in docs/kernel.md.
 */
#include "time.h"

enum { STACK_FRAMES = 64, STACKS = 16384 };

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, STACKS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, STACK_FRAMES * sizeof(u64));
} stacks SEC(".maps");

struct where {
	u32 cpu;
	u32 stack;
};
AT_BYTE(struct where, cpu, LAYOUT_WHERE_CPU);
AT_BYTE(struct where, stack, LAYOUT_WHERE_STACK);
SIZE_OF(struct where, LAYOUT_SIZEOF_WHERE);

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STACKS);
	__type(key, struct where);
	__type(value, u64);
} samples SEC(".maps");

/* One entry: samples whose stack did not fit into the table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} samples_lost SEC(".maps");

static __always_inline void count_lost_sample(void)
{
	u32 zero = 0;
	u64 *lost = bpf_map_lookup_elem(&samples_lost, &zero);

	if (lost)
		__sync_fetch_and_add(lost, 1);
}

SEC("perf_event")
int tick(void *ctx)
{
	struct cpu_time *time = this_cpu();
	struct where where = {};
	u64 one = 1, *count;
	long stack;

	if (!time)
		return 0;
	if (!in_softirq(time, NET_RX_SOFTIRQ) && !in_softirq(time, NET_TX_SOFTIRQ) &&
	    !is_napi_thread(bpf_get_current_task_btf()))
		return 0;
	stack = bpf_get_stackid(ctx, &stacks, 0);
	if (stack < 0) {
		count_lost_sample();
		return 0;
	}
	where.cpu = bpf_get_smp_processor_id();
	where.stack = stack;
	count = bpf_map_lookup_elem(&samples, &where);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&samples, &where, &one, BPF_ANY))
		count_lost_sample();
	return 0;
}
