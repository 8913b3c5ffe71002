/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The threads that read sockets. The programs that count reads mark them; those of
 * `runqueue.bpf.c` look them up. Unless these are loaded, the map is not created.
 */
#pragma once
#include "kernel.h"

struct waiting {
	u64 since; /* When it was made runnable; 0 while it runs or sleeps. */
	u64 window; /* The window in which this was recorded. */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct waiting);
} readers SEC(".maps");
