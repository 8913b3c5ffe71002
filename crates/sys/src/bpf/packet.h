/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which queue received a packet that is read? */
#pragma once
#include "reads.h"

struct packet {
	u32 napi_id, queue, hash;
	u16 alloc_cpu;
	int iif;
	__be16 protocol;
	const unsigned char *header; /* Its network header. NULL if only the socket is known. */
};

/*
 * Reads the same fields through `value`: DIRECTLY if the verifier knows the types, else with
 * BPF_CORE_READ.
 */
#define DIRECT_1(from, a) ((from)->a)
#define DIRECT_2(from, a, b) ((from)->a->b)
#define DIRECT_OF(a, b, name, ...) name
#define DIRECTLY(from, ...) DIRECT_OF(__VA_ARGS__, DIRECT_2, DIRECT_1, 0)(from, __VA_ARGS__)
#define FILL_PACKET(packet, from_skb, value) \
	do { \
		(packet)->napi_id = value(from_skb, napi_id); \
		(packet)->queue = value(from_skb, queue_mapping); \
		(packet)->hash = value(from_skb, hash); \
		(packet)->alloc_cpu = value(from_skb, alloc_cpu); \
		(packet)->iif = value(from_skb, skb_iif); \
		(packet)->protocol = value(from_skb, protocol); \
		(packet)->header = value(from_skb, head) + value(from_skb, network_header); \
	} while (0)

static __always_inline void find_queue(const struct packet *packet, struct read *read)
{
	struct tuple flow = {};
	struct origin *origin;
	bool known;
	u32 mark;

	read->napi_id = packet->napi_id;
	read->queue = packet->queue;
	read->resolved = DIRECT;
	if (read->napi_id > machine.cpus && !is_virtual(read->napi_id)) {
		read->poll_cpu = packet->alloc_cpu;
		return;
	}
	read->napi_id = read->queue = 0;
	if (packet->iif == LOOPBACK_IFINDEX) {
		read->resolved = LOCAL;
		return;
	}
	known = packet->header && packet_flow(packet->header, packet->protocol, &flow, &mark);
	origin = origin_of(packet->hash, known ? &flow : NULL, &read->resolved);
	if (origin && !(packet->napi_id > machine.cpus && is_not_of_nic(origin))) {
		read->napi_id = origin->napi_id;
		read->queue = origin->queue;
		/* A virtual device passes on what the sender allocated. */
		if (origin->napi_id && !origin->cleared && !is_virtual(origin->napi_id))
			read->poll_cpu = packet->alloc_cpu;
	} else if (packet->napi_id > machine.cpus) {
		/* No NIC is known to have received it: it belongs to the virtual device's NAPI. */
		read->napi_id = packet->napi_id;
		read->queue = packet->queue;
		read->resolved = DIRECT;
	} else {
		read->resolved = UNRESOLVED;
	}
}
