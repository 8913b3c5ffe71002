// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where did a flow enter this machine when its consumer is behind a veth, bridge or tunnel?
 *
 * Runs once per packet that a device passes to the stack (after GRO, on the CPU that runs the
 * protocol). Packets of real devices give NAPI id and queue. Packets on virtual devices that still
 * belong to the sending socket never passed a NIC. Others that a virtual device's NAPI polled (a
 * veth with GRO, on its way to a router or bridge) give that NAPI, unless one of the two is known:
 * the last such NAPI is the nearest to the consumer. Records nothing while no consumer needs it.
 *
 * Attached in tracer.rs; its row is in docs/kernel.md.
 */
#include "flow.h"
#include "machine.h"
#include "napi.h"
#include <bpf/bpf_tracing.h>

static __always_inline void note(void *flows, const void *flow, const struct origin *origin)
{
	struct origin *noted = bpf_map_lookup_elem(flows, flow);

	if (noted && noted->napi_id == origin->napi_id && noted->queue == origin->queue)
		return;
	if (noted && is_virtual(origin->napi_id) && !is_virtual(noted->napi_id))
		return;
	bpf_map_update_elem(flows, flow, origin, BPF_ANY);
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(flow_enters, struct sk_buff *skb)
{
	struct demand *demand = flow_demand_now();
	struct origin origin = {};
	struct tuple flow = {};
	u32 hash;

	if (!demand || !demand->noting)
		return 0;
	if (is_physical(skb->dev) || !skb->sk) {
		origin.napi_id = skb->napi_id;
		origin.queue = skb->queue_mapping;
		if (is_physical(skb->dev) ? origin.napi_id <= machine.cpus : !is_virtual(origin.napi_id))
			return 0;
	}
	hash = skb->hash;
	if (hash)
		note(&flows_by_hash, &hash, &origin);
	else if (packet_flow(skb->data, skb->protocol, &flow))
		note(&flows_by_tuple, &flow, &origin);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
