/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The window number. Records of an earlier window, before a pause, are invalid. */
#pragma once
#include "kernel.h"

/* One entry: the number of attachments so far. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, u64);
} window SEC(".maps");

static __always_inline u32 window_now(void)
{
	u32 zero = 0;
	u64 *now = bpf_map_lookup_elem(&window, &zero);

	return now ? *now : 0;
}
