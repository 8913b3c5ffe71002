/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel structures that the programs use, with only the fields that they read. libbpf
 * relocates every access to the field's offset in the running kernel (CO-RE), so no vmlinux.h is
 * needed and no layout is assumed.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef _Bool bool;
enum { false, true };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

/* include/uapi/linux/bpf.h: fixed numbers of the user-space interface. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_SK_STORAGE_GET_F_CREATE = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
};

enum { AF_INET = 2, AF_INET6 = 10, AF_PACKET = 17, AF_XDP = 44 };
enum { SOCK_DGRAM = 2 };
enum { MSG_PEEK = 2 };
enum { IPPROTO_ICMP = 1, IPPROTO_TCP = 6, IPPROTO_UDP = 17, IPPROTO_FRAGMENT = 44, IPPROTO_GRE = 47, IPPROTO_ICMPV6 = 58, IPPROTO_SCTP = 132, IPPROTO_MPTCP = 262 };
enum { ETH_P_IP = 0x0800, ETH_P_8021Q = 0x8100, ETH_P_IPV6 = 0x86dd, ETH_P_8021AD = 0x88a8 };
enum { TASK_COMM_LEN = 16, IFNAMSIZ = 16 };
/* include/net/tcp_states.h */
enum { TCP_ESTABLISHED = 1, TCP_SYN_SENT = 2, TCP_SYN_RECV = 3, TCP_FIN_WAIT1 = 4, TCP_TIME_WAIT = 6, TCP_CLOSE = 7, TCP_LAST_ACK = 9, TCP_NEW_SYN_RECV = 12 };
/* include/net/sock.h, enum sock_flags: a FIN (tcp_fin) has arrived. */
enum { SOCK_DONE = 1 };
/* include/net/sock.h: no packet of this socket recorded its queue. */
enum { NO_QUEUE_MAPPING = 0xffff };
/* include/linux/skbuff.h: skb_shared_info.gso_type. */
enum { SKB_GSO_TCPV4 = 1 << 0, SKB_GSO_TCPV6 = 1 << 4 };
/* include/linux/interrupt.h */
enum { NET_TX_SOFTIRQ = 2, NET_RX_SOFTIRQ = 3, TASKLET_SOFTIRQ = 6 };
/* include/linux/sched.h: task_struct.flags. */
enum { PF_WQ_WORKER = 0x00000020, PF_KTHREAD = 0x00200000 };
/* The loopback device is the first of every network namespace (LOOPBACK_IFINDEX). */
enum { LOOPBACK_IFINDEX = 1 };

#define KERNEL __attribute__((preserve_access_index))

/*
 * Functions of the kernel since 6.2, whose verifier guards loads. The second one's result may be
 * NULL, and be loaded from.
 */
void *bpf_cast_to_kern_ctx(void *context) __ksym __weak;
void *bpf_rdonly_cast(const void *pointer, u32 type) __ksym __weak;

/* Stands for 6.4: kernels before it refuse to tell a program whether bpf_rdonly_cast exists. */
struct bpf_iter_num {
} KERNEL;

/*
 * The same pointer, for loads only. An argument of a tracepoint's program is trusted, and since 6.3
 * the verifier searches all types of the kernel by name, up to five times, for each pointer that is
 * loaded from there: milliseconds each. The cast is one move; on x86, each load through it is
 * guarded by some instructions.
 */
#define FOR_LOADS(type, pointer) \
	((type *)(bpf_core_type_exists(struct bpf_iter_num) ? \
			  bpf_rdonly_cast(pointer, bpf_core_type_id_kernel(type)) : \
			  (void *)(pointer)))

/* Checks of a structure against user space's layout.rs. */
#define AT_BYTE(type, field, byte) \
	_Static_assert(__builtin_offsetof(type, field) == (byte), #type "." #field " is elsewhere in layout.rs")
#define AT_WORD(type, field, word) AT_BYTE(type, field, 8 * (word))
#define SIZE_OF(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size in layout.rs")

struct ns_common {
	u32 inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} KERNEL possible_net_t;

struct device {
	struct device *parent;
} KERNEL;

struct rtnl_link_ops {
	const char *kind;
} KERNEL;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
	char name[IFNAMSIZ];
	struct device dev;
	const struct rtnl_link_ops *rtnl_link_ops;
} KERNEL;

struct list_head {
	struct list_head *next, *prev;
} KERNEL;

struct napi_struct {
	struct list_head poll_list;
	struct net_device *dev;
	u32 napi_id;
} KERNEL;

/* What a CPU has to poll: NAPI instances, the one scheduled last at the end. */
struct softnet_data {
	struct list_head poll_list;
} KERNEL;

struct in6_addr {
	u8 bytes[16];
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	u16 skc_family;
	u8 skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	unsigned long skc_flags;
	u16 skc_rx_queue_mapping;
	int skc_incoming_cpu;
	u32 skc_rxhash;
} KERNEL;

struct kernfs_node {
	u64 id;
} KERNEL;

struct cgroup {
	struct kernfs_node *kn;
} KERNEL;

struct sock_cgroup_data {
	struct cgroup *cgroup; /* 5.15 */
} KERNEL;

struct sock_reuseport {
	u16 num_socks;
} KERNEL;

struct sk_buff_head {
	struct sk_buff *next;
	u32 qlen;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	struct sock_reuseport *sk_reuseport_cb;
	struct socket *sk_socket;
	struct sock_cgroup_data sk_cgrp_data;
	int sk_rx_dst_ifindex;
	u32 sk_napi_id;
	struct {
		int owned;
	} KERNEL sk_lock;
	u16 sk_protocol;
	u16 sk_type;
} KERNEL;

struct udp_sock {
	struct sk_buff_head reader_queue;
} KERNEL;

struct tcp_sock {
	u32 copied_seq;
	u32 rcv_nxt;
	u64 bytes_received;
	bool is_mptcp;
} KERNEL;

struct dst_entry {
	struct net_device *dev;
} KERNEL;

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned long _skb_refdst;
	u16 queue_mapping;
	u16 alloc_cpu;
	int skb_iif;
	u32 hash;
	u8 sw_hash : 1;
	u8 pkt_type : 3;
	u32 napi_id;
	__be16 protocol;
	u16 mac_header;
	u16 network_header;
	u16 transport_header;
	u32 len, data_len;
	u32 end; /* An offset from head, on 64 bits. */
	unsigned char *head;
	unsigned char *data;
} KERNEL;

/* include/uapi/linux/bpf.h: what programs of cgroups get; not relocated by CO-RE. */
struct __sk_buff {
	u64 others[21];
	void *sk;
};

struct skb_shared_info {
	u16 gso_size, gso_segs;
	u32 gso_type;
} KERNEL;

struct thread_info {
	u32 cpu; /* 5.16, CONFIG_THREAD_INFO_IN_TASK: the CPU that the task runs on, or ran on last. */
} KERNEL;

struct task_struct {
	struct thread_info thread_info;
	u32 flags;
	s32 tgid;
	struct task_struct *group_leader;
	char comm[TASK_COMM_LEN];
	void *set_child_tid, *worker_private; /* 5.17: the second */
} KERNEL;

/* kernel/kthread.c: what a kthread runs. */
struct kthread {
	void *data;
} KERNEL;

/* Ask first whether the field exists. */
static __always_inline void *data_of_kthread(const struct task_struct *task)
{
	const struct kthread *kthread;

	if (bpf_core_field_exists(task->worker_private))
		kthread = BPF_CORE_READ(task, worker_private);
	else
		kthread = BPF_CORE_READ(task, set_child_tid);
	return BPF_CORE_READ(kthread, data);
}

/* kernel/workqueue_internal.h: the data of a kthread that does the work of workqueues. */
struct worker {
	void *current_func;
} KERNEL;

/* kernel/sched/sched.h: what a CPU runs, and its idle task. */
struct rq {
	struct task_struct *curr;
	struct task_struct *idle;
} KERNEL;

/*
 * Registers at a kprobe (KPROBES: known for this architecture), with the names of bpf_tracing.h: a
 * kernel interface, not relocated by CO-RE.
 */
#if defined(__TARGET_ARCH_x86)
#define KPROBES
struct pt_regs {
	unsigned long r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
	unsigned long orig_rax, rip, cs, eflags, rsp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
#define KPROBES
struct user_pt_regs {
	u64 regs[31], sp, pc, pstate;
};
#endif

/* Packet headers in wire format. */
struct ipv4_header {
	u8 version_ihl, tos;
	__be16 length, id, fragment;
	u8 ttl, protocol;
	u16 checksum;
	__be32 source, target;
};

struct ipv6_header {
	__be32 version_class_label;
	__be16 length;
	u8 next, hops;
	u32 source[4], target[4];
};

/*
 * Moves behind a VLAN tag that is still in the packet: 2 bytes of it, then the inner protocol.
 * Returns the number of its bytes.
 */
static __always_inline u32 skip_tag(const unsigned char **header, __be16 *ethertype)
{
	if (*ethertype != bpf_htons(ETH_P_8021Q) && *ethertype != bpf_htons(ETH_P_8021AD))
		return 0;
	if (bpf_probe_read_kernel(ethertype, sizeof(*ethertype), *header + 2))
		*ethertype = 0;
	*header += 4;
	return 4;
}
