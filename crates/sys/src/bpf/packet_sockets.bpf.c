// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which packet and AF_XDP sockets are open, who holds them, and how many packets has each taken and
 * lost?
 *
 * An iterator over the open files of all tasks: it runs when user space reads it, and costs nothing
 * in between. A full ring drops packets without freeing them, so skb:kfree_skb does not see that,
 * and reading PACKET_STATISTICS would set the program's own figures to 0.
 *
 * Decoded in packet_sockets.rs; its row is in docs/kernel.md.
 */
#include "kernel.h"

enum { RECV = LAYOUT_CAPTURE_RECV, RING = LAYOUT_CAPTURE_RING, XDP = LAYOUT_CAPTURE_XDP };

struct packet_socket {
	u64 inode;
	u64 lost;
	u32 tgid, netns, packets, kind, waiting;
	u32 queue; /* rx queue + 1; 0: none. */
	char comm[TASK_COMM_LEN], netdev[IFNAMSIZ];
};
AT_BYTE(struct packet_socket, inode, LAYOUT_PACKET_SOCKET_INODE);
AT_BYTE(struct packet_socket, tgid, LAYOUT_PACKET_SOCKET_TGID);
AT_BYTE(struct packet_socket, netns, LAYOUT_PACKET_SOCKET_NETNS);
AT_BYTE(struct packet_socket, packets, LAYOUT_PACKET_SOCKET_PACKETS);
AT_BYTE(struct packet_socket, lost, LAYOUT_PACKET_SOCKET_LOST);
AT_BYTE(struct packet_socket, kind, LAYOUT_PACKET_SOCKET_KIND);
AT_BYTE(struct packet_socket, waiting, LAYOUT_PACKET_SOCKET_WAITING);
AT_BYTE(struct packet_socket, queue, LAYOUT_PACKET_SOCKET_QUEUE);
AT_BYTE(struct packet_socket, comm, LAYOUT_PACKET_SOCKET_COMM);
AT_BYTE(struct packet_socket, netdev, LAYOUT_PACKET_SOCKET_NETDEV);
SIZE_OF(struct packet_socket, LAYOUT_SIZEOF_PACKET_SOCKET);

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} KERNEL;

struct inode {
	unsigned long i_ino;
} KERNEL;

struct file {
	struct inode *f_inode;
} KERNEL;

struct socket {
	struct sock *sk;
} KERNEL;

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
} KERNEL;

typedef struct {
	int counter;
} KERNEL atomic_t;

struct tpacket_stats {
	u32 tp_packets;
} KERNEL;

union tpacket_stats_u {
	struct tpacket_stats stats1;
} KERNEL;

struct packet_ring_buffer {
	void *pg_vec;
} KERNEL;

struct packet_type {
	struct net_device *dev;
} KERNEL;

struct packet_sock {
	union tpacket_stats_u stats;
	struct packet_ring_buffer rx_ring;
	__be16 num; /* 0: it receives nothing. */
	atomic_t tp_drops;
	struct packet_type prot_hook;
} KERNEL;

struct xsk_queue {
	u32 cached_prod; /* Descriptors that were put into the ring. */
} KERNEL;

struct xdp_sock {
	struct net_device *dev;
	struct xsk_queue *rx;
	u16 queue_id;
	u64 rx_dropped;
	u64 rx_queue_full;
} KERNEL;

static __always_inline const struct net_device *fill_packet(const struct packet_sock *packet, struct packet_socket *found)
{
	found->packets = BPF_CORE_READ(packet, stats.stats1.tp_packets);
	found->lost = (u32)BPF_CORE_READ(packet, tp_drops.counter);
	found->kind = BPF_CORE_READ(packet, rx_ring.pg_vec) ? RING : RECV;
	found->waiting = BPF_CORE_READ((const struct sock *)packet, sk_receive_queue.qlen);
	return BPF_CORE_READ(packet, prot_hook.dev);
}

static __always_inline const struct net_device *fill_xdp(const struct xdp_sock *xdp, struct packet_socket *found)
{
	found->packets = BPF_CORE_READ(xdp, rx, cached_prod);
	found->lost = BPF_CORE_READ(xdp, rx_dropped) + BPF_CORE_READ(xdp, rx_queue_full);
	found->kind = XDP;
	found->queue = BPF_CORE_READ(xdp, queue_id) + 1;
	return BPF_CORE_READ(xdp, dev);
}

SEC("iter/task_file")
int packet_sockets(struct bpf_iter__task_file *context)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct packet_socket found = {};
	const struct net_device *dev;
	struct socket *socket;
	struct sock *sk;
	u16 family;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk)
		return 0;
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (family == AF_PACKET && BPF_CORE_READ((struct packet_sock *)sk, num))
		dev = fill_packet((void *)sk, &found);
	else if (family == AF_XDP && bpf_core_type_exists(struct xdp_sock))
		dev = fill_xdp((void *)sk, &found);
	else
		return 0;
	found.inode = BPF_CORE_READ(file, f_inode, i_ino);
	found.tgid = task->tgid;
	found.netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	BPF_CORE_READ_INTO(&found.comm, task, group_leader, comm);
	if (dev)
		bpf_probe_read_kernel(found.netdev, sizeof(found.netdev), dev->name);
	bpf_seq_write(context->meta->seq, &found, sizeof(found));
	return 0;
}
