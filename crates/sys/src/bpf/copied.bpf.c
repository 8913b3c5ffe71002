// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which consumer reads how many bytes of sockets other than TCP's and UDP's (MPTCP, SCTP, raw,
 * ICMP, packet), on which CPU, from which queue?
 *
 * Their reads copy packets with skb_copy_datagram_iter(). The copied packet has its socket, NAPI
 * id, queue, hash, and the CPU that allocated (and so polled) it. MPTCP moves the packets of all
 * subflows to one socket. The hook runs for TCP too, so it is attached only if it is asked for, or
 * if a program has used MPTCP or SCTP. A peek counts like a read. Not seen: splice, rings of packet
 * sockets.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "packet.h"
#include "pieces.h"
#include <bpf/bpf_tracing.h>

enum { AF_PACKET = 17, SOCK_RAW = 3, PACKET_OUTGOING = 4 };

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

SEC("tp_btf/skb_copy_datagram_iovec")
int BPF_PROG(copied_read, const struct sk_buff *skb, int bytes)
{
	const struct sock *sk = skb->sk;
	struct read read = { .poll_cpu = -1, .protocol_cpu = -1 };
	struct packet packet;
	u32 reads, packets;

	if (!sk || bytes < 0)
		return 0;
	read.protocol = protocol_of(sk);
	if (!read.protocol)
		return 0;
	reads = read_weight();
	if (!reads)
		return 0;
	read.netns = netns_of(sk);
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
	count_read(&read, (u64)bytes * reads, reads, (u64)packets * reads);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
