//! The costs on the observed machine: what the observation itself says of an IPI, and whether times
//! are the CPU's.

use crate::cost::weights::{CostSource, Costs};
use crate::derive::analysis::Analysis;
use crate::derive::silo::Silo;

/// The longest that the receive path of one packet takes (ns), firewall and protocol included: some
/// ten times what is usual. A longer time is not the CPU's.
const LONGEST_PACKET_NS: f64 = 25_000.0;

/// With fewer packets per second, the fixed cost of interrupts is not spread over enough of them.
const ENOUGH_PACKETS: f64 = 100.0;

/// Fewer IPIs than this say little about what one takes.
const ENOUGH_IPIS: u64 = 100;

/// How many times longer than 25 us a packet takes in a virtual machine, on average over the
/// queues; at least 1, and 1 on real hardware.
///
/// If it is above 1, the guest's CPUs share what the hypervisor gives to all of them, so two loads
/// may fit on one CPU although their times add up to more than 100%.
pub fn dilation(analysis: &Analysis<'_>, silos: &[&Silo]) -> f64 {
    if analysis.after().machine.virtual_machine != Some(true) {
        return 1.0;
    }
    let polled =
        |silo: &&Silo| Some((silo.packets_per_s?, silo.own_share.values().sum::<f64>() * 1e9));
    let (packets, ns) = silos
        .iter()
        .filter_map(polled)
        .fold((0.0, 0.0), |sum, queue| (sum.0 + queue.0, sum.1 + queue.1));
    if packets < ENOUGH_PACKETS {
        return 1.0;
    }
    (ns / packets / LONGEST_PACKET_NS).max(1.0)
}

/// The mean time of the call-function IPIs that eBPF saw (ns, on the receiving CPU), and their
/// number; `None` if these were too few.
pub fn seen_ipis(analysis: &Analysis<'_>) -> Option<(f64, u64)> {
    let times = analysis.observation.attribution.cpu_time.values();
    let (ns, count) = times.fold((0_u64, 0_u64), |(ns, count), time| {
        (ns.saturating_add(time.ipi_ns), count.saturating_add(time.ipis))
    });
    (count >= ENOUGH_IPIS && ns > 0).then(|| (ns as f64 / count as f64, count))
}

/// What the IPIs of wakeups take on the CPU that receives them, as eBPF saw it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeenIpis {
    /// Mean time of one (ns): of a call-function IPI, which wakes an idle CPU; of both kinds where
    /// those are few.
    pub each_ns: f64,
    /// How many were seen.
    pub count: u64,
    /// Time of a reschedule IPI, which interrupts a busy CPU, relative to `each_ns`; at most 1, and
    /// `None` unless enough of each kind were seen.
    pub busy: Option<f64>,
}

/// The call-function and reschedule IPIs that eBPF saw; `None` if these were too few.
///
/// The kernel makes an idle CPU do the rest of its wakeup by a call-function IPI
/// (`kernel/sched/core.c:ttwu_queue_cond`, 5.8). On a busy one the waker does it, and sends a
/// reschedule IPI if the woken thread preempts what runs there (`wakeup_preempt`).
fn seen_wakeup_ipis(analysis: &Analysis<'_>) -> Option<SeenIpis> {
    let times = analysis.observation.attribution.cpu_time.values();
    let (mut ns, mut count) = (0_u64, 0_u64);
    for all in times.filter_map(|time| time.reschedules) {
        ns = ns.saturating_add(all.ns);
        count = count.saturating_add(all.count);
    }
    let Some((each_ns, calls)) = seen_ipis(analysis) else {
        let all = analysis.observation.attribution.cpu_time.values();
        let (ns, count) = all.fold((ns, count), |(ns, count), time| {
            (ns.saturating_add(time.ipi_ns), count.saturating_add(time.ipis))
        });
        let each_ns = ns as f64 / count as f64;
        return (count >= ENOUGH_IPIS && ns > 0).then_some(SeenIpis { each_ns, count, busy: None });
    };
    let busy = (count >= ENOUGH_IPIS && ns > 0).then(|| ns as f64 / count as f64 / each_ns);
    Some(SeenIpis { each_ns, count: calls.saturating_add(count), busy: busy.map(|it| it.min(1.0)) })
}

/// The weights of the cost model on the observed machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineCosts {
    /// The weights.
    pub costs: Costs,
    /// Cost of a wakeup that finds the reader's CPU busy, relative to one that finds it idle; 1
    /// where that was not measured.
    pub busy_wakeup: f64,
    /// What raised the weights of IPIs.
    pub seen: Option<SeenIpis>,
}

/// The weights as they were given. The default weights depend on whether this is a virtual machine.
/// They are raised until the receiver's half of an IPI under one last-level cache is at least the
/// time of the handler, which eBPF has measured. What eBPF does not see, such as exits from a
/// guest, only adds to that. The sender's half is assumed to change by the same factor, whatever
/// the receiver does.
pub fn machine_costs(analysis: &Analysis<'_>) -> MachineCosts {
    let given = analysis.costs;
    if given.source != CostSource::Default {
        return MachineCosts { costs: given.clone(), busy_wakeup: 1.0, seen: None };
    }
    let costs = match analysis.after().machine.virtual_machine {
        Some(true) => Costs { assumed: given.assumed, ..Costs::for_virtual_machine() },
        _ => given.clone(),
    };
    let seen = seen_wakeup_ipis(analysis);
    let each = seen.as_ref().map_or(0.0, |seen| seen.each_ns);
    let scale = (each / (costs.ipi_ns.llc / 2.0)).max(1.0);
    let busy = seen.as_ref().and_then(|seen| seen.busy);
    MachineCosts {
        costs: Costs { ipi_ns: costs.ipi_ns.map(|ns| ns * scale), ..costs },
        busy_wakeup: busy.map_or(1.0, |busy| (1.0 + busy) / 2.0),
        seen,
    }
}

impl MachineCosts {
    /// Where the weights come from, in words.
    pub fn source_in_words(&self) -> String {
        let source = self.costs.source_in_words();
        let Some(SeenIpis { each_ns, count, busy }) = self.seen else { return source };
        let on_busy = busy.map_or_else(String::new, |busy| {
            format!(", {:.1} us to a busy cpu", each_ns * busy / 1e3)
        });
        format!("{source}, {:.1} us per ipi ({count} seen{on_busy})", each_ns / 1e3)
    }
}
