/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What user space sets before loading: the only constants of the programs. */
#pragma once
#include "kernel.h"

const volatile struct machine {
	u32 cpus;  /* CPUs that can exist: the highest number + 1. */
	u32 slots; /* Slots for each CPU, a power of two. */
	u32 marks; /* Whether threads that read are to be marked. */
	u32 quota; /* Events of each kind that a CPU examines in a tick, before it samples (sample.h). */
	u32 drops; /* The same for dropped packets, in their longer tick. */
} machine;
AT_BYTE(struct machine, cpus, 4 * LAYOUT_MACHINE_CPUS);
AT_BYTE(struct machine, slots, 4 * LAYOUT_MACHINE_SLOTS);
AT_BYTE(struct machine, marks, 4 * LAYOUT_MACHINE_MARKS);
AT_BYTE(struct machine, quota, 4 * LAYOUT_MACHINE_QUOTA);
AT_BYTE(struct machine, drops, 4 * LAYOUT_MACHINE_DROPS);
SIZE_OF(struct machine, 4 * LAYOUT_MACHINE_WORDS);
