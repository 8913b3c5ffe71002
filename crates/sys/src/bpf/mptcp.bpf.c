// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which consumer reads how many MPTCP bytes, on which CPU, from which queue?
 *
 * The kernel moves the packets of all subflows to one socket, whose reader copies them. The copied
 * packet has NAPI id, queue, hash, and the CPU that allocated (and so polled) it. The hook runs for
 * packets of TCP and raw sockets too, so it is attached only if a program has used MPTCP. A peek
 * counts like a read. Not seen: splice.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "packet.h"
#include <bpf/bpf_tracing.h>

SEC("tp_btf/skb_copy_datagram_iovec")
int BPF_PROG(mptcp_read, const struct sk_buff *skb, int bytes)
{
	struct read read = { .protocol = TCP, .poll_cpu = -1, .connected = CONNECTED };
	const struct sock *sk = skb->sk;
	struct packet packet;
	u32 reads;

	if (!sk || sk->sk_protocol != IPPROTO_MPTCP || bytes <= 0)
		return 0;
	reads = read_weight();
	if (!reads)
		return 0;
	packet.napi_id = skb->napi_id;
	packet.queue = skb->queue_mapping;
	packet.hash = skb->hash;
	packet.alloc_cpu = skb->alloc_cpu;
	packet.iif = skb->skb_iif;
	packet.protocol = skb->protocol;
	packet.header = skb->head + skb->network_header;
	find_queue(&packet, &read);
	read.protocol_cpu = packet.alloc_cpu;
	read.netns = netns_of(sk);
	count_read(&read, (u64)bytes * reads, reads, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
