/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which events are examined?
 *
 * On each CPU, every one of the first `machine.quota` events of a tick is examined (a jiffy; of
 * dropped packets, 256 jiffies). After those, one of the next 64 is examined, chosen at random. An
 * examined event stands for all events since the previous examined one, so sums remain unbiased.
 * With little load nothing is left out.
 */
#pragma once
#include "machine.h"

enum { SKIP_MOST = 63 };

/* One kind of event on one CPU. A writer that interrupts another at most loses an update. */
struct sample {
	u64 events;   /* Events that the examined ones stand for. */
	u64 examined;
	u64 tick;     /* The tick that `taken` belongs to. */
	u32 taken;    /* Events examined in it. */
	u32 drawn;    /* Events to skip after the last examined one, */
	u32 left;     /* and those of them to come. */
	u32 unused;
};
AT_WORD(struct sample, events, LAYOUT_SAMPLE_EVENTS);
AT_WORD(struct sample, examined, LAYOUT_SAMPLE_EXAMINED);
SIZE_OF(struct sample, 8 * LAYOUT_SAMPLE_WORDS);

/* How many events this one stands for; 0: do not examine it. */
static __always_inline u32 weight_within(struct sample *sample, u64 now, u32 quota)
{
	u32 weight;

	/* Fewer events than skips in a whole tick: the load has ended. */
	if (sample->left && now - sample->tick < 2) {
		sample->left--;
		return 0;
	}
	weight = sample->drawn - sample->left + 1;
	if (sample->tick != now) {
		sample->tick = now;
		sample->taken = 0;
	}
	sample->drawn = sample->taken++ < quota ? 0 : bpf_get_prandom_u32() & SKIP_MOST;
	sample->left = sample->drawn;
	sample->events += weight;
	sample->examined++;
	return weight;
}

static __always_inline u32 weight_of(struct sample *sample)
{
	return weight_within(sample, bpf_jiffies64(), machine.quota);
}
