// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How many IP packets enter each network namespace, by netdev and queue, and how many leave it? And
 * how many packets of any kind does each tx queue of a NIC get, from which CPU?
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
#include "count.h"
#include "kind.h"
#include "pieces.h"
#include <bpf/bpf_tracing.h>

TABLE(ip_packets, 1)

enum { ENTERED = LAYOUT_IP_ENTERED, TUNNELLED = LAYOUT_IP_TUNNELLED, LEFT = LAYOUT_IP_LEFT, SENT = LAYOUT_IP_SENT };

/* What an IP packet carries, its payload in bytes, and whether it is a later fragment. */
struct content {
	bool is_ip, later;
	u8 protocol;
	u32 payload;
};

/* The protocol that a tunnel of this kind (its first four letters) consumes; 0: it is none. */
static __always_inline u8 outer_protocol(u32 kind)
{
	if (kind == 'vxla' || kind == 'gene' || kind == 'wire' || kind == 'gtp\0' || kind == 'bare' || kind == 'ovpn')
		return IPPROTO_UDP;
	if (kind == 'gre\0' || kind == 'gret' || kind == 'ersp' || kind == 'ip6g' || kind == 'ip6e' || kind == 'ipip' ||
	    kind == 'sit\0' || kind == 'ip6t')
		return IPPROTO_GRE; /* For all tunnels over IP. */
	return 0;
}

static __always_inline bool is_upper(u32 kind)
{
	return kind == 'bond' || kind == 'team' || kind == 'brid' || kind == 'vlan' || kind == 'macv' ||
	       kind == 'ipvl' || kind == 'vrf\0';
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
	u8 words = 0;

	bytes -= skip_tag(&header, &ethertype);
	if (ethertype == bpf_htons(ETH_P_IP)) {
		if (bpf_probe_read_kernel(&v4, sizeof(v4), header))
			return;
		content->protocol = v4.protocol;
		length = (v4.version_ihl & 15) * 4;
		total = bpf_ntohs(v4.length);
		content->later = v4.fragment & bpf_htons(0x1fff);
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		if (bpf_probe_read_kernel(&v6, sizeof(v6), header))
			return;
		content->protocol = v6.next;
		length = sizeof(v6);
		total = sizeof(v6) + bpf_ntohs(v6.length);
		if (v6.next == IPPROTO_FRAGMENT) {
			if (bpf_probe_read_kernel(&fragment, sizeof(fragment), header + length))
				return;
			content->protocol = fragment.next;
			length += 8;
			content->later = fragment.offset & bpf_htons(0xfff8);
		}
	} else {
		return;
	}
	content->is_ip = true;
	/* Short packets are padded on the wire. */
	if (skb->data_len || total > bytes)
		total = bytes;
	if (content->protocol == IPPROTO_TCP && !content->later) {
		bpf_probe_read_kernel(&words, sizeof(words), header + length + 12);
		length += (words >> 4) * 4;
	} else if (content->protocol == IPPROTO_UDP && !content->later) {
		length += 8;
	}
	content->payload = total > length ? total - length : 0;
}

static __always_inline void count_passage(const struct sk_buff *skb, u64 passage, u64 protocol, u32 packets, u32 payload)
{
	const struct net_device *dev = skb->dev;
	struct key key = {};
	struct slot *slot;
	bool fresh;

	key.word[LAYOUT_IP_NETNS_IFINDEX] = (u64)dev->nd_net.net->ns.inum << 32;
	key.word[LAYOUT_IP_PASSAGE_QUEUE] = passage << LAYOUT_IP_PASSAGE_BIT | protocol << LAYOUT_IP_PROTOCOL_BIT;
	if (passage == ENTERED || passage == SENT) {
		key.word[LAYOUT_IP_NETNS_IFINDEX] |= (u32)dev->ifindex;
		/* Others keep the queue on which the sender sent it. */
		if (dev->dev.parent)
			key.word[LAYOUT_IP_PASSAGE_QUEUE] |= skb->queue_mapping;
	}
	slot = slot_of(ip_packets_table(), &key, &fresh);
	if (slot)
		add(slot, packets, payload);
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(packet_enters, struct sk_buff *skb)
{
	struct content content = {};
	u8 outer;

	skb = FOR_LOADS(struct sk_buff, skb);
	if (skb->skb_iif)
		return 0;
	outer = outer_protocol(kind_of(skb->dev) >> 32);
	if (outer)
		count_passage(skb, TUNNELLED, outer, pieces_of(skb), skb->len);
	examine(skb, skb->data, skb->len, &content);
	if (content.is_ip)
		count_passage(skb, ENTERED, content.protocol, content.later ? 0 : pieces_of(skb), content.payload);
	return 0;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(packet_leaves, struct sk_buff *skb)
{
	struct content content = {};
	unsigned char *header;

	skb = FOR_LOADS(struct sk_buff, skb);
	header = skb->head + skb->network_header;
	/* The tx queue has been chosen. */
	if (skb->dev->dev.parent)
		count_passage(skb, SENT, 0, pieces_of(skb), skb->len);
	if (!skb->skb_iif || is_upper(kind_of(skb->dev) >> 32))
		return 0;
	examine(skb, header, skb->len - (u32)(header - skb->data), &content);
	if (content.is_ip)
		count_passage(skb, LEFT, content.protocol, content.later ? 0 : pieces_of(skb), content.payload);
	return 0;
}
