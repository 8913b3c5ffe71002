//! Which eBPF programs are attached, and how much they examine.

/// Default of [`Options::examined_per_s`].
const EXAMINED_PER_S: u64 = 8_000;

/// The same for [`Options::of_check`]: about 1 % of a CPU.
const EXAMINED_PER_S_BY_CHECK: u64 = 64_000;

/// Which eBPF programs to attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Softirq, hardirq and IPI time: two clock reads per event. Also counts the threads that
    /// receive work wakes.
    pub time: bool,
    /// The NIC queue of data that arrives through a veth. Examines each packet, if this machine has
    /// a veth.
    pub containers: bool,
    /// Which device forwards data to which. Examines each packet, if this machine is set up to
    /// forward.
    pub forwarding: bool,
    /// Where receive work spends its time, from samples of stacks on all CPUs. Needs `time`.
    pub stages: bool,
    /// Which rx queue received which flow, with the NIC's hash of each flow. Examines the headers
    /// of each packet.
    pub arrivals: bool,
    /// Which packets the kernel drops, and why. Runs for each dropped packet, also in pauses. An
    /// [`Observer`](crate::observe::Observer) then also reads the other network namespaces.
    pub drops: bool,
    /// What packet sockets take and lose. Each reading examines the open files of all processes.
    pub packet_sockets: bool,
    /// How many IP packets enter and leave each network namespace, and what raw and packet sockets
    /// read. Examines each packet.
    pub ip_packets: bool,
    /// How long threads that read sockets wait for a CPU. Examines every wakeup and context switch.
    pub runqueue: bool,
    /// Whether only tracepoints are used: no functions (fentry, kprobes) and no list of NAPIs.
    /// Tests set it, to count as on kernels that refuse these.
    pub only_tracepoints: bool,
    /// How many reads, polls and softirqs (each) a CPU examines per second before it samples
    /// ([`Attribution::sampling`]). Of dropped packets it examines more. `None`: all.
    pub examined_per_s: Option<u64>,
}

impl Options {
    /// The default options without sampling: each read, poll and softirq is examined.
    pub fn exact() -> Self {
        Self { examined_per_s: None, ..Self::default() }
    }

    /// The options for findings and bundles: the default ones, plus the flows of each rx queue, the
    /// dropped packets and the packet sockets.
    pub fn for_findings() -> Self {
        Self { arrivals: true, drops: true, packet_sockets: true, ..Self::default() }
    }

    /// What a whole check knows: the same, in which stages receive work spends its time, and
    /// whether UDP packets are accounted for. It samples later, because causes of losses follow
    /// from the reads of one process.
    pub fn of_check() -> Self {
        let examined_per_s = Some(EXAMINED_PER_S_BY_CHECK);
        Self { stages: true, ip_packets: true, examined_per_s, ..Self::for_findings() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time: true,
            containers: true,
            forwarding: true,
            stages: false,
            arrivals: false,
            drops: false,
            packet_sockets: false,
            ip_packets: false,
            runqueue: false,
            only_tracepoints: false,
            examined_per_s: Some(EXAMINED_PER_S),
        }
    }
}
