//! Every number that the eBPF programs and their decoders both know.
//!
//! `build.rs` passes each constant to clang as `LAYOUT_<name>`; the C code uses it, or asserts it
//! of its structures (`AT_BYTE` and `SIZE_OF` in `bpf/kernel.h`). Uses nothing else.
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
    /// The tables of a pair.
    HALVES = 2;

    // words of the key in `bpf/polls.bpf.c`
    POLL_NAPI_IFINDEX = 0;
    POLL_NETNS = 1;
    // and of the key in `bpf/wakeups.bpf.c`
    WAKEUP_TGID_CPU = 0;
    // and of the key in `bpf/forward.bpf.c`
    FORWARD_NAPI_QUEUE = 0;
    FORWARD_IFINDEX_NETNS = 1;
    FORWARD_QUEUE_CPU = 2;
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
    // `enum resolved` of `bpf/flow.h`
    DIRECT = 1;
    FLOW_HASH = 2;
    FIVE_TUPLE = 3;
    LOCAL = 4;
    UNRESOLVED = 5;
    // `enum protocol` and `enum connected` of `bpf/reads.h`
    TCP = 1;
    UDP = 2;
    NOT_KNOWN = 0;
    UNCONNECTED = 1;
    CONNECTED = 2;

    // `struct cpu_time` of `bpf/time.h`, in words
    NET_RX_NS = 0;
    NET_TX_NS = 1;
    OTHER_SOFTIRQ_NS = 2;
    HARDIRQ_NS = 3;
    IPI_NS = 4;
    RESCHEDULE_NS = 5;
    NET_RX_RUNS = 6;
    HARDIRQS = 7;
    IPIS = 8;
    RESCHEDULES = 9;
    WAKEUPS = 10;
    /// From here to `READS`: what runs now, and the starts of open intervals.
    IRQ_SINCE = 11;
    READS = 17;
    SOFTIRQS = READS + SAMPLE_WORDS;
    OTHER_POLLS = SOFTIRQS + SAMPLE_WORDS;
    TIME_WORDS = OTHER_POLLS + SAMPLE_WORDS;
    // `struct sample` of `bpf/sample.h`, in words
    EVENTS = 0;
    EXAMINED = 1;
    SAMPLE_WORDS = 5;

    // `machine` of `bpf/machine.h`, in words of 4 bytes
    MACHINE_CPUS = 0;
    MACHINE_SLOTS = 1;
    MACHINE_MARKS = 2;
    MACHINE_QUOTA = 3;
    MACHINE_WORDS = 4;

    // `struct demand` of `bpf/flow.h`, in words
    ASKED = 0;
    NOTING = 1;
    DEMAND_WORDS = 2;
    // the maps of `bpf/flow.h` and `bpf/napi.h`
    ORIGIN_BYTES = 8;
    TUPLE_BYTES = 40;
    FLOWS_RECORDED = 65536;
    VIRTUAL_NAPIS = 4096;

    // `struct arrivals` of `bpf/forward.bpf.c`
    ARRIVALS_BITS = 6;
    ARRIVAL_BYTES = 32;
    ARRIVALS_BYTES = 8 + ARRIVAL_BYTES * (1 + (1 << ARRIVALS_BITS));

    // `struct arrived` of `bpf/arrive.bpf.c`, in bytes
    SOURCE = 0;
    TARGET = 16;
    SOURCE_PORT = 32;
    TARGET_PORT = 34;
    HASH = 36;
    IFINDEX = 40;
    NETNS = 44;
    QUEUE = 48;
    ETHERTYPE = 50;
    PROTOCOL = 52;
    FLAGS = 53;
    ARRIVED_BYTES = 56;
    /// Its flags.
    FRAGMENT = 1 << 0;
    IPV6 = 1 << 1;
    IP = 1 << 2;
    // `struct traffic`
    PACKETS = 0;
    BYTES = 8;
    TRAFFIC_BYTES = 16;

    // `struct where` of `bpf/stages.bpf.c`, in bytes
    CPU = 0;
    STACK = 4;
    WHERE_BYTES = 8;

    // the histogram of `bpf/runqueue.bpf.c`
    STEPS_BITS = 5;
    BUCKETS = 1024;
}
