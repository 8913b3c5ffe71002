/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which NIC queue, or NAPI of a virtual device, received a flow whose packets lost the NAPI id
 * (veth, bridge, tunnel)?
 *
 * `flows.bpf.c` records each flow at ingress, by the NIC's hash, or by addresses and ports without
 * a hash. NAT keeps the hash, but not the addresses. Addresses have no network namespace: a flow is
 * the same in the NIC's namespace and in the consumer's. The maps evict the least recently used
 * flow.
 */
#pragma once
#include "kernel.h"

enum resolved {
	DIRECT = LAYOUT_RESOLVED_DIRECT,
	FLOW_HASH = LAYOUT_RESOLVED_FLOW_HASH,
	FIVE_TUPLE = LAYOUT_RESOLVED_FIVE_TUPLE,
	LOCAL = LAYOUT_RESOLVED_LOCAL,
	UNRESOLVED = LAYOUT_RESOLVED_UNRESOLVED,
};

struct origin {
	u32 napi_id; /* 0: sent by a socket of this machine. */
	u16 queue;   /* rx queue + 1; 0: not recorded. */
	u16 cleared; /* Whether the packet no longer has the CPU that polled it. */
};
SIZE_OF(struct origin, LAYOUT_SIZEOF_ORIGIN);

/*
 * From the receiver's view, so the source is the peer. IPv4 addresses are mapped into IPv6
 * (::ffff:a.b.c.d), in network byte order.
 */
struct tuple {
	u32 source[4];
	u32 target[4];
	u16 source_port;
	u16 target_port;
	u32 protocol;
};
SIZE_OF(struct tuple, LAYOUT_SIZEOF_TUPLE);

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LAYOUT_FLOWS_RECORDED);
	__type(key, u32);
	__type(value, struct origin);
} flows_by_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LAYOUT_FLOWS_RECORDED);
	__type(key, struct tuple);
	__type(value, struct origin);
} flows_by_tuple SEC(".maps");

struct demand {
	u64 asked;  /* A consumer needed a flow. User space clears it at each read. */
	u64 noting; /* Record flows. User space clears it after some time without requests. */
};
AT_WORD(struct demand, asked, LAYOUT_DEMAND_ASKED);
AT_WORD(struct demand, noting, LAYOUT_DEMAND_NOTING);
SIZE_OF(struct demand, 8 * LAYOUT_DEMAND_WORDS);

/* One entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct demand);
} flow_demand SEC(".maps");

static __always_inline struct demand *flow_demand_now(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&flow_demand, &zero);
}

static __always_inline void map_ipv4(u32 to[4], __be32 address)
{
	to[0] = to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = address;
}

/*
 * The flow of a packet whose network header is at `header`, and what NAT leaves of the packet.
 * False without ports, or for a fragment.
 */
static __always_inline bool packet_flow(const unsigned char *header, __be16 protocol, struct tuple *flow,
					u32 *mark)
{
	struct ipv4_header v4;
	struct ipv6_header v6;
	struct {
		__be16 ports[2];
		u32 words[3];
	} next;
	u32 length;

	skip_tag(&header, &protocol);
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_probe_read_kernel(&v4, sizeof(v4), header) || v4.fragment & bpf_htons(0x3fff))
			return false;
		map_ipv4(flow->source, v4.source);
		map_ipv4(flow->target, v4.target);
		flow->protocol = v4.protocol;
		length = (v4.version_ihl & 15) * 4;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_probe_read_kernel(&v6, sizeof(v6), header))
			return false;
		__builtin_memcpy(flow->source, v6.source, sizeof(v6.source));
		__builtin_memcpy(flow->target, v6.target, sizeof(v6.target));
		flow->protocol = v6.next;
		length = sizeof(v6);
	} else {
		return false;
	}
	if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP)
		return false;
	if (bpf_probe_read_kernel(&next, sizeof(next), header + length))
		return false;
	flow->source_port = next.ports[0];
	flow->target_port = next.ports[1];
	/* TCP's numbers, or what a datagram begins with. */
	*mark = next.words[1] ^ (flow->protocol == IPPROTO_TCP ? next.words[0] : next.words[2]) << 1;
	return true;
}

/* The flow that a connected socket reads. */
static __always_inline bool socket_flow(const struct sock *sk, u32 protocol, struct tuple *flow)
{
	const struct sock_common *common = &sk->__sk_common;

	if (common->skc_family == AF_INET) {
		map_ipv4(flow->source, common->skc_daddr);
		map_ipv4(flow->target, common->skc_rcv_saddr);
	} else if (common->skc_family == AF_INET6) {
		bpf_probe_read_kernel(flow->source, sizeof(flow->source), &common->skc_v6_daddr);
		bpf_probe_read_kernel(flow->target, sizeof(flow->target), &common->skc_v6_rcv_saddr);
	} else {
		return false;
	}
	flow->source_port = common->skc_dport;
	flow->target_port = bpf_htons(common->skc_num);
	flow->protocol = protocol;
	return true;
}

/* The recorded origin of a flow, by its hash, or else by its addresses. NULL without a record. */
static __always_inline struct origin *origin_of(u32 hash, const struct tuple *flow, enum resolved *how)
{
	struct demand *demand = flow_demand_now();
	struct origin *origin = NULL;

	if (demand && !demand->asked)
		demand->asked = demand->noting = 1;
	if (hash)
		origin = bpf_map_lookup_elem(&flows_by_hash, &hash);
	*how = FLOW_HASH;
	if (!origin && flow) {
		origin = bpf_map_lookup_elem(&flows_by_tuple, flow);
		*how = FIVE_TUPLE;
	}
	if (origin && !origin->napi_id)
		*how = LOCAL;
	return origin;
}
