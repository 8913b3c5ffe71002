// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Which CPU polls which NAPI instance, and how many packets does each poll find? */
#define TABLE polls
#include "count.h"
#include "napi.h"
#include <bpf/bpf_tracing.h>

/*
 * `work` is the return value of the driver's poll function: packets; an LRO aggregate counts as
 * one.
 */
SEC("tp_btf/napi_poll")
int BPF_PROG(napi_poll, struct napi_struct *napi, int work, int budget)
{
	struct net_device *dev = napi->dev; /* None: the backlog of RPS, veth and loopback. */
	u32 id = napi->napi_id, ifindex = 0, netns = 0;
	struct key key = {};
	struct slot *slot;
	bool fresh;

	if (dev) {
		ifindex = dev->ifindex;
		netns = dev->nd_net.net->ns.inum;
	}
	key.word[0] = (u64)id << 32 | ifindex;
	key.word[1] = netns;
	slot = slot_of(&key, &fresh);
	if (!slot)
		return 0;
	if (fresh && dev) {
		bpf_probe_read_kernel(slot->label, sizeof(slot->label), &dev->name);
		note_device(id, dev);
	}
	add(slot, 1, work > 0 ? work : 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
