// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which packets does the kernel drop: why, in which function, of which device, socket and port?
 *
 * kfree_skb frees a packet that nobody received (consume_skb frees the others). The function is the
 * caller's address, named by user space. UDP keeps numbers in skb->dev while a packet is queued,
 * and TCP clears it, so the device is believed only if it is the one through which the packet
 * entered (skb_iif) or that of its route; else only that number is known. The network namespace is
 * that of the socket that should have received the packet, or of the device; of skb->sk only where
 * there is no device or the packet is sent, because one from a veth still has the socket of its
 * sender. Packets that wait for a CPU have not entered, but arrive.
 *
 * The packet's own fields are loaded. What they point to is probed, which takes some 30 ns each
 * time (evidence/drops.md), because skb->dev may be a number, skb->sk too before 6.9, and rx_sk may
 * be NULL though older verifiers take it for a socket.
 *
 * Decoded in drops.rs; its row is in docs/kernel.md.
 */
#include "count.h"
#include "pieces.h"
#include "time.h"
#include <bpf/bpf_tracing.h>

TABLE(drops, LAYOUT_FEWER_SLOTS)

/* The kernel gives clients ports from here on (default of net.ipv4.ip_local_port_range). */
enum { FIRST_OF_CLIENTS = 32768 };

/* The transport protocol and the target port that the headers name. */
static __always_inline u32 target_of(const struct sk_buff *skb, u32 ethertype)
{
	u16 network = skb->network_header;
	unsigned char *at = skb->head + network;
	struct {
		struct ipv4_header ip;
		__be16 ports[2];
	} v4 = {};
	u8 protocol = 0;
	__be16 port = 0;
	u32 length;

	if (network == (u16)~0)
		return 0;
	if (ethertype == ETH_P_IP) {
		bpf_probe_read_kernel(&v4, sizeof(v4), at);
		protocol = v4.ip.protocol;
		length = (v4.ip.version_ihl & 15) << 2;
		port = v4.ports[1];
	} else if (ethertype == ETH_P_IPV6) {
		bpf_probe_read_kernel(&protocol, sizeof(protocol), at + 6);
		length = 40;
	} else {
		return 0;
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		port = 0;
	else if (length != sizeof(v4.ip))
		bpf_probe_read_kernel(&port, sizeof(port), at + length + 2);
	return (u32)protocol << 16 | bpf_ntohs(port);
}

/* The netdev of the packet's route; NULL without a route. */
static __always_inline const struct net_device *route_dev(const struct sk_buff *skb)
{
	const struct dst_entry *route = (void *)(skb->_skb_refdst & ~1ul); /* SKB_DST_NOREF */

	return route ? BPF_CORE_READ(route, dev) : NULL;
}

struct owner {
	u32 netns;
	u64 cgroup;
};

static __always_inline struct owner owner_of(const struct sock *sk, bool loads)
{
	struct owner owner = {};
	u8 state;

	if (loads) {
		sk = FOR_LOADS(struct sock, sk);
		owner.netns = sk->__sk_common.skc_net.net->ns.inum;
		state = sk->__sk_common.skc_state;
	} else {
		owner.netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
		state = BPF_CORE_READ(sk, __sk_common.skc_state);
	}
	/* A request, or what is left in TIME_WAIT, is only the beginning of a socket. */
	if (state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV || !bpf_core_field_exists(sk->sk_cgrp_data.cgroup))
		return owner;
	owner.cgroup = loads ? sk->sk_cgrp_data.cgroup->kn->id : BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id);
	return owner;
}

/*
 * Keys with a port share one half of the slots. Where a scan of all ports has filled it, the other
 * half counts without the port.
 */
static __always_inline struct slot *slot_of_drop(struct key *key, bool *fresh)
{
	u32 half = drops_table().slots / 2;
	struct slot *slot = NULL;

	if (key->word[LAYOUT_DROP_PORT] & 0xffff)
		slot = slot_among(drops_table(), key, 0, half, fresh);
	if (slot)
		return slot;
	key->word[LAYOUT_DROP_PORT] &= ~0xffffull;
	slot = slot_among(drops_table(), key, half, half, fresh);
	if (!slot)
		count_lost();
	return slot;
}

/* How many drops this one stands for; 0: do not examine it. */
static __always_inline u32 drop_weight(void)
{
	struct cpu_time *time = this_cpu();

	return time ? weight_within(&time->drops, bpf_jiffies64() >> 8, machine.drops) : 1;
}

/* Whether it comes from a netdev: it entered, or its data begin after its Ethernet header. */
static __always_inline bool arrives(const struct sk_buff *skb)
{
	u16 ethernet = skb->mac_header;

	return skb->skb_iif || (ethernet != (u16)~0 && skb->head + ethernet != skb->data);
}

/* `loads`: whether the verifier guards loads from addresses that may be user space's (6.10). */
static __always_inline int count_drop(const struct sk_buff *skb, u64 place, u32 reason, const struct sock *sk, bool loads)
{
	u32 ethertype, iif, ifindex, weight, netns = 0;
	const struct net_device *dev;
	struct key key = {};
	struct slot *slot;
	bool fresh, sent;

	skb = FOR_LOADS(struct sk_buff, skb);
	ethertype = bpf_ntohs(skb->protocol);
	iif = skb->skb_iif;
	dev = skb->dev;
	ifindex = !dev ? 0 : loads ? dev->ifindex : BPF_CORE_READ(dev, ifindex);
	sent = !arrives(skb);
	/* Messages of netlink and Unix sockets; a full NFQUEUE frees one with each packet. */
	if (!ethertype && !dev && !iif)
		return 0;
	weight = drop_weight();
	if (!weight)
		return 0;

	/* What is forwarded has the netdev by which it was to leave, as its route does. */
	if (iif && ifindex != iif && !(dev && route_dev(skb) == dev))
		dev = NULL;
	if (!sk && (sent || !dev))
		sk = BPF_CORE_READ(skb, sk);
	if (sk) {
		struct owner owner = owner_of(sk, loads);

		netns = owner.netns;
		key.word[LAYOUT_DROP_CGROUP] = owner.cgroup;
	}
	if (!netns && dev && loads && ifindex == iif)
		netns = dev->nd_net.net->ns.inum;
	else if (!netns && dev)
		netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	key.word[LAYOUT_DROP_PLACE] = place;
	key.word[LAYOUT_DROP_REASON_ETHERTYPE] = (u64)reason << 32 | ethertype;
	key.word[LAYOUT_DROP_IFINDEX_NETNS] = (u64)(iif ? iif : dev ? ifindex : 0) << 32 | netns;
	/* A packet that is sent has its own port in the socket. */
	if (sent && sk)
		key.word[LAYOUT_DROP_PORT] = (u32)BPF_CORE_READ(sk, sk_protocol) << 16 | BPF_CORE_READ(sk, __sk_common.skc_num);
	else
		key.word[LAYOUT_DROP_PORT] = target_of(skb, ethertype);
	if (sent && (key.word[LAYOUT_DROP_PORT] & 0xffff) >= FIRST_OF_CLIENTS)
		key.word[LAYOUT_DROP_PORT] &= ~0xffffull;
	key.word[LAYOUT_DROP_PORT] |= (u64)!iif << LAYOUT_DROP_SENT_BIT;
	slot = slot_of_drop(&key, &fresh);
	if (!slot)
		return 0;
	if (fresh && dev && (!iif || ifindex == iif))
		bpf_probe_read_kernel(slot->label, sizeof(slot->label), &dev->name);
	add(slot, weight * (u64)(skb->data_len ? pieces_of(skb) : 1), weight * (u64)skb->len);
	return 0;
}

/* 6.11: the socket that should have received it. */
SEC("tp_btf/kfree_skb")
int drop_of_socket(u64 *args)
{
	return count_drop((void *)args[0], args[1], args[2], (void *)args[3], true);
}

/* 5.17: a reason. */
SEC("tp_btf/kfree_skb")
int drop_with_reason(u64 *args)
{
	return count_drop((void *)args[0], args[1], args[2], NULL, false);
}

SEC("tp_btf/kfree_skb")
int drop(u64 *args)
{
	return count_drop((void *)args[0], args[1], 0, NULL, false);
}
