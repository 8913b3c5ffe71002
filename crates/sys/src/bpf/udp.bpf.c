// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which consumer reads how many UDP bytes, on which CPU, from which queue?
 *
 * skb_consume_udp() ends every read of a datagram (recvmsg, io_uring; but not sockmap or tunnels,
 * which read in the softirq). It has the packet with NAPI id, queue, hash, and the CPU that
 * allocated (and so polled) it. Of three hooks only the first that attaches is used: fentry, then
 * kprobe, then the tracepoint sock_recv_length, which has only the socket.
 *
 * While a task is preempted within an fentry program, its CPU does not run that program for other
 * tasks: those reads are lost (and counted as missed). A kprobe cannot be preempted, so it comes
 * first on preemptible kernels (`preemptible` in load.rs).
 *
 * A connected socket stores the CPU that ran the protocol (sk_incoming_cpu). For other sockets a
 * second hook, where the packet is queued to the socket, records that CPU if it differs from the
 * polling CPU. It differs after a veth, and with RPS, which chooses the CPU by the queue and the
 * upper bits of the packet's hash.
 *
 * Sockets of a SO_REUSEPORT group also have a row each, which shows whether one of them gets all.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "packet.h"
#include "pieces.h"
#include <bpf/bpf_tracing.h>

enum { STEERED_HASH_BITS = 10, STEERED_QUEUE_BITS = 4 };

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

/*
 * Reads the same fields through `value`: directly if the verifier knows the types, else with
 * probe_read.
 */
#define FILL_DATAGRAM(datagram, from_sk, from_skb, value) \
	do { \
		(datagram)->packet.napi_id = value(from_skb, napi_id); \
		(datagram)->packet.queue = value(from_skb, queue_mapping); \
		(datagram)->packet.hash = value(from_skb, hash); \
		(datagram)->packet.alloc_cpu = value(from_skb, alloc_cpu); \
		(datagram)->packet.iif = value(from_skb, skb_iif); \
		(datagram)->pieces = pieces_of(from_skb); \
		(datagram)->packet.protocol = value(from_skb, protocol); \
		(datagram)->packet.header = value(from_skb, head) + value(from_skb, network_header); \
		(datagram)->sk = from_sk; \
		(datagram)->group = value(from_sk, sk_reuseport_cb); \
		(datagram)->port = value(from_sk, __sk_common.skc_num); \
		(datagram)->netns = value(from_sk, __sk_common.skc_net.net, ns.inum); \
		(datagram)->incoming_cpu = value(from_sk, __sk_common.skc_incoming_cpu); \
		(datagram)->connected = value(from_sk, __sk_common.skc_dport); \
	} while (0)
#define DIRECT_1(from, a) ((from)->a)
#define DIRECT_2(from, a, b) ((from)->a->b)
#define DIRECT_OF(a, b, name, ...) name
#define DIRECTLY(from, ...) DIRECT_OF(__VA_ARGS__, DIRECT_2, DIRECT_1, 0)(from, __VA_ARGS__)

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
	slot = slot_among(&key, 0, machine.slots / 2, &fresh);
	if (!slot) {
		count_lost();
		return;
	}
	if (fresh)
		label_reader(slot);
	add(slot, bytes, reads);
}

static __always_inline void count_datagram(const struct datagram *datagram, int bytes, u32 reads, bool approximate)
{
	struct read read = { .protocol = UDP, .poll_cpu = -1, .approximate = approximate };

	read.connected = datagram->connected ? CONNECTED : UNCONNECTED;
	find_queue(&datagram->packet, &read);
	read.protocol_cpu = approximate ? datagram->incoming_cpu : protocol_cpu_of(datagram);
	read.netns = datagram->netns;
	count_read(&read, (u64)bytes * reads, reads, (u64)datagram->pieces * reads);
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

	if (!reads)
		return 0;
	FILL_DATAGRAM(&datagram, sk, skb, DIRECTLY);
	count_datagram(&datagram, bytes, reads, false);
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

	if (!reads)
		return 0;
	FILL_DATAGRAM(&datagram, sk, skb, BPF_CORE_READ);
	count_datagram(&datagram, bytes, reads, false);
	return 0;
}
#endif

/* Since 6.3. Several queues may feed one socket: the last packet's queue counts for all. */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(udp_read_length, struct sock *sk, int bytes, int flags)
{
	u16 mapping = sk->__sk_common.skc_rx_queue_mapping;
	struct datagram datagram = { .pieces = 1 };
	u32 reads;

	if (sk->sk_protocol != IPPROTO_UDP || sk->sk_type != SOCK_DGRAM || flags & MSG_PEEK)
		return 0;
	if (sk->__sk_common.skc_family != AF_INET && sk->__sk_common.skc_family != AF_INET6)
		return 0;
	reads = datagram_weight(bytes);
	if (!reads)
		return 0;
	datagram.packet.napi_id = sk->sk_napi_id;
	datagram.packet.queue = mapping == NO_QUEUE_MAPPING ? 0 : mapping + 1;
	datagram.packet.hash = sk->__sk_common.skc_rxhash;
	datagram.packet.iif = sk->sk_rx_dst_ifindex;
	if (sk->__sk_common.skc_family == AF_INET && bpf_ntohl(sk->__sk_common.skc_rcv_saddr) >> 24 == 127)
		datagram.packet.iif = LOOPBACK_IFINDEX; /* Bound to 127.x. */
	datagram.sk = sk;
	datagram.group = sk->sk_reuseport_cb;
	datagram.port = sk->__sk_common.skc_num;
	datagram.netns = netns_of(sk);
	datagram.incoming_cpu = sk->__sk_common.skc_incoming_cpu;
	datagram.connected = sk->__sk_common.skc_dport;
	count_datagram(&datagram, bytes, reads, true);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
