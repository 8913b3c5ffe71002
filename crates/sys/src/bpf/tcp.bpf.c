// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which consumer reads how many TCP bytes, on which CPU, from which queue?
 *
 * tcp_rcv_space_adjust() runs after every kind of read (recv, splice, MSG_TRUNC, zerocopy,
 * io_uring, kTLS), once per packet. The bytes come from the socket's own counters, so no bytes are
 * lost between two calls that are examined (sample.h), and a peek counts nothing. The last call of
 * a connection is always examined. Not seen: MPTCP (it moves data without that call: mptcp.bpf.c),
 * AF_XDP, devmem.
 *
 * Decoded in decode.rs; its row is in docs/kernel.md.
 */
#include "reads.h"
#include "window.h"
#include <bpf/bpf_tracing.h>

struct seen {
	u64 taken;	 /* What taken_from() returned at the last read. */
	u32 physical_id; /* A napi id that we know to be a NIC's, to ask once only. */
	u32 window;	 /* The window in which this was recorded. Invalid in a later one. */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct seen);
} sockets SEC(".maps");

/*
 * By cookie, for sockets without storage. Kernels that allocate it with kmalloc_nolock() (such as
 * 7.2) may fail to do so.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct seen);
} sockets_without_storage SEC(".maps");

static __always_inline struct seen *seen_before(struct sock *sk)
{
	struct seen *seen = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	u64 cookie;

	if (seen)
		return seen;
	cookie = bpf_get_socket_cookie(sk);
	return bpf_map_lookup_elem(&sockets_without_storage, &cookie);
}

static __always_inline struct seen *seen_of(struct sock *sk)
{
	struct seen *seen = seen_before(sk), nothing = {};
	u64 cookie;

	if (seen)
		return seen;
	seen = bpf_sk_storage_get(&sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (seen)
		return seen;
	cookie = bpf_get_socket_cookie(sk);
	bpf_map_update_elem(&sockets_without_storage, &cookie, &nothing, BPF_ANY);
	return bpf_map_lookup_elem(&sockets_without_storage, &cookie);
}

/*
 * Bytes read from the socket since it was established: received minus unread. 64 bits, so sequence
 * numbers may wrap. bytes_received counts the FIN as one byte, and so does splice (tcp_read_sock).
 */
static __always_inline u64 taken_from(const struct sock *sk, const struct tcp_sock *tcp)
{
	u32 unread = tcp->rcv_nxt - tcp->copied_seq;
	bool fin_taken = !unread && sk->__sk_common.skc_flags & 1ul << SOCK_DONE;

	return tcp->bytes_received - unread - fin_taken;
}

static __always_inline void queue_of_socket(const struct sock *sk, struct seen *seen, struct read *read)
{
	u16 mapping = sk->__sk_common.skc_rx_queue_mapping;
	u32 napi_id = sk->sk_napi_id;
	u32 queue = mapping == NO_QUEUE_MAPPING ? 0 : mapping + 1;
	struct tuple flow = {};
	struct origin *origin;
	bool known;

	read->napi_id = napi_id;
	read->queue = queue;
	read->resolved = DIRECT;
	if (read->napi_id == seen->physical_id && read->napi_id)
		return;
	if (read->napi_id > machine.cpus && !is_virtual(read->napi_id)) {
		seen->physical_id = read->napi_id;
		return;
	}
	read->napi_id = read->queue = 0;
	if (sk->sk_rx_dst_ifindex == LOOPBACK_IFINDEX) {
		read->resolved = LOCAL;
		return;
	}
	known = socket_flow(sk, IPPROTO_TCP, &flow);
	origin = origin_of(sk->__sk_common.skc_rxhash, known ? &flow : NULL, &read->resolved);
	if (origin && !(napi_id > machine.cpus && is_not_of_nic(origin))) {
		read->napi_id = origin->napi_id;
		read->queue = origin->queue;
	} else if (napi_id > machine.cpus) {
		/* No NIC is known to have received it: it belongs to the virtual device's NAPI. */
		read->napi_id = napi_id;
		read->queue = queue;
		read->resolved = DIRECT;
	} else {
		read->resolved = UNRESOLVED;
	}
}

/*
 * Counts the bytes read since the last call, for the running thread. Those of a first call are not
 * known.
 */
static __always_inline void count_taken(const struct sock *sk, const struct tcp_sock *tcp, struct seen *seen, u32 reads)
{
	struct read read = { .protocol = TCP, .poll_cpu = -1 };
	u64 taken = taken_from(sk, tcp), bytes = taken - seen->taken;
	u32 window = window_now(), first = 0;

	seen->taken = taken;
	if (seen->window != window) {
		/* Established before this program was attached: this read sets the baseline. */
		seen->window = window;
		bytes = 0;
		first = reads;
	} else if (!bytes) {
		return;
	}
	sk = FOR_LOADS(struct sock, sk);
	queue_of_socket(sk, seen, &read);
	read.protocol_cpu = sk->__sk_common.skc_incoming_cpu;
	read.netns = netns_of(sk);
	/*
	 * A reader owns the socket lock; softirq code (sockmap, in-kernel servers) holds only its
	 * spinlock.
	 */
	read.in_kernel = !sk->sk_lock.owned;
	count_read(&read, bytes, reads, first);
}

static __always_inline void after_read(struct sock *sk)
{
	u32 reads = read_weight();
	struct tcp_sock *tcp;
	struct seen *seen;

	if (!reads)
		return;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return;
	seen = seen_of(sk);
	if (seen)
		count_taken(sk, tcp, seen, reads);
	else
		count_lost();
}

SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(tcp_read, struct sock *sk)
{
	after_read(sk);
	return 0;
}

/* A connection that begins while the program is attached counts from its first byte. */
static __always_inline void begin(struct sock *sk, bool afresh)
{
	struct seen *seen = seen_of(sk);

	if (!seen) {
		count_lost();
		return;
	}
	seen->window = window_now();
	if (afresh)
		seen->taken = 0; /* connect() again, on a socket that was disconnected. */
}

/*
 * A read is missed while another read is preempted on its CPU (see udp.bpf.c). Its bytes are
 * counted here at the latest.
 */
static __always_inline void end(struct sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct seen *seen = seen_before(sk);

	/* The kernel has moved the data of a subflow to another socket. */
	if (!tcp || (bpf_core_field_exists(tcp->is_mptcp) && tcp->is_mptcp))
		return;
	if (seen && sk->sk_lock.owned)
		count_taken(sk, tcp, seen, 0);
}

/*
 * Two programs: packets of other connections can interrupt a close, and a running program is not
 * started again on the same CPU. A missed beginning would turn the first read into the baseline.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_begins, struct sock *sk, int before, int after)
{
	if (sk->sk_protocol != IPPROTO_TCP)
		return 0;
	if (after == TCP_SYN_SENT)
		begin(sk, true);
	else if (after == TCP_SYN_RECV || (after == TCP_ESTABLISHED && (before == TCP_SYN_SENT || before == TCP_SYN_RECV)))
		begin(sk, false);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_ends, struct sock *sk, int before, int after)
{
	if (sk->sk_protocol == IPPROTO_TCP && (after == TCP_FIN_WAIT1 || after == TCP_LAST_ACK || after == TCP_CLOSE))
		end(sk);
	return 0;
}
