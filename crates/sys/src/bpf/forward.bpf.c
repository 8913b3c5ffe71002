// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which packets are forwarded: from which rx queue, to which device and tx queue?
 *
 * At ingress a packet has its NAPI id and rx queue. When it is queued for sending, both fields have
 * other values (sender_cpu, tx queue). So ingress (netif_receive_skb: once per packet, also for
 * packets in lists) records them by the packet's address, and egress (net_dev_queue: before
 * segmentation) looks them up. A packet that was cloned on the way (a bridge that floods, tcpdump)
 * has another address. It gets the queue of the last packet on this CPU, if that packet entered
 * through the same device. A packet that waited for neighbour resolution leaves without an origin.
 *
 * skb_iif separates forwarded packets from local ones. Only a tunnel clears it; such a packet
 * counts only if ingress recorded it. Devices without hardware count only where packets leave the
 * kernel (tun, tap); all others lead to a second device or to a reader. Where reads of taps are
 * counted (copied.bpf.c), user space leaves the rows of tun and tap out. Not seen: XDP_REDIRECT,
 * flow offload in hardware.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "count.h"
#include "kind.h"
#include "napi.h"
#include <bpf/bpf_tracing.h>

TABLE(forwards, LAYOUT_FEWER_SLOTS)

struct arrival {
	u64 skb;
	u64 net;
	u32 napi_id; /* 0: a device without NAPI. */
	u32 queue;   /* rx queue + 1; 0: not recorded. */
	u32 ifindex;
	u32 poll_cpu;
};
SIZE_OF(struct arrival, LAYOUT_SIZEOF_ARRIVAL);

/* The last packets that entered on a CPU, each in the slot of its address. */
struct arrivals {
	u64 address; /* See address_of(). */
	struct arrival last;
	struct arrival by_skb[1 << LAYOUT_ARRIVALS_BITS];
};
SIZE_OF(struct arrivals, LAYOUT_SIZEOF_ARRIVALS);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* One for each CPU: set before loading. */
	__type(key, u32);
	__type(value, struct arrivals);
} arrivals SEC(".maps");

static __always_inline struct arrivals *arrivals_of_cpu(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&arrivals, &cpu);
}

/*
 * The verifier forbids arithmetic on a pointer, but a value read from a map is a number. Bottom
 * halves are off, so nothing else on this CPU changes it.
 */
static __always_inline u64 address_of(struct arrivals *here, const struct sk_buff *skb)
{
	volatile u64 *address = &here->address;

	*address = (u64)skb;
	return *address;
}

static __always_inline struct arrival *arrival_at(struct arrivals *here, u64 skb)
{
	return &here->by_skb[skb * 0x9e3779b97f4a7c15ull >> (64 - LAYOUT_ARRIVALS_BITS)];
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(forward_enters, struct sk_buff *skb)
{
	const struct net_device *dev;
	struct arrivals *here;
	struct arrival arrival;

	skb = FOR_LOADS(struct sk_buff, skb);
	dev = skb->dev;
	if (!is_physical(dev))
		return 0;
	here = arrivals_of_cpu();
	if (!here)
		return 0;
	arrival.skb = address_of(here, skb);
	arrival.net = (u64)dev->nd_net.net;
	arrival.napi_id = skb->napi_id > machine.cpus ? skb->napi_id : 0;
	arrival.queue = skb->queue_mapping;
	arrival.ifindex = dev->ifindex;
	arrival.poll_cpu = skb->alloc_cpu;
	here->last = arrival;
	*arrival_at(here, arrival.skb) = arrival;
	return 0;
}

/*
 * The number of segments of this packet, and their bytes with all headers, as in
 * qdisc_pkt_len_init().
 */
static __always_inline u32 segments_of(const struct sk_buff *skb, u64 *bytes)
{
	struct skb_shared_info *shared;
	u32 size, pieces, headers;
	u8 data_offset;

	*bytes = skb->len;
	if (!skb->data_len)
		return 1;
	shared = (void *)(skb->head + skb->end);
	size = BPF_CORE_READ(shared, gso_size);
	if (!size)
		return 1;
	headers = skb->transport_header - (u32)(skb->data - skb->head);
	if (BPF_CORE_READ(shared, gso_type) & (SKB_GSO_TCPV4 | SKB_GSO_TCPV6)) {
		if (bpf_probe_read_kernel(&data_offset, sizeof(data_offset), skb->head + skb->transport_header + 12))
			return 1;
		headers += data_offset >> 4 << 2;
	} else {
		headers += 8;
	}
	pieces = BPF_CORE_READ(shared, gso_segs);
	/* Packets from a virtual machine's host do not contain the number of segments. */
	if (!pieces)
		pieces = (skb->len - headers + size - 1) / size;
	*bytes += (u64)(pieces - 1) * headers;
	return pieces;
}

static __always_inline void count_forwarded(const struct sk_buff *skb, const struct arrival *from,
					    const struct net_device *dev, bool to_tun)
{
	struct key key = {};
	struct slot *slot;
	u64 bytes;
	u32 pieces;
	bool fresh;

	key.word[LAYOUT_FORWARD_IFINDEX_NETNS] = (u64)dev->ifindex << 32 | dev->nd_net.net->ns.inum;
	key.word[LAYOUT_FORWARD_QUEUE_CPU] = (u64)skb->queue_mapping << 32 | (u64)to_tun << LAYOUT_FORWARD_TO_TUN_BIT;
	if (from) {
		key.word[LAYOUT_FORWARD_NAPI_QUEUE] = (u64)from->napi_id << 32 | from->queue;
		key.word[LAYOUT_FORWARD_QUEUE_CPU] |= from->poll_cpu;
	} else {
		key.word[LAYOUT_FORWARD_QUEUE_CPU] |= bpf_get_smp_processor_id();
	}
	slot = slot_of(forwards_table(), &key, &fresh);
	if (!slot)
		return;
	if (fresh)
		bpf_probe_read_kernel(slot->label, sizeof(slot->label), &dev->name);
	pieces = segments_of(skb, &bytes);
	add(slot, pieces, bytes);
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(forward_leaves, struct sk_buff *skb)
{
	const struct net_device *dev;
	struct arrivals *here;
	struct arrival *from;
	u64 address;
	bool to_tun;
	u32 iif;

	skb = FOR_LOADS(struct sk_buff, skb);
	dev = skb->dev;
	iif = skb->skb_iif;
	/* A local packet, unless a tunnel sent it. */
	if (!iif && (skb->sk || (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))))
		return 0;
	to_tun = !is_physical(dev);
	if (to_tun && !is_tun(kind_of(dev)))
		return 0;
	here = arrivals_of_cpu();
	if (!here)
		return 0;
	address = address_of(here, skb);
	from = arrival_at(here, address);
	if (from->skb == address) {
		from->skb = 0;
	} else if (!iif) {
		return 0;
	} else {
		from = &here->last;
		if (from->ifindex != iif || from->net != (u64)dev->nd_net.net)
			from = NULL;
	}
	count_forwarded(skb, from, dev, to_tun);
	return 0;
}
