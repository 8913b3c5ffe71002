// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How many UDP packets enter and leave each network namespace?
 *
 * A packet enters a namespace where a netdev passes it to the stack and no other has done so
 * (skb_iif is 0: a bridge or a VLAN comes second; a veth, a tunnel and the loopback clear it). It
 * leaves by the netdev that sends it on; those on top of another one (bond, bridge, VLAN) do not
 * count. What enters by a tunnel over UDP was consumed from outer packets. Packets are those on the
 * wire: GRO and GSO join several.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#define TABLE datagrams
#include "count.h"
#include "pieces.h"
#include <bpf/bpf_tracing.h>

enum { ENTERED = LAYOUT_DATAGRAM_ENTERED, TUNNELLED = LAYOUT_DATAGRAM_TUNNELLED, LEFT = LAYOUT_DATAGRAM_LEFT };

/* The first four letters of the netdev's kind (IFLA_INFO_KIND); 0: a device. */
static __always_inline u32 kind_of(const struct net_device *dev)
{
	const struct rtnl_link_ops *ops = dev->rtnl_link_ops;
	u32 kind = 0;

	if (ops)
		bpf_probe_read_kernel(&kind, sizeof(kind), ops->kind);
	return bpf_ntohl(kind);
}

static __always_inline bool is_udp_tunnel(u32 kind)
{
	return kind == 'vxla' || kind == 'gene' || kind == 'wire' || kind == 'gtp\0' || kind == 'bare' || kind == 'ovpn';
}

static __always_inline bool is_upper(u32 kind)
{
	return kind == 'bond' || kind == 'team' || kind == 'brid' || kind == 'vlan' || kind == 'macv' ||
	       kind == 'ipvl' || kind == 'vrf\0';
}

/* Whether this is a UDP packet, or the first fragment of one. */
static __always_inline bool is_udp(const unsigned char *header, __be16 ethertype)
{
	struct ipv4_header v4;
	struct ipv6_header v6;

	if (ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD)) {
		/* The tag is still in the packet: 2 bytes of it, then the inner protocol. */
		if (bpf_probe_read_kernel(&ethertype, sizeof(ethertype), header + 2))
			return false;
		header += 4;
	}
	if (ethertype == bpf_htons(ETH_P_IP))
		return !bpf_probe_read_kernel(&v4, sizeof(v4), header) && v4.protocol == IPPROTO_UDP &&
		       !(v4.fragment & bpf_htons(0x1fff));
	if (ethertype == bpf_htons(ETH_P_IPV6))
		return !bpf_probe_read_kernel(&v6, sizeof(v6), header) && v6.next == IPPROTO_UDP;
	return false;
}

static __always_inline void count_passage(const struct sk_buff *skb, u64 passage)
{
	struct key key = {};
	struct slot *slot;
	bool fresh;

	key.word[LAYOUT_DATAGRAM_NETNS] = skb->dev->nd_net.net->ns.inum;
	key.word[LAYOUT_DATAGRAM_PASSAGE] = passage;
	slot = slot_of(&key, &fresh);
	if (slot)
		add(slot, pieces_of(skb), 0);
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(datagram_enters, struct sk_buff *skb)
{
	if (skb->skb_iif)
		return 0;
	if (is_udp_tunnel(kind_of(skb->dev)))
		count_passage(skb, TUNNELLED);
	if (is_udp(skb->data, skb->protocol))
		count_passage(skb, ENTERED);
	return 0;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(datagram_leaves, struct sk_buff *skb)
{
	if (!skb->skb_iif || !is_udp(skb->head + skb->network_header, skb->protocol) || is_upper(kind_of(skb->dev)))
		return 0;
	count_passage(skb, LEFT);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
