// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which flows arrive on which rx queue of a NIC, and with which NIC hash?
 *
 * Runs once per packet that a real device passes to the stack (after GRO, on the CPU that runs the
 * protocol). Counts by the outermost headers, the only ones that a NIC can hash. Flows that do not
 * fit into the table are counted as missed.
 *
 * `hash` comes from the NIC only if the stack has not computed its own (sw_hash). RPS computes one
 * when the NIC's hash does not include ports.
 *
 * Decoded in arrived.rs; its row is in docs/kernel.md.
 */
#include "pieces.h"
#include <bpf/bpf_tracing.h>

enum { FRAGMENT = LAYOUT_FLAG_FRAGMENT, IPV6 = LAYOUT_FLAG_IPV6, IP = LAYOUT_FLAG_IP };

struct arrived {
	u32 source[4], target[4]; /* IPv4 in the first word; network byte order, as the ports. */
	u16 source_port, target_port;
	u32 hash;
	u32 ifindex, netns;
	u16 queue; /* rx queue + 1; 0: not recorded. */
	u16 ethertype; /* Host byte order. */
	u8 protocol, flags;
	u16 unused;
};
AT_BYTE(struct arrived, source, LAYOUT_ARRIVED_SOURCE);
AT_BYTE(struct arrived, target, LAYOUT_ARRIVED_TARGET);
AT_BYTE(struct arrived, source_port, LAYOUT_ARRIVED_SOURCE_PORT);
AT_BYTE(struct arrived, target_port, LAYOUT_ARRIVED_TARGET_PORT);
AT_BYTE(struct arrived, hash, LAYOUT_ARRIVED_HASH);
AT_BYTE(struct arrived, ifindex, LAYOUT_ARRIVED_IFINDEX);
AT_BYTE(struct arrived, netns, LAYOUT_ARRIVED_NETNS);
AT_BYTE(struct arrived, queue, LAYOUT_ARRIVED_QUEUE);
AT_BYTE(struct arrived, ethertype, LAYOUT_ARRIVED_ETHERTYPE);
AT_BYTE(struct arrived, protocol, LAYOUT_ARRIVED_PROTOCOL);
AT_BYTE(struct arrived, flags, LAYOUT_ARRIVED_FLAGS);
SIZE_OF(struct arrived, LAYOUT_SIZEOF_ARRIVED);

struct traffic {
	u64 packets, bytes;
};
AT_BYTE(struct traffic, packets, LAYOUT_TRAFFIC_PACKETS);
AT_BYTE(struct traffic, bytes, LAYOUT_TRAFFIC_BYTES);
SIZE_OF(struct traffic, LAYOUT_SIZEOF_TRAFFIC);

/* Created by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct arrived);
	__type(value, struct traffic);
} arrived SEC(".maps");

/* One entry: packets of flows that did not fit into the table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} arrived_missed SEC(".maps");

static __always_inline void read_ipv4(const unsigned char *header, struct arrived *flow, u32 *length)
{
	struct ipv4_header v4;

	if (bpf_probe_read_kernel(&v4, sizeof(v4), header))
		return;
	flow->flags = IP;
	flow->source[0] = v4.source;
	flow->target[0] = v4.target;
	flow->protocol = v4.protocol;
	if (v4.fragment & bpf_htons(0x3fff))
		flow->flags |= FRAGMENT;
	*length = (v4.version_ihl & 15) * 4;
}

static __always_inline void read_ipv6(const unsigned char *header, struct arrived *flow, u32 *length)
{
	struct ipv6_header v6;

	if (bpf_probe_read_kernel(&v6, sizeof(v6), header))
		return;
	flow->flags = IP | IPV6;
	__builtin_memcpy(flow->source, v6.source, sizeof(v6.source));
	__builtin_memcpy(flow->target, v6.target, sizeof(v6.target));
	flow->protocol = v6.next;
	*length = sizeof(v6);
	if (v6.next == IPPROTO_FRAGMENT) {
		flow->flags |= FRAGMENT;
		bpf_probe_read_kernel(&flow->protocol, sizeof(flow->protocol), header + sizeof(v6));
	}
}

static __always_inline void read_headers(const unsigned char *header, __be16 ethertype, struct arrived *flow)
{
	__be16 ports[2];
	u32 length = 0;

	skip_tag(&header, &ethertype);
	flow->ethertype = bpf_ntohs(ethertype);
	if (ethertype == bpf_htons(ETH_P_IP))
		read_ipv4(header, flow, &length);
	else if (ethertype == bpf_htons(ETH_P_IPV6))
		read_ipv6(header, flow, &length);
	if (!length || flow->flags & FRAGMENT)
		return;
	if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP && flow->protocol != IPPROTO_SCTP)
		return;
	if (bpf_probe_read_kernel(ports, sizeof(ports), header + length))
		return;
	flow->source_port = ports[0];
	flow->target_port = ports[1];
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(flow_arrives, struct sk_buff *skb)
{
	const struct net_device *dev;
	struct arrived flow = {};
	struct traffic *traffic, first = {};
	u32 zero = 0, packets;
	u64 *missed;

	skb = FOR_LOADS(struct sk_buff, skb);
	dev = skb->dev;
	if (!dev->dev.parent)
		return 0;
	if (!BPF_CORE_READ_BITFIELD(skb, sw_hash))
		flow.hash = skb->hash;
	flow.ifindex = dev->ifindex;
	flow.netns = dev->nd_net.net->ns.inum;
	flow.queue = skb->queue_mapping;
	read_headers(skb->data, skb->protocol, &flow);
	packets = pieces_of(skb);
	traffic = bpf_map_lookup_elem(&arrived, &flow);
	if (!traffic) {
		bpf_map_update_elem(&arrived, &flow, &first, BPF_NOEXIST);
		traffic = bpf_map_lookup_elem(&arrived, &flow);
	}
	if (traffic) {
		__sync_fetch_and_add(&traffic->packets, packets);
		__sync_fetch_and_add(&traffic->bytes, skb->len);
		return 0;
	}
	missed = bpf_map_lookup_elem(&arrived_missed, &zero);
	if (missed)
		__sync_fetch_and_add(missed, 1);
	return 0;
}
