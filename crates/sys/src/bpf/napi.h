/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which NAPI ids belong to a NIC?
 *
 * `sk_buff.napi_id` shares its memory with `sender_cpu`: after a veth or loopback it holds a CPU
 * number + 1. Real ids are above NR_CPUS (MIN_NAPI_ID in include/net/busy_poll.h); 0 is a NAPI
 * without id. A veth with GRO or XDP, a tap and other virtual devices have NAPI instances without a
 * device behind them; `virtual_napis` records these when they poll.
 */
#pragma once
#include "kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LAYOUT_VIRTUAL_NAPIS);
	__type(key, u32);
	__type(value, u8);
} virtual_napis SEC(".maps");

static __always_inline bool is_physical(const struct net_device *dev)
{
	return dev->dev.parent;
}

static __always_inline void note_device(u32 napi_id, const struct net_device *dev)
{
	u8 yes = 1;

	if (napi_id && !is_physical(dev))
		bpf_map_update_elem(&virtual_napis, &napi_id, &yes, BPF_ANY);
}

static __always_inline bool is_virtual(u32 napi_id)
{
	return bpf_map_lookup_elem(&virtual_napis, &napi_id);
}
