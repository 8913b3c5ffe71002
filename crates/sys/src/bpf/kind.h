/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Kinds of netdevs (IFLA_INFO_KIND). */
#pragma once
#include "kernel.h"

/* The first eight letters: four and four. */
#define KIND(first, second) ((u64)(first) << 32 | (second))

/* The kind of this name in the form of KIND; 0: no name, or a wrong address. */
static __always_inline u64 kind_named(const char *name)
{
	u64 kind = 0;

	if (name)
		bpf_probe_read_kernel(&kind, sizeof(kind), name);
	return bpf_be64_to_cpu(kind);
}

/* The kind of a netdev whose type the verifier knows; 0: a device. */
static __always_inline u64 kind_of(const struct net_device *dev)
{
	const struct rtnl_link_ops *ops = dev->rtnl_link_ops;

	return ops ? kind_named(ops->kind) : 0;
}

/* A process reads what is sent through it, or the kernel for a virtual machine (vhost). */
static __always_inline bool is_tun(u64 kind)
{
	return kind >> 32 == 'tun\0';
}

/* The same, but it takes what the netdev below it receives. */
static __always_inline bool is_macvtap(u64 kind)
{
	return kind == KIND('macv', 'tap\0') || kind >> 8 == KIND('ipvt', 'ap\0\0') >> 8;
}
