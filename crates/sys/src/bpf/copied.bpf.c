// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which consumer reads how many bytes of taps and of sockets other than TCP's and UDP's (MPTCP,
 * SCTP, raw, ICMP, packet), on which CPU, from which queue?
 *
 * Their reads copy packets with skb_copy_datagram_iter(). The copied packet has its socket, NAPI
 * id, queue, hash, and the CPU that allocated (and so polled) it. MPTCP moves the packets of all
 * subflows to one socket. The packet of a tap (tun, macvtap) has its netdev; a program reads it, or
 * a vhost worker for a virtual machine. The hook runs for TCP too, so it is
 * attached only if it is asked for, if a program has used MPTCP or SCTP, or if there are taps. A
 * peek counts like a read. Not seen: splice, rings of packet sockets, XDP_REDIRECT into a tap.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "kind.h"
#include "packet.h"
#include "pieces.h"
#include <bpf/bpf_tracing.h>

enum { SOCK_RAW = 3, PACKET_OUTGOING = 4 };
/* A tap's packet with a VLAN tag is copied in two pieces: this many bytes, and the rest. */
enum { BEFORE_TAG = 12 };

/* The protocol to count; 0: another program counts it. */
static __always_inline u32 protocol_of(const struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family, protocol = sk->sk_protocol, type = sk->sk_type;

	if (family == AF_PACKET)
		return PACKET;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	if (protocol == IPPROTO_MPTCP)
		return TCP;
	if (protocol == IPPROTO_SCTP)
		return SCTP;
	if ((protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) && (type == SOCK_RAW || type == SOCK_DGRAM))
		return ICMP;
	return type == SOCK_RAW ? RAW : 0;
}

/* The protocol that an IP packet carries; 0 of another packet. */
static __always_inline u8 protocol_above(const struct packet *packet)
{
	u8 protocol = 0;

	if (packet->protocol == bpf_htons(ETH_P_IP))
		bpf_probe_read_kernel(&protocol, 1, packet->header + __builtin_offsetof(struct ipv4_header, protocol));
	else if (packet->protocol == bpf_htons(ETH_P_IPV6))
		bpf_probe_read_kernel(&protocol, 1, packet->header + __builtin_offsetof(struct ipv6_header, next));
	return protocol;
}

SEC("tp_btf/skb_copy_datagram_iovec")
int BPF_PROG(copied_read, const struct sk_buff *skb, int bytes)
{
	struct read read = { .poll_cpu = -1, .protocol_cpu = -1 };
	const struct net_device *dev;
	const struct sock *sk;
	struct packet packet;
	u32 weight, reads, packets;
	u64 kind;

	if (bytes < 0)
		return 0;
	skb = FOR_LOADS(struct sk_buff, skb);
	sk = skb->sk;
	/* Of TCP NULL, of UDP maybe no address. */
	dev = skb->dev;
	kind = dev ? kind_named(BPF_CORE_READ(dev, rtnl_link_ops, kind)) : 0;
	/* From one macvtap to another a packet keeps its sender's socket. */
	if (is_macvtap(kind) && !(sk && sk->__sk_common.skc_family == AF_PACKET))
		read.protocol = TAP;
	else if (sk)
		read.protocol = protocol_of(sk);
	else if (is_tun(kind))
		read.protocol = TAP;
	if (!read.protocol)
		return 0;
	weight = read_weight();
	if (!weight)
		return 0;
	read.netns = read.protocol == TAP ? BPF_CORE_READ(dev, nd_net.net, ns.inum) : netns_of(sk);
	reads = read.protocol == TAP && bytes <= BEFORE_TAG ? 0 : weight;
	packets = read.protocol == TCP ? 0 : pieces_of(skb);
	if (read.protocol == PACKET && BPF_CORE_READ_BITFIELD(skb, pkt_type) == PACKET_OUTGOING) {
		/* What this machine sends: no queue received it. */
		read.resolved = LOCAL;
		count_read(&read, 0, reads, (u64)packets * reads);
		return 0;
	}
	FILL_PACKET(&packet, skb, DIRECTLY);
	find_queue(&packet, &read);
	read.protocol_cpu = packet.alloc_cpu;
	if (read.protocol == TAP) {
		/* Sent through the tap: the NAPI id has given way to the CPU (sender_cpu). */
		if (packet.napi_id && packet.napi_id <= machine.cpus)
			read.protocol_cpu = packet.napi_id - 1;
		if (read.resolved == UNRESOLVED && !packet.iif)
			read.resolved = LOCAL;
		if (is_macvtap(kind))
			read.carried = protocol_above(&packet);
	}
	count_read(&read, (u64)bytes * weight, reads, (u64)packets * reads);
	return 0;
}
