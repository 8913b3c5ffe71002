/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Hash tables of counters for the programs.
 *
 * A table is an array of slots with two halves of `cpus * slots` each, one range of slots per CPU,
 * mapped by user space. A program hashes its key into its CPU's range and examines PROBES slots. It
 * adds to the slot with its key, or takes the first free one. If there is neither, it counts the
 * event as lost. Slots are never freed. Instead user space switches all tables to their other half
 * at once (`turn` below), waits until no program uses the full halves, then reads and clears them.
 *
 * A slot has a tag (0: free), key, label and sums. Only one CPU writes it, but another program may
 * interrupt the writer (fentry can be preempted, TCP and UDP share a table), hence the atomic claim
 * and sums.
 */
#pragma once
#include "machine.h"

enum { PROBES = 4 };

struct key {
	u64 word[LAYOUT_KEY_WORDS];
};

struct slot {
	u64 tag;
	struct key key;
	u64 label[LAYOUT_LABEL_WORDS];
	u64 sum[LAYOUT_SUMS];
};
AT_WORD(struct slot, tag, LAYOUT_SLOT_TAG);
AT_WORD(struct slot, key, LAYOUT_SLOT_KEY);
AT_WORD(struct slot, label, LAYOUT_SLOT_LABEL);
AT_WORD(struct slot, sum, LAYOUT_SLOT_SUM);
SIZE_OF(struct slot, 8 * LAYOUT_SLOT_WORDS);

/* A table, and how many slots each CPU has in each of its halves. */
struct table {
	void *map;
	u32 slots;
};

/*
 * Defines a table and NAME_table(). Each CPU has one in `share` of the usual slots (tables.rs).
 * User space creates the table, with its real size.
 */
#define TABLE(name, share) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, 1); \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__type(key, u32); \
		__type(value, struct slot); \
	} name SEC(".maps"); \
	static __always_inline struct table name##_table(void) \
	{ \
		return (struct table){ &name, machine.slots / (share) }; \
	}

/* One entry: which half of each table is in use, 0 or 1. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, u64);
} turn SEC(".maps");

/* One entry: events without a slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

static __always_inline void count_lost(void)
{
	u32 zero = 0;
	u64 *events = bpf_map_lookup_elem(&lost, &zero);

	if (events)
		__sync_fetch_and_add(events, 1);
}

static __always_inline u64 tag_of(const struct key *key)
{
	u64 tag = 0;

#pragma unroll
	for (int i = 0; i < LAYOUT_KEY_WORDS; i++) {
		tag = (tag ^ key->word[i]) * 0x9e3779b97f4a7c15ull;
		tag ^= tag >> 32;
	}
	return tag ? tag : 1;
}

static __always_inline bool same_key(const struct key *a, const struct key *b)
{
	u64 differ = 0;

#pragma unroll
	for (int i = 0; i < LAYOUT_KEY_WORDS; i++)
		differ |= a->word[i] ^ b->word[i];
	return !differ;
}

/*
 * The key's slot in a table among `slots` of this CPU's, from `first` on; `slots` is a power of
 * two. `*fresh` is set if the slot is new and needs its label. NULL if there is no room.
 */
static __always_inline struct slot *slot_among(struct table table, const struct key *key, u32 first, u32 slots,
					       bool *fresh)
{
	u32 zero = 0, half = 0, cpu = bpf_get_smp_processor_id();
	u64 *now = bpf_map_lookup_elem(&turn, &zero);
	u64 tag = tag_of(key);

	*fresh = false;
	if (now)
		half = *(volatile u64 *)now & 1;
	if (cpu >= machine.cpus)
		return NULL;
#pragma unroll
	for (u32 i = 0; i < PROBES; i++) {
		u32 own = (half * machine.cpus + cpu) * table.slots;
		u32 index = own + first + ((tag + i) & (slots - 1));
		struct slot *slot = bpf_map_lookup_elem(table.map, &index);

		if (!slot)
			return NULL;
		if (slot->tag == 0 && __sync_val_compare_and_swap(&slot->tag, 0, tag) == 0) {
			slot->key = *key;
			*fresh = true;
			return slot;
		}
		if (slot->tag == tag && same_key(&slot->key, key))
			return slot;
	}
	return NULL;
}

/* The same among all of this CPU's slots. Without room the event is counted as lost. */
static __always_inline struct slot *slot_of(struct table table, const struct key *key, bool *fresh)
{
	struct slot *slot = slot_among(table, key, 0, table.slots, fresh);

	if (!slot)
		count_lost();
	return slot;
}

static __always_inline void add(struct slot *slot, u64 first, u64 second)
{
	__sync_fetch_and_add(&slot->sum[0], first);
	__sync_fetch_and_add(&slot->sum[1], second);
}
