/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The number of packets on the wire that GRO or GSO joined into this one. */
#pragma once
#include "kernel.h"

static __always_inline u32 pieces_of(const struct sk_buff *skb)
{
	struct skb_shared_info *shared;
	u32 pieces;

	if (!BPF_CORE_READ(skb, data_len))
		return 1;
	shared = (void *)(BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));
	pieces = BPF_CORE_READ(shared, gso_segs);
	return pieces ? pieces : 1;
}
