// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * All programs as one object: libbpf reads the kernel's BTF once for each object, and searches it
 * once for each type. First those that other programs replace where the kernel refuses them: then
 * libbpf has not loaded much when it has to begin again (load.rs).
 */
#include "drops.bpf.c"
#include "udp.bpf.c"
#include "time.bpf.c"
#include "wakeups.bpf.c"
#include "polls.bpf.c"
#include "tcp.bpf.c"
#include "copied.bpf.c"
#include "flows.bpf.c"
#include "arrive.bpf.c"
#include "forward.bpf.c"
#include "ip_packets.bpf.c"
#include "packet_sockets.bpf.c"
#include "runqueue.bpf.c"
#include "stages.bpf.c"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
