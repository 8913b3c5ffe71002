//! Every number that the eBPF programs and their decoders share.
//!
//! `build.rs` passes each constant to clang as `LAYOUT_<name>`. The C code uses the constant, or
//! asserts that its structures match (`AT_BYTE` and `SIZE_OF` in `bpf/kernel.h`). Uses nothing
//! else.
#![allow(dead_code, reason = "some numbers are used by the programs only, the list by build.rs")]

macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: usize = $value;)*
        /// All of them, by name.
        pub(crate) const DEFINES: &[(&str, usize)] = &[$((stringify!($name), $name)),*];
    };
}

layout! {
    // `struct slot` of `bpf/count.h`, in words of 8 bytes
    KEY_WORDS = 5;
    LABEL_WORDS = 2;
    SUMS = 3;
    SLOT_TAG = 0;
    SLOT_KEY = 1;
    SLOT_LABEL = SLOT_KEY + KEY_WORDS;
    SLOT_SUM = SLOT_LABEL + LABEL_WORDS;
    SLOT_WORDS = SLOT_SUM + SUMS;
    /// Tables of rarer events have the usual number of slots divided by this.
    FEWER_SLOTS = 2;
    /// The halves of a table.
    HALVES = 2;

    // words of the key in `bpf/polls.bpf.c`
    POLL_NAPI_IFINDEX = 0;
    POLL_NETNS = 1;
    /// The interrupt that scheduled it + 1, and how that is known; 0 in rows of polls.
    POLL_IRQ = 2;
    /// The first bit of how the interrupt is known, in the word `POLL_IRQ`.
    IRQ_BY_BIT = 32;
    // `enum scheduled_by` of `bpf/scheduled.h`
    BY_HANDLER = 1;
    BY_THREAD = 2;
    BY_SOFTIRQ = 3;
    // and of the key in `bpf/wakeups.bpf.c`
    WAKEUP_TGID_CPU = 0;
    /// The interrupt in which a NAPI's kthread was woken + 1, and that NAPI; 0 in other rows.
    WAKEUP_IRQ = 1;
    WAKEUP_NAPI_IFINDEX = 2;
    // and of the key in `bpf/forward.bpf.c`
    FORWARD_NAPI_QUEUE = 0;
    FORWARD_IFINDEX_NETNS = 1;
    FORWARD_QUEUE_CPU = 2;
    /// In the last word: the packet leaves through a tun or tap.
    FORWARD_TO_TUN_BIT = 63;
    // and of the key in `bpf/drops.bpf.c`
    DROP_PLACE = 0;
    DROP_REASON_ETHERTYPE = 1;
    DROP_IFINDEX_NETNS = 2;
    DROP_PORT = 3;
    DROP_CGROUP = 4;
    /// The bit of the word `DROP_PORT` that is set for packets that had not entered the stack.
    DROP_SENT_BIT = 32;
    // and of the key in `bpf/ip_packets.bpf.c`
    IP_NETNS_IFINDEX = 0;
    IP_PASSAGE_QUEUE = 1;
    /// The first bit of two fields in the word `IP_PASSAGE_QUEUE`, and their values.
    IP_PASSAGE_BIT = 32;
    IP_ENTERED = 0;
    IP_TUNNELLED = 1;
    IP_LEFT = 2;
    IP_SENT = 3;
    IP_PROTOCOL_BIT = 40;
    // and of the key in `bpf/reads.h`
    READ_CGROUP = 0;
    READ_TGID_NETNS = 1;
    READ_NAPI_QUEUE = 2;
    READ_CPUS = 3;
    READ_KINDS = 4;
    /// The first bit of each field in the word `READ_KINDS`.
    APPROXIMATE_BIT = 0;
    RESOLVED_BIT = 8;
    PROTOCOL_BIT = 16;
    CONNECTED_BIT = 24;
    ALIKE_BIT = 32;
    /// Code of the kernel that reads, and its values. Of work of a workqueue the word `READ_CGROUP`
    /// is the address of its function.
    CODE_BIT = 40;
    CODE_WORK = 1;
    CODE_KTHREAD = 2;
    /// The IP protocol of a packet that a macvtap takes.
    CARRIED_BIT = 48;
    // and of the key of a socket of a group, in `bpf/udp.bpf.c`
    MEMBER_SOCKET = 0;
    MEMBER_GROUP_PORT = 2;
    // `enum resolved` of `bpf/flow.h`
    RESOLVED_DIRECT = 1;
    RESOLVED_FLOW_HASH = 2;
    RESOLVED_FIVE_TUPLE = 3;
    RESOLVED_LOCAL = 4;
    RESOLVED_UNRESOLVED = 5;
    // `enum protocol` and `enum connected` of `bpf/reads.h`
    PROTOCOL_TCP = 1;
    PROTOCOL_UDP = 2;
    /// No protocol: a row of a socket of a group.
    PROTOCOL_MEMBER = 3;
    PROTOCOL_RAW = 4;
    PROTOCOL_ICMP = 5;
    PROTOCOL_PACKET = 6;
    PROTOCOL_SCTP = 7;
    PROTOCOL_TAP = 8;
    CONNECTED_NOT_KNOWN = 0;
    CONNECTED_NO = 1;
    CONNECTED_YES = 2;

    // `struct cpu_time` of `bpf/time.h`, in words
    TIME_NET_RX_NS = 0;
    TIME_NET_TX_NS = 1;
    TIME_OTHER_SOFTIRQ_NS = 2;
    TIME_HARDIRQ_NS = 3;
    TIME_IPI_NS = 4;
    TIME_RESCHEDULE_NS = 5;
    TIME_NET_RX_RUNS = 6;
    TIME_HARDIRQS = 7;
    TIME_IPIS = 8;
    TIME_RESCHEDULES = 9;
    TIME_WAKEUPS = 10;
    /// From here to `TIME_READS`: what is running now, and when open intervals began.
    TIME_IRQ_SINCE = 11;
    TIME_READS = 20;
    TIME_SOFTIRQS = TIME_READS + SAMPLE_WORDS;
    TIME_OTHER_POLLS = TIME_SOFTIRQS + SAMPLE_WORDS;
    TIME_DROPS = TIME_OTHER_POLLS + SAMPLE_WORDS;
    TIME_SCHEDULED = TIME_DROPS + SAMPLE_WORDS;
    TIME_WORDS = TIME_SCHEDULED + SAMPLE_WORDS + 3;
    // `struct sample` of `bpf/sample.h`, in words
    SAMPLE_EVENTS = 0;
    SAMPLE_EXAMINED = 1;
    SAMPLE_WORDS = 5;

    // `machine` of `bpf/machine.h`, in words of 4 bytes
    MACHINE_CPUS = 0;
    MACHINE_SLOTS = 1;
    MACHINE_MARKS = 2;
    MACHINE_QUOTA = 3;
    MACHINE_DROPS = 4;
    MACHINE_WORDS = 5;

    // `struct demand` of `bpf/flow.h`, in words
    DEMAND_ASKED = 0;
    DEMAND_NOTING = 1;
    DEMAND_WORDS = 2;
    // the maps of `bpf/flow.h` and `bpf/napi.h`
    SIZEOF_ORIGIN = 8;
    SIZEOF_TUPLE = 40;
    FLOWS_RECORDED = 65536;
    VIRTUAL_NAPIS = 4096;
    /// `passed` of `bpf/flows.bpf.c`: 24 bytes each.
    PASSED_BITS = 12;

    // `struct arrivals` of `bpf/forward.bpf.c`
    ARRIVALS_BITS = 6;
    SIZEOF_ARRIVAL = 32;
    SIZEOF_ARRIVALS = 8 + SIZEOF_ARRIVAL * (1 + (1 << ARRIVALS_BITS));

    // `struct arrived` of `bpf/arrive.bpf.c`, in bytes
    ARRIVED_SOURCE = 0;
    ARRIVED_TARGET = 16;
    ARRIVED_SOURCE_PORT = 32;
    ARRIVED_TARGET_PORT = 34;
    ARRIVED_HASH = 36;
    ARRIVED_IFINDEX = 40;
    ARRIVED_NETNS = 44;
    ARRIVED_QUEUE = 48;
    ARRIVED_ETHERTYPE = 50;
    ARRIVED_PROTOCOL = 52;
    ARRIVED_FLAGS = 53;
    SIZEOF_ARRIVED = 56;
    /// Its flags.
    FLAG_FRAGMENT = 1 << 0;
    FLAG_IPV6 = 1 << 1;
    FLAG_IP = 1 << 2;
    // `struct traffic`
    TRAFFIC_PACKETS = 0;
    TRAFFIC_BYTES = 8;
    SIZEOF_TRAFFIC = 16;

    // `struct packet_socket` of `bpf/packet_sockets.bpf.c`, in bytes
    PACKET_SOCKET_INODE = 0;
    PACKET_SOCKET_LOST = 8;
    PACKET_SOCKET_TGID = 16;
    PACKET_SOCKET_NETNS = 20;
    PACKET_SOCKET_PACKETS = 24;
    PACKET_SOCKET_KIND = 28;
    PACKET_SOCKET_WAITING = 32;
    PACKET_SOCKET_QUEUE = 36;
    PACKET_SOCKET_COMM = 40;
    PACKET_SOCKET_NETDEV = 56;
    SIZEOF_PACKET_SOCKET = 72;
    /// Its kinds.
    CAPTURE_RECV = 0;
    CAPTURE_RING = 1;
    CAPTURE_XDP = 2;

    // `struct where` of `bpf/stages.bpf.c`, in bytes
    WHERE_CPU = 0;
    WHERE_STACK = 4;
    SIZEOF_WHERE = 8;

    // the histogram of `bpf/runqueue.bpf.c`
    WAIT_STEPS_BITS = 5;
    WAIT_BUCKETS = 1024;
}
