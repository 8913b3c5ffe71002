// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which CPU polls which NAPI instance, and how many packets does each poll find?
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "scheduled.h"
#include <bpf/bpf_tracing.h>

/* Time of the poll that ends now: since the softirq began, or since its previous poll ended. */
static __always_inline u64 poll_ns(struct cpu_time *time)
{
	u64 now, irqs, spent;

	now = now_and_irqs(time, &irqs);
	spent = now - time->poll_since - (irqs - time->poll_irqs_ns);
	time->poll_since = now;
	time->poll_irqs_ns = irqs;
	return spent;
}

/* Counts by which interrupt a NAPI was scheduled, where its handler does not tell. */
static __always_inline void count_origin(struct cpu_time *time, const struct napi_struct *napi, u64 weight)
{
	s32 irq = irq_of_thread(bpf_get_current_task_btf());

	if (irq >= 0) {
		count_scheduled(napi, irq, BY_THREAD, weight);
	} else if (time->raised_by) {
		if (time->raised_by != SEVERAL)
			count_scheduled(napi, time->raised_by - 1, BY_SOFTIRQ, weight);
		time->raised_by = 0;
	}
}

/*
 * `work` is the return value of the driver's poll function: packets; an LRO aggregate counts as
 * one.
 */
SEC("tp_btf/napi_poll")
int BPF_PROG(napi_poll, struct napi_struct *napi, int work, int budget)
{
	const struct net_device *dev;
	u32 id, ifindex = 0, netns = 0;
	struct cpu_time *time = this_cpu();
	struct key key = {};
	struct slot *slot;
	bool in_net_rx, fresh;
	u64 weight;

	if (!time)
		return 0;
	napi = FOR_LOADS(struct napi_struct, napi);
	dev = napi->dev; /* None: the backlog of RPS, veth and loopback. */
	id = napi->napi_id;
	in_net_rx = in_softirq(time, NET_RX_SOFTIRQ);
	weight = in_net_rx ? time->weight : weight_of(&time->other_polls);
	if (!weight)
		return 0;
	if (dev) {
		ifindex = dev->ifindex;
		netns = dev->nd_net.net->ns.inum;
	}
	key.word[LAYOUT_POLL_NAPI_IFINDEX] = (u64)id << 32 | ifindex;
	key.word[LAYOUT_POLL_NETNS] = netns;
	slot = slot_of(polls_table(), &key, &fresh);
	if (!slot)
		return 0;
	if (fresh && dev) {
		bpf_probe_read_kernel(slot->label, sizeof(slot->label), &dev->name);
		note_device(id, dev);
	}
	add(slot, weight, work > 0 ? work * weight : 0);
	if (!in_net_rx) /* Their time is not known: kthreads and busy polling. */
		return 0;
	__sync_fetch_and_add(&slot->sum[2], poll_ns(time) * weight);
	count_origin(time, napi, weight);
	return 0;
}
