/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What user space sets before loading: the only constants of an object. */
#pragma once
#include "kernel.h"

const volatile struct {
	u32 cpus;  /* CPUs that can exist: the highest number + 1. */
	u32 slots; /* Slots for each CPU, a power of two. */
	u32 marks; /* Whether threads that read are to be marked. */
	u32 quota; /* Events of each kind that a CPU examines in a tick, before it samples (sample.h). */
} machine;
