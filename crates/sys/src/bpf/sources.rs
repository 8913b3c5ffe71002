//! Which eBPF programs count what, and which replace those that a kernel refuses.

use std::fs;

use netsilo_model::snapshot::attribution::OTHER_SOCKETS;
use netsilo_model::snapshot::{drops, ip_packets, packet_sockets, runqueue};

use crate::bpf::options::Options;

/// Programs that count one thing together.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The name in `Hook::quantity`.
    pub(crate) quantity: &'static str,
    /// Programs in order of preference. All of a variant run, or the next one does; of the last one
    /// those run that the kernel accepts.
    pub(crate) variants: Vec<&'static [&'static str]>,
    /// Maps that are created for these programs; those of [`LoadContext`] exist.
    ///
    /// [`LoadContext`]: crate::bpf::load::LoadContext
    pub(crate) maps: &'static [&'static str],
    /// Whether its hooks are listed as refused when the next variant runs, because that counts less
    /// or with more doubt.
    pub(crate) lists_refused: bool,
    /// Whether it needs the state that [`SOFTIRQS`] keep.
    pub(crate) needs_softirqs: bool,
}

/// The map of reading threads. Exists with the programs of `bpf/runqueue.bpf.c`; the programs that
/// count reads fill it.
pub(crate) const READERS: &str = "readers";

/// `Hook::quantity` of the stages.
pub(crate) const STAGES: &str = "stages";
/// `Hook::quantity` of the flows behind a veth.
pub(crate) const FLOWS: &str = "flows behind veth";

/// They record which softirq each CPU is running.
pub(crate) const SOFTIRQS: &[&str] = &["softirq_entry", "softirq_exit"];

/// x86 has a tracepoint for each interrupt vector; other architectures have one pair for all.
const IPIS: &[&str] = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    &[
        "call_function_entry",
        "call_function_exit",
        "call_function_single_entry",
        "call_function_single_exit",
        "reschedule_entry",
        "reschedule_exit",
    ]
} else {
    &["ipi_entry", "ipi_exit"]
};

/// The programs at the start and the end of a reschedule IPI.
pub(crate) const RESCHEDULES: &[&str] = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    &["reschedule_entry", "reschedule_exit"]
} else {
    IPIS
};

impl Source {
    /// What to attach at once. The softirq hooks come before those that need them.
    pub(crate) fn all(options: Options) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add =
            |wanted, sources: Vec<Self>| all.extend(sources.into_iter().filter(|_| wanted));
        add(options.runqueue, vec![Self::runqueue()]);
        add(true, vec![Self::new("napi polls", &["napi_poll"]), Self::tcp()]);
        add(true, vec![Self::udp(options.only_tracepoints)]);
        add(options.time, Self::time(options.only_tracepoints));
        add(options.arrivals, vec![Self::new("flows by rx queue", &["flow_arrives"])]);
        let programs = &["packet_enters", "packet_leaves"];
        add(options.ip_packets, vec![Self::new(ip_packets::QUANTITY, programs)]);
        add(options.drops, vec![Self::drops()]);
        let iterator = Self::new(packet_sockets::QUANTITY, &["packet_sockets"]);
        add(options.packet_sockets, vec![iterator]);
        let maps: &[_] = &["stacks", "samples", "samples_lost"];
        let stages = Self { maps, needs_softirqs: true, ..Self::new(STAGES, &["tick"]) };
        add(options.stages, vec![stages]);
        all
    }

    fn tcp() -> Self {
        let programs = &["tcp_begins", "tcp_ends", "tcp_read"];
        Self { maps: &["sockets", "sockets_without_storage"], ..Self::new("tcp bytes", programs) }
    }

    fn udp(only_tracepoints: bool) -> Self {
        let mut variants: Vec<&[_]> =
            vec![&["udp_read_length", "udp_arrives"], &["udp_read_length"]];
        if !only_tracepoints {
            variants.insert(0, &["udp_read", "udp_queued"]);
        }
        if !only_tracepoints && cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            let at = if is_preemptible() { 0 } else { 1 };
            variants.insert(at, &["udp_read_kprobe", "udp_queued_kprobe"]);
        }
        Self { variants, maps: &["steered", "queues"], ..Self::new("udp bytes", &[]) }
    }

    /// Refused variants are not listed: the next one counts the same packets, with less detail.
    fn drops() -> Self {
        let variants: Vec<&[_]> = vec![&["drop_of_socket"], &["drop_with_reason"], &["drop"]];
        Self { variants, lists_refused: false, ..Self::new(drops::QUANTITY, &[]) }
    }

    fn time(only_tracepoints: bool) -> Vec<Self> {
        // With the list of NAPIs that each CPU has to poll, and where programs cannot read it.
        let mut variants: Vec<&[_]> = vec![&["irq_entry_only", "irq_exit_only", "net_rx_raised"]];
        if !only_tracepoints {
            variants.insert(0, &["irq_handler_entry", "irq_handler_exit"]);
        }
        // The second one does not report which wakeups found the CPU idle.
        let wakeups = vec![&["waking"][..], &["waking_only"]];
        vec![
            Self::new("softirq time", SOFTIRQS),
            Self { variants, lists_refused: false, ..Self::new("hardirq time", &[]) },
            Self::new("ipi time", IPIS),
            Self { variants: wakeups, needs_softirqs: true, ..Self::new("wakeups", &[]) },
        ]
    }

    /// Both programs or none.
    fn runqueue() -> Self {
        let variants: Vec<&[_]> = vec![&["reader_wakes", "reader_runs"], &[]];
        Self { variants, maps: &[READERS], ..Self::new(runqueue::QUANTITY, &[]) }
    }

    /// For machines with a device without hardware.
    pub(crate) fn flows() -> Self {
        Self { maps: &["passed"], ..Self::new(FLOWS, &["flow_enters"]) }
    }

    /// For machines that forward.
    pub(crate) fn forward() -> Self {
        Self::new("forwarded packets", &["forward_enters", "forward_leaves"])
    }

    /// For machines with readers of MPTCP, SCTP, raw and packet sockets, or taps.
    pub(crate) fn copied() -> Self {
        Self::new(OTHER_SOCKETS, &["copied_read"])
    }

    fn new(quantity: &'static str, programs: &'static [&'static str]) -> Self {
        Self {
            quantity,
            variants: vec![programs],
            maps: &[],
            lists_refused: true,
            needs_softirqs: false,
        }
    }

    /// The programs to load now.
    pub(crate) fn programs(&self) -> &'static [&'static str] {
        self.variants.first().copied().unwrap_or_default()
    }
}

/// Whether the kernel itself is preemptible. debugfs shows `none voluntary (full) lazy`.
fn is_preemptible() -> bool {
    let models = fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    models.contains("(full)") || models.contains("(lazy)")
}
