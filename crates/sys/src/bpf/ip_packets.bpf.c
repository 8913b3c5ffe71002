// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How many IP packets enter each network namespace, by netdev and queue, and how many leave it?
 *
 * A packet enters a namespace where a netdev passes it to the stack and no other has done so
 * (skb_iif is 0: a bridge or a VLAN comes second; a veth, a tunnel and the loopback clear it). It
 * leaves by the netdev that sends it on; those on top of another one (bond, bridge, VLAN) do not
 * count. What enters by a tunnel was consumed from outer packets. Packets are those on the wire:
 * GRO and GSO join several. Of fragments, the first is the packet, and all count with their
 * payload.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#define TABLE ip_packets
#include "count.h"
#include "pieces.h"
#include <bpf/bpf_tracing.h>

enum { ENTERED = LAYOUT_IP_ENTERED, TUNNELLED = LAYOUT_IP_TUNNELLED, LEFT = LAYOUT_IP_LEFT };
enum class { NOT_COUNTED, TCP = LAYOUT_IP_TCP, UDP = LAYOUT_IP_UDP, OTHER = LAYOUT_IP_OTHER };

/* The transport protocol of a packet, its payload in bytes, and whether it is a later fragment. */
struct content {
	enum class class;
	u32 payload;
	bool later;
};

/* The first four letters of the netdev's kind (IFLA_INFO_KIND); 0: a device. */
static __always_inline u32 kind_of(const struct net_device *dev)
{
	const struct rtnl_link_ops *ops = dev->rtnl_link_ops;
	u32 kind = 0;

	if (ops)
		bpf_probe_read_kernel(&kind, sizeof(kind), ops->kind);
	return bpf_ntohl(kind);
}

/* What a tunnel of this kind consumes. */
static __always_inline enum class outer_class(u32 kind)
{
	if (kind == 'vxla' || kind == 'gene' || kind == 'wire' || kind == 'gtp\0' || kind == 'bare' || kind == 'ovpn')
		return UDP;
	if (kind == 'gre\0' || kind == 'gret' || kind == 'ersp' || kind == 'ip6g' || kind == 'ip6e' || kind == 'ipip' ||
	    kind == 'sit\0' || kind == 'ip6t')
		return OTHER;
	return NOT_COUNTED;
}

static __always_inline bool is_upper(u32 kind)
{
	return kind == 'bond' || kind == 'team' || kind == 'brid' || kind == 'vlan' || kind == 'macv' ||
	       kind == 'ipvl' || kind == 'vrf\0';
}

/*
 * OTHER has no protocol that the kernel takes without a netdev: ICMP, IGMP, ESP, AH, L2TP, SCTP,
 * PIM, and the extension headers of IPv6.
 */
static __always_inline enum class class_of(u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return TCP;
	case IPPROTO_UDP:
		return UDP;
	case 0: case IPPROTO_ICMP: case 2: case 43: case 44: case 50: case 51: case IPPROTO_ICMPV6: case 59: case 60:
	case 103: case 115: case 132: case 135:
		return NOT_COUNTED;
	default:
		return OTHER;
	}
}

/* The packet has `bytes` from `header` on: more than its length says if GRO joined several. */
static __always_inline void examine(const struct sk_buff *skb, const unsigned char *header, u32 bytes, struct content *content)
{
	__be16 ethertype = skb->protocol;
	struct ipv4_header v4;
	struct ipv6_header v6;
	struct {
		u8 next, reserved;
		__be16 offset;
	} fragment;
	u32 length, total;
	u8 protocol, words = 0;

	if (ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD)) {
		/* The tag is still in the packet: 2 bytes of it, then the inner protocol. */
		if (bpf_probe_read_kernel(&ethertype, sizeof(ethertype), header + 2))
			return;
		header += 4;
		bytes -= 4;
	}
	if (ethertype == bpf_htons(ETH_P_IP)) {
		if (bpf_probe_read_kernel(&v4, sizeof(v4), header))
			return;
		protocol = v4.protocol;
		length = (v4.version_ihl & 15) * 4;
		total = bpf_ntohs(v4.length);
		content->later = v4.fragment & bpf_htons(0x1fff);
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		if (bpf_probe_read_kernel(&v6, sizeof(v6), header))
			return;
		protocol = v6.next;
		length = sizeof(v6);
		total = sizeof(v6) + bpf_ntohs(v6.length);
		if (protocol == 44) {
			if (bpf_probe_read_kernel(&fragment, sizeof(fragment), header + length))
				return;
			protocol = fragment.next;
			length += 8;
			content->later = fragment.offset & bpf_htons(0xfff8);
		}
	} else {
		return;
	}
	content->class = class_of(protocol);
	/* Short packets are padded on the wire. */
	if (skb->data_len || total > bytes)
		total = bytes;
	if (content->class == TCP && !content->later) {
		bpf_probe_read_kernel(&words, sizeof(words), header + length + 12);
		length += (words >> 4) * 4;
	} else if (content->class == UDP && !content->later) {
		length += 8;
	}
	content->payload = total > length ? total - length : 0;
}

static __always_inline void count_passage(const struct sk_buff *skb, u64 passage, u64 class, u32 packets, u32 payload)
{
	const struct net_device *dev = skb->dev;
	struct key key = {};
	struct slot *slot;
	bool fresh;

	key.word[LAYOUT_IP_NETNS_IFINDEX] = (u64)dev->nd_net.net->ns.inum << 32;
	key.word[LAYOUT_IP_PASSAGE_QUEUE] = passage << LAYOUT_IP_PASSAGE_BIT | class << LAYOUT_IP_CLASS_BIT;
	if (passage == ENTERED) {
		key.word[LAYOUT_IP_NETNS_IFINDEX] |= (u32)dev->ifindex;
		/* Others keep the queue on which the sender sent it. */
		if (dev->dev.parent)
			key.word[LAYOUT_IP_PASSAGE_QUEUE] |= skb->queue_mapping;
	}
	slot = slot_of(&key, &fresh);
	if (slot)
		add(slot, packets, payload);
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(packet_enters, struct sk_buff *skb)
{
	struct content content = {};
	enum class outer;

	if (skb->skb_iif)
		return 0;
	outer = outer_class(kind_of(skb->dev));
	if (outer)
		count_passage(skb, TUNNELLED, outer, pieces_of(skb), skb->len);
	examine(skb, skb->data, skb->len, &content);
	if (content.class)
		count_passage(skb, ENTERED, content.class, content.later ? 0 : pieces_of(skb), content.payload);
	return 0;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(packet_leaves, struct sk_buff *skb)
{
	unsigned char *header = skb->head + skb->network_header;
	struct content content = {};

	if (!skb->skb_iif || is_upper(kind_of(skb->dev)))
		return 0;
	examine(skb, header, skb->len - (u32)(header - skb->data), &content);
	if (content.class)
		count_passage(skb, LEFT, content.class, content.later ? 0 : pieces_of(skb), content.payload);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
