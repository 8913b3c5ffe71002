//! The CPU time that counting takes. The kernel's statistics show it if they are enabled; otherwise
//! it is estimated from the number of events.

use std::fs;

use netsilo_model::snapshot::attribution::{Attribution, CountingCost};

/// CPU time to call a program that returns at once.
const CALL_NS: u64 = 40;
/// Additional CPU time of an examined read, and of any other examined event. A softirq counts three
/// times: at its start, with its poll, and at its end (evidence/performance.md).
const READ_NS: u64 = 100;
const EXAMINED_NS: u64 = 45;

/// Events that are not in an [`Attribution`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unlisted {
    /// Wakeups of any thread.
    pub(crate) wakeups: u64,
    /// Numbers of programs that run for each packet, and for each read.
    pub(crate) packet_programs: u64,
    pub(crate) read_programs: u64,
}

/// Whether the kernel measures the run time of eBPF programs (`kernel.bpf_stats_enabled`).
pub(crate) fn is_measured() -> bool {
    fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|value| value.trim() == "1")
}

/// Estimates the cost of the events of an attribution. One program runs at the start of a softirq
/// or interrupt and one at its end.
pub(crate) fn estimate(attribution: &Attribution, unlisted: Unlisted) -> CountingCost {
    let sampling = &attribution.sampling;
    let sum = |counts: &mut dyn Iterator<Item = u64>| counts.sum::<u64>();
    let polls = sum(&mut attribution.polls.iter().map(|poll| poll.polls));
    let packets = sum(&mut attribution.polls.iter().map(|poll| poll.packets));
    let times = attribution.cpu_time.values();
    let interrupts = sum(&mut times
        .map(|time| time.hardirqs + time.ipis + time.reschedules.map_or(0, |all| all.count)));
    // A dropped packet takes as much as an examined read.
    let drops = sampling.drops;
    let calls = unlisted.read_programs * sampling.reads.events
        + 2 * sampling.softirqs.events
        + polls
        + unlisted.wakeups
        + drops.events
        + 2 * interrupts
        + unlisted.packet_programs * packets;
    let examined = 3 * sampling.softirqs.examined + sampling.other_polls.examined + 2 * interrupts;
    let examined_ns = (sampling.reads.examined + drops.examined) * READ_NS + examined * EXAMINED_NS;
    CountingCost { ns: calls * CALL_NS + examined_ns, measured: false }
}

#[cfg(test)]
mod tests {
    use netsilo_model::snapshot::attribution::{Examined, Sampling};

    use super::*;

    #[test]
    fn events_that_are_not_examined_cost_less() {
        let reads = |examined| {
            let sampling =
                Sampling { reads: Examined { events: 1000, examined }, ..Sampling::default() };
            let attribution = Attribution { sampling, ..Attribution::default() };
            estimate(&attribution, Unlisted { read_programs: 1, ..Unlisted::default() }).ns
        };
        assert_eq!((reads(1000), reads(100)), (140_000, 50_000));
    }
}
