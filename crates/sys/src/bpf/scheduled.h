/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which interrupt schedules which NAPI instance? Rows of the table of polls with an interrupt in
 * their key; they hold no polls.
 */
#pragma once
#include "count.h"
#include "napi.h"
#include "time.h"

TABLE(polls, 1)

/* How it is known. */
enum scheduled_by {
	BY_HANDLER = LAYOUT_BY_HANDLER, /* The handler put the NAPI on the CPU's list. */
	BY_THREAD = LAYOUT_BY_THREAD,   /* The thread of the interrupt polled it. */
	BY_SOFTIRQ = LAYOUT_BY_SOFTIRQ, /* It was polled first after the handler raised NET_RX. */
};

/* The row's key, but for its netns: which NAPI of which device, and by which interrupt. */
static __always_inline void count_scheduled(const struct napi_struct *napi, u64 irq, enum scheduled_by by, u64 weight)
{
	const struct net_device *dev = BPF_CORE_READ(napi, dev);
	u32 id = BPF_CORE_READ(napi, napi_id);
	struct key key = {};
	struct slot *slot;
	bool fresh;

	if (!dev)
		return;
	key.word[LAYOUT_POLL_NAPI_IFINDEX] = (u64)id << 32 | (u32)BPF_CORE_READ(dev, ifindex);
	key.word[LAYOUT_POLL_NETNS] = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	key.word[LAYOUT_POLL_IRQ] = (u64)by << LAYOUT_IRQ_BY_BIT | (irq + 1);
	slot = slot_of(polls_table(), &key, &fresh);
	if (!slot)
		return;
	if (fresh)
		bpf_probe_read_kernel(slot->label, sizeof(slot->label), &dev->name);
	add(slot, weight, 0);
}
