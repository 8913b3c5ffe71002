// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which consumer reads how many UDP bytes, on which CPU, from which queue?
 *
 * skb_consume_udp() ends every read of a datagram (recvmsg, io_uring; but not sockmap or tunnels,
 * which read in the softirq). It has the packet with NAPI id, queue, hash, and the CPU that
 * allocated (and so polled) it. Of three hooks only the first that attaches is used: fentry, then
 * kprobe, then the tracepoint sock_recv_length.
 *
 * While a task is preempted within an fentry program, its CPU does not run that program for other
 * tasks: those reads are lost (and counted as missed). A kprobe cannot be preempted, so it comes
 * first on preemptible kernels (`is_preemptible` in sources.rs).
 *
 * A connected socket stores the CPU that ran the protocol (sk_incoming_cpu). For other sockets a
 * second hook, where the packet is queued to the socket, records that CPU if it differs from the
 * polling CPU. It differs after a veth, and with RPS, which chooses the CPU by the queue and the
 * upper bits of the packet's hash.
 *
 * sock_recv_length runs when the packet is gone. Packets are read in the order in which they were
 * queued, so each read records the first unread packet for the next read. If all packets were read,
 * cgroup_skb/ingress at the root of cgroup v2 records the next one before it is queued. The record
 * may be that of a neighbouring packet if in the same microsecond two threads read a socket, two
 * CPUs deliver to it, or one packet is queued and another read while the next arrives. Without a
 * record (no cgroup v2) the socket's values count. The kernel stores them once per socket, so the
 * row is marked approximate.
 *
 * Sockets of a SO_REUSEPORT group also have a row each, which shows whether one of them gets all.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "packet.h"
#include "pieces.h"
#include "window.h"
#include <bpf/bpf_tracing.h>

enum { STEERED_HASH_BITS = 10, STEERED_QUEUE_BITS = 4 };
/* Packets: a reader does not take as many between the arrival of the next one and its queueing. */
enum { SHORT_QUEUE = 8 };
/* Of programs of cgroups: the packet is accepted. */
enum { PASS = 1 };

/* Protocol CPUs of packets that another CPU polled: CPU + 1, or 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << (STEERED_HASH_BITS + STEERED_QUEUE_BITS));
	__type(key, u32);
	__type(value, u32);
} steered SEC(".maps");

struct datagram {
	struct packet packet;
	u32 pieces; /* Packets that GRO joined. */
	/* From the socket. */
	const struct sock *sk;
	struct sock_reuseport *group;
	u16 port;
	u32 netns;
	s32 incoming_cpu;
	bool connected;
};

#define FILL_SOCKET(datagram, from_sk, value) \
	do { \
		(datagram)->sk = from_sk; \
		(datagram)->group = value(from_sk, sk_reuseport_cb); \
		(datagram)->port = value(from_sk, __sk_common.skc_num); \
		(datagram)->netns = value(from_sk, __sk_common.skc_net.net, ns.inum); \
		(datagram)->incoming_cpu = value(from_sk, __sk_common.skc_incoming_cpu); \
		(datagram)->connected = value(from_sk, __sk_common.skc_dport); \
	} while (0)
#define FILL_DATAGRAM(datagram, from_sk, from_skb, value) \
	do { \
		FILL_PACKET(&(datagram)->packet, from_skb, value); \
		(datagram)->pieces = pieces_of(from_skb); \
		FILL_SOCKET(datagram, from_sk, value); \
	} while (0)

static __always_inline u32 *steered_to(u32 hash, u32 queue)
{
	u32 index = hash >> (32 - STEERED_HASH_BITS) << STEERED_QUEUE_BITS | (queue & ((1 << STEERED_QUEUE_BITS) - 1));

	return bpf_map_lookup_elem(&steered, &index);
}

static __always_inline s32 protocol_cpu_of(const struct datagram *datagram)
{
	u32 *cpu;

	/* Not yet set on a socket that was connected after this datagram arrived. */
	if (datagram->connected && datagram->incoming_cpu >= 0)
		return datagram->incoming_cpu;
	cpu = steered_to(datagram->packet.hash, datagram->packet.queue);
	return cpu && *cpu ? *cpu - 1 : datagram->packet.alloc_cpu;
}

/* How many reads this one stands for; 0: do not examine it. `bytes` is negative for a peek. */
static __always_inline u32 datagram_weight(int bytes)
{
	return bytes < 0 ? 0 : read_weight();
}

static __always_inline void count_member(const struct datagram *datagram, u64 bytes, u64 reads)
{
	const struct sock_reuseport *group = datagram->group;
	const struct sock *sk = datagram->sk;
	struct key key = {};
	struct slot *slot;
	bool fresh;

	/* The address of its file tells sockets apart. The verifier hashes no pointer, only a copy. */
	key.word[LAYOUT_MEMBER_SOCKET] = (u64)BPF_CORE_READ(sk, sk_socket);
	key.word[LAYOUT_READ_TGID_NETNS] = bpf_get_current_pid_tgid() >> 32 << 32 | datagram->netns;
	key.word[LAYOUT_MEMBER_GROUP_PORT] = (u64)BPF_CORE_READ(group, num_socks) << 32 | datagram->port;
	key.word[LAYOUT_READ_KINDS] = LAYOUT_PROTOCOL_MEMBER << LAYOUT_PROTOCOL_BIT;
	slot = slot_among(reads_table(), &key, 0, reads_table().slots / 2, &fresh);
	if (!slot) {
		count_lost();
		return;
	}
	if (fresh)
		label_reader(slot);
	add(slot, bytes, reads);
}

static __always_inline void origin_of_datagram(const struct datagram *datagram, struct read *read)
{
	read->poll_cpu = -1;
	find_queue(&datagram->packet, read);
	read->protocol_cpu = protocol_cpu_of(datagram);
}

/* `read` has the datagram's origin. */
static __always_inline void count_datagram(const struct datagram *datagram, struct read *read, int bytes, u32 reads)
{
	read->protocol = UDP;
	read->connected = datagram->connected ? CONNECTED : UNCONNECTED;
	read->netns = datagram->netns;
	count_read(read, (u64)bytes * reads, reads, (u64)datagram->pieces * reads);
	if (datagram->group)
		count_member(datagram, (u64)bytes * reads, reads);
}

static __always_inline void note_steering(u32 alloc_cpu, u32 hash, u32 queue)
{
	u32 cpu = bpf_get_smp_processor_id(), *noted = steered_to(hash, queue);
	u32 steered = cpu == alloc_cpu ? 0 : cpu + 1;

	if (noted && *noted != steered)
		*noted = steered;
}

SEC("fentry/__udp_enqueue_schedule_skb")
int BPF_PROG(udp_queued, struct sock *sk, struct sk_buff *skb)
{
	if (!sk->__sk_common.skc_dport)
		note_steering(skb->alloc_cpu, skb->hash, skb->queue_mapping);
	return 0;
}

SEC("fentry/skb_consume_udp")
int BPF_PROG(udp_read, struct sock *sk, struct sk_buff *skb, int bytes)
{
	u32 reads = datagram_weight(bytes);
	struct datagram datagram;
	struct read read = {};

	if (!reads)
		return 0;
	FILL_DATAGRAM(&datagram, sk, skb, DIRECTLY);
	origin_of_datagram(&datagram, &read);
	count_datagram(&datagram, &read, bytes, reads);
	return 0;
}

#ifdef KPROBES
SEC("kprobe/__udp_enqueue_schedule_skb")
int BPF_KPROBE(udp_queued_kprobe, struct sock *sk, struct sk_buff *skb)
{
	if (!BPF_CORE_READ(sk, __sk_common.skc_dport))
		note_steering(BPF_CORE_READ(skb, alloc_cpu), BPF_CORE_READ(skb, hash), BPF_CORE_READ(skb, queue_mapping));
	return 0;
}

SEC("kprobe/skb_consume_udp")
int BPF_KPROBE(udp_read_kprobe, struct sock *sk, struct sk_buff *skb, int bytes)
{
	u32 reads = datagram_weight(bytes);
	struct datagram datagram;
	struct read read = {};

	if (!reads)
		return 0;
	FILL_DATAGRAM(&datagram, sk, skb, BPF_CORE_READ);
	origin_of_datagram(&datagram, &read);
	count_datagram(&datagram, &read, bytes, reads);
	return 0;
}
#endif

/* Where a packet came from that is not yet read. */
struct unread {
	struct read origin;
	u32 pieces;
	u32 reads; /* How many reads there were when this was recorded. */
};

struct queue {
	u32 window; /* Records of an earlier window are invalid. */
	u32 reads;
	struct unread first; /* The packet after the one that was read, if it was queued by then; */
	struct unread next;  /* else the first packet that arrived after that read; */
	struct unread last;  /* else it is on its way, and the last packet that arrived. */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct queue);
} queues SEC(".maps");

static __always_inline bool is_udp_socket(const struct sock *sk)
{
	u16 family;

	if (!sk || sk->sk_protocol != IPPROTO_UDP || sk->sk_type != SOCK_DGRAM)
		return false;
	family = sk->__sk_common.skc_family;
	return family == AF_INET || family == AF_INET6;
}

/* 127.x or ::1. */
static __always_inline bool is_bound_to_loopback(const struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;
	u32 address[4];

	if (common->skc_family == AF_INET)
		return bpf_ntohl(common->skc_rcv_saddr) >> 24 == 127;
	bpf_probe_read_kernel(address, sizeof(address), &common->skc_v6_rcv_saddr);
	return !(address[0] | address[1] | address[2]) && address[3] == bpf_htonl(1);
}

static __always_inline const struct udp_sock *udp_of(const struct sock *sk)
{
	return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct udp_sock));
}

static __always_inline bool is_short(const struct sock *sk)
{
	return udp_of(sk)->reader_queue.qlen + sk->sk_receive_queue.qlen < SHORT_QUEUE;
}

/* The first packet that is queued. Reads without the lock: a queue may seem to be empty. */
static __always_inline const struct sk_buff *first_queued(const struct sock *sk)
{
	const struct udp_sock *udp = udp_of(sk);
	const struct sk_buff *first = udp->reader_queue.next;

	if (first && (const void *)first != &udp->reader_queue)
		return first;
	first = sk->sk_receive_queue.next;
	return (const void *)first == &sk->sk_receive_queue ? NULL : first;
}

static __always_inline struct queue *queue_of(void *sk)
{
	struct queue *queue = bpf_sk_storage_get(&queues, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	u32 window = window_now();

	if (queue && queue->window != window) {
		queue->window = window;
		__sync_fetch_and_add(&queue->reads, 2 * SHORT_QUEUE);
	}
	return queue;
}

static __always_inline void record(struct unread *unread, const struct sock *sk, const struct sk_buff *skb, u32 reads)
{
	struct datagram datagram;
	struct read origin = {};

	FILL_DATAGRAM(&datagram, sk, skb, DIRECTLY);
	origin_of_datagram(&datagram, &origin);
	unread->origin = origin;
	unread->pieces = datagram.pieces;
	barrier(); /* A reader that sees `reads` sees the rest. */
	unread->reads = reads;
	barrier();
}

/* The record of the packet that a reader has just taken, or NULL. */
static __always_inline const struct unread *record_of_taken(const struct queue *queue)
{
	u32 reads = queue->reads;

	if (queue->first.reads == reads)
		return &queue->first;
	if (queue->next.reads == reads)
		return &queue->next;
	return reads - queue->last.reads < SHORT_QUEUE ? &queue->last : NULL;
}

/* Without a record: what the socket stored, perhaps of another packet. */
static __always_inline void guess_origin(struct datagram *datagram, const struct sock *sk, struct read *read)
{
	u16 mapping = sk->__sk_common.skc_rx_queue_mapping;

	datagram->pieces = 1;
	datagram->packet.napi_id = sk->sk_napi_id;
	datagram->packet.queue = mapping == NO_QUEUE_MAPPING ? 0 : mapping + 1;
	datagram->packet.hash = sk->__sk_common.skc_rxhash;
	datagram->packet.iif = is_bound_to_loopback(sk) ? LOOPBACK_IFINDEX : sk->sk_rx_dst_ifindex;
	origin_of_datagram(datagram, read);
	read->protocol_cpu = datagram->incoming_cpu;
	read->approximate = true;
}

SEC("cgroup_skb/ingress")
int udp_arrives(struct __sk_buff *context)
{
	const struct sk_buff *skb = FOR_LOADS(struct sk_buff, bpf_cast_to_kern_ctx(context)), *first;
	const struct sock *sk = skb->sk;
	void *owner = context->sk; /* The same, as the helper below takes it. */
	struct queue *queue;
	u32 reads;

	if (!owner || !is_udp_socket(sk))
		return PASS;
	if (!sk->__sk_common.skc_dport)
		note_steering(skb->alloc_cpu, skb->hash, skb->queue_mapping);
	if (!is_short(sk))
		return PASS; /* The reader sees the next packet in the queue. */
	queue = queue_of(owner);
	if (!queue)
		return PASS;
	reads = queue->reads;
	/* Before `last`, which a reader may take for an earlier packet until then. */
	if (queue->first.reads != reads && queue->next.reads != reads) {
		first = first_queued(sk);
		record(&queue->next, sk, first ? first : skb, reads);
	}
	record(&queue->last, sk, skb, reads);
	return PASS;
}

/* Since 6.3. */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(udp_read_length, struct sock *trusted, int bytes, int flags)
{
	const struct sock *sk = FOR_LOADS(struct sock, trusted);
	struct datagram datagram = {};
	struct read origin = {};
	const struct unread *unread;
	const struct sk_buff *first;
	struct queue *queue;
	u32 reads;

	if (bytes < 0 || flags & MSG_PEEK || !is_udp_socket(sk))
		return 0;
	reads = read_weight();
	queue = queue_of(trusted);
	if (reads) {
		FILL_SOCKET(&datagram, sk, DIRECTLY);
		unread = queue ? record_of_taken(queue) : NULL;
		if (unread) {
			origin = unread->origin;
			datagram.pieces = unread->pieces;
		} else {
			guess_origin(&datagram, sk, &origin);
		}
		count_datagram(&datagram, &origin, bytes, reads);
	}
	if (!queue)
		return 0;
	/* A full barrier: packets that arrive before it may be seen queued, later ones see it. */
	reads = __sync_fetch_and_add(&queue->reads, 1) + 1;
	first = first_queued(sk);
	if (first)
		record(&queue->first, sk, first, reads);
	return 0;
}
