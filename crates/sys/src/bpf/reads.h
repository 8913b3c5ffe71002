/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counts a read by consumer, CPU and queue. Shared by all programs that count reads. */
#pragma once
#include "count.h"
#include "flow.h"
#include "napi.h"
#include "readers.h"
#include "time.h"

TABLE(reads, 1)

enum protocol {
	TCP = LAYOUT_PROTOCOL_TCP,
	UDP = LAYOUT_PROTOCOL_UDP,
	RAW = LAYOUT_PROTOCOL_RAW,
	ICMP = LAYOUT_PROTOCOL_ICMP,
	PACKET = LAYOUT_PROTOCOL_PACKET,
	SCTP = LAYOUT_PROTOCOL_SCTP,
	TAP = LAYOUT_PROTOCOL_TAP,
};
enum connected {
	NOT_KNOWN = LAYOUT_CONNECTED_NOT_KNOWN,
	UNCONNECTED = LAYOUT_CONNECTED_NO,
	CONNECTED = LAYOUT_CONNECTED_YES,
};

struct read {
	u32 napi_id;
	u32 queue;	  /* rx queue + 1; 0: not recorded. */
	s32 protocol_cpu; /* -1: not known. */
	s32 poll_cpu;	  /* -1: not known. */
	u32 netns;
	enum protocol protocol;
	enum resolved resolved;
	bool approximate;
	enum connected connected;
	bool in_kernel; /* Read in a softirq: `current` is a bystander. */
	u8 carried;	/* Of packets that no other program counts where they leave: their IP protocol. */
};

/* Whether the flow came from a socket of this machine, or from the NAPI of a virtual device. */
static __always_inline bool is_not_of_nic(const struct origin *origin)
{
	return !origin->napi_id || is_virtual(origin->napi_id);
}

static __always_inline u32 netns_of(const struct sock *sk)
{
	return sk->__sk_common.skc_net.net->ns.inum;
}

/*
 * Without `marks` the verifier removes this code, and the map is missing. A thread that has no
 * storage now is marked at its next read.
 */
static __always_inline void mark_reader(void)
{
	if (machine.marks)
		bpf_task_storage_get(&readers, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* How many reads this one stands for; 0: do not examine it. */
static __always_inline u32 read_weight(void)
{
	struct cpu_time *time = this_cpu();

	return time ? weight_of(&time->reads) : 1;
}

static __always_inline void read_name(u64 (*name)[LAYOUT_LABEL_WORDS])
{
	struct task_struct *task = (void *)bpf_get_current_task();

	BPF_CORE_READ_INTO(name, task, group_leader, comm);
}

/* The function whose work a workqueue's thread does (current_wq_worker()); 0 for other threads. */
static __always_inline u64 work_of_thread(void)
{
	const struct task_struct *task = (void *)bpf_get_current_task();
	const struct worker *worker;

	if (!bpf_core_field_exists(struct kthread, data) || !bpf_core_field_exists(struct worker, current_func) ||
	    !(BPF_CORE_READ(task, flags) & PF_WQ_WORKER))
		return 0;
	worker = data_of_kthread(task);
	return (u64)BPF_CORE_READ(worker, current_func);
}

/* Names the slot after the thread group that reads. */
static __always_inline void label_reader(struct slot *slot)
{
	read_name(&slot->label);
}

/*
 * The slot of a thread group, in one half of the table. Where many processes have filled it, those
 * that are alike (name, cgroup, queue, CPUs) share a slot in the other half, without their number.
 */
static __always_inline struct slot *slot_of_reader(struct key *key, bool *fresh)
{
	u32 half = reads_table().slots / 2;
	struct slot *slot = slot_among(reads_table(), key, 0, half, fresh);
	u64 name[LAYOUT_LABEL_WORDS] = {};

	if (slot)
		return slot;
	if (key->word[LAYOUT_READ_TGID_NETNS] >> 32)
		read_name(&name);
	key->word[LAYOUT_READ_TGID_NETNS] &= ~0u;
	key->word[LAYOUT_READ_TGID_NETNS] |= (name[0] * 0x9e3779b97f4a7c15ull ^ name[1] * 0xff51afd7ed558ccdull) >> 32 << 32;
	key->word[LAYOUT_READ_KINDS] |= 1ull << LAYOUT_ALIKE_BIT;
	slot = slot_among(reads_table(), key, half, half, fresh);
	if (!slot)
		count_lost();
	return slot;
}

/* `reads` with `bytes` and `packets` together; of TCP, `packets` are first reads without bytes. */
static __always_inline void count_read(const struct read *read, u64 bytes, u64 reads, u64 packets)
{
	struct key key = {};
	struct slot *slot;
	bool fresh;
	u64 work = read->in_kernel ? 0 : work_of_thread(), code = 0;

	if (work) {
		code = LAYOUT_CODE_WORK;
		key.word[LAYOUT_READ_CGROUP] = work;
	} else if (!read->in_kernel) {
		mark_reader();
		/* A vhost worker reads for a virtual machine. */
		if (bpf_get_current_task_btf()->flags & PF_KTHREAD && read->protocol != TAP)
			code = LAYOUT_CODE_KTHREAD;
		key.word[LAYOUT_READ_CGROUP] = bpf_get_current_cgroup_id();
		key.word[LAYOUT_READ_TGID_NETNS] = bpf_get_current_pid_tgid() >> 32 << 32;
	}
	key.word[LAYOUT_READ_TGID_NETNS] |= read->netns;
	key.word[LAYOUT_READ_NAPI_QUEUE] = (u64)read->napi_id << 32 | read->queue;
	key.word[LAYOUT_READ_CPUS] = (u64)(u32)read->protocol_cpu << 32 | (u32)read->poll_cpu;
	key.word[LAYOUT_READ_KINDS] = (u64)read->connected << LAYOUT_CONNECTED_BIT | read->protocol << LAYOUT_PROTOCOL_BIT |
				      (u64)read->carried << LAYOUT_CARRIED_BIT |
				      read->resolved << LAYOUT_RESOLVED_BIT |
				      read->approximate << LAYOUT_APPROXIMATE_BIT | code << LAYOUT_CODE_BIT;
	slot = slot_of_reader(&key, &fresh);
	if (!slot)
		return;
	if (fresh && !read->in_kernel && !work)
		label_reader(slot);
	add(slot, bytes, reads);
	__sync_fetch_and_add(&slot->sum[2], packets);
}
