// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where did a flow enter this machine when its consumer is behind a veth, bridge or tunnel?
 *
 * Runs once per packet that a device passes to the stack (after GRO, on the CPU that runs the
 * protocol). Packets of real devices give NAPI id and queue. Packets on virtual devices that still
 * belong to the sending socket never passed a NIC. A packet that comes to a second device has
 * perhaps lost NAPI id and queue, and NAT or a tunnel has changed its addresses; it is recognized
 * by its address in memory. Others that a virtual device's NAPI polled (a veth with GRO, on its way
 * to a router or bridge) give that NAPI, unless one of the two is known: the last such NAPI is the
 * nearest to the consumer. Records nothing while no consumer needs it.
 *
 * Attached in tracer.rs; its row is in docs/kernel.md.
 */
#include "flow.h"
#include "kind.h"
#include "machine.h"
#include "napi.h"
#include <bpf/bpf_tracing.h>

/* A packet that has passed a device. */
struct passed {
	u64 packet; /* See number_of(). */
	u32 mark;   /* Other packets may have had the same address later. */
	struct origin origin;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << LAYOUT_PASSED_BITS);
	__type(key, u32);
	__type(value, struct passed);
} passed SEC(".maps");

/* The verifier allows one operation on a pointer: the difference of two is a number. */
static __always_inline u64 number_of(const struct sk_buff *skb, const struct demand *demand)
{
	return (u64)skb - (u64)demand;
}

static __always_inline struct passed *passed_at(u64 packet)
{
	u32 place = packet * 0x9e3779b97f4a7c15ull >> (64 - LAYOUT_PASSED_BITS);

	return bpf_map_lookup_elem(&passed, &place);
}

static __always_inline void note(void *flows, const void *flow, const struct origin *origin)
{
	struct origin *noted = bpf_map_lookup_elem(flows, flow);

	if (noted && noted->napi_id == origin->napi_id && noted->queue == origin->queue)
		return;
	if (noted && is_virtual(origin->napi_id) && !is_virtual(noted->napi_id))
		return;
	bpf_map_update_elem(flows, flow, origin, BPF_ANY);
}

/*
 * Kernel threads decrypt WireGuard's packets, and clear their fields. A packet stays at its
 * address, and no other one enters there meanwhile.
 */
static __always_inline bool is_decrypted(const struct net_device *dev)
{
	return kind_of(dev) == KIND('wire', 'guar');
}

/* Where a packet comes from; `before` is NULL if it passed no device. False: not known. */
static __always_inline bool find_origin(const struct sk_buff *skb, const struct passed *before, u32 mark,
					struct origin *origin)
{
	const struct net_device *dev = skb->dev;
	u32 napi_id = skb->napi_id;

	if (is_physical(dev) || napi_id > machine.cpus) {
		origin->napi_id = napi_id;
		origin->queue = skb->queue_mapping;
	}
	if (is_physical(dev))
		return napi_id > machine.cpus;
	if (skb->sk) {
		origin->napi_id = origin->queue = 0;
	} else if (napi_id > machine.cpus && !is_virtual(napi_id)) {
		/* A tunnel clears the queue. */
		if (before && before->origin.napi_id == napi_id)
			*origin = before->origin;
	} else if (before && (before->mark == mark || is_decrypted(dev))) {
		*origin = before->origin;
		if (is_decrypted(dev))
			origin->cleared = true;
	} else {
		return napi_id > machine.cpus;
	}
	return true;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(flow_enters, struct sk_buff *skb)
{
	struct demand *demand = flow_demand_now();
	struct origin origin = {};
	struct tuple flow = {};
	struct passed *place;
	u32 hash, mark;
	bool has_ports = false, is_known;
	u64 packet;

	skb = FOR_LOADS(struct sk_buff, skb);
	if (!demand || !demand->noting)
		return 0;
	packet = number_of(skb, demand);
	place = passed_at(packet);
	if (!place)
		return 0;
	hash = mark = skb->hash;
	if (!hash)
		has_ports = packet_flow(skb->data, skb->protocol, &flow, &mark);
	is_known = find_origin(skb, place->packet == packet ? place : NULL, mark, &origin);
	place->packet = 0;
	barrier();
	if (!is_known)
		return 0;
	place->mark = mark;
	place->origin = origin;
	barrier();
	place->packet = packet;
	if (hash)
		note(&flows_by_hash, &hash, &origin);
	else if (has_ports)
		note(&flows_by_tuple, &flow, &origin);
	return 0;
}
