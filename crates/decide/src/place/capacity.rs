//! [`Capacity`]: the CPUs, and how busy each is with other work than the vectors.

use std::collections::BTreeMap;

use netsilo_model::cost::problem::SECOND_NS;
use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::rates::CpuRates;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Topology;

/// The CPUs and their free capacity.
#[derive(Debug, Clone)]
pub struct Capacity<'a> {
    /// The CPUs and the caches that they share.
    pub topology: &'a Topology,
    /// The weights of the cost model on this machine.
    pub costs: Costs,
    /// Where the weights come from, in words.
    pub source: String,
    /// Share of the time in which each CPU is busy with other work than the vectors; unknown CPUs
    /// are left out.
    pub busy: BTreeMap<CpuId, f64>,
    /// How many times longer work seems to take than it could: a guest whose CPUs the hypervisor
    /// runs now and then, or emulates. Divides loads and busy time; 1 elsewhere.
    pub dilation: f64,
}

/// The longest that the receive path of one packet takes (ns), firewall and protocol included: some
/// ten times what is usual. A longer time is not the CPU's.
const LONGEST_PACKET_NS: f64 = 25_000.0;

/// With fewer packets per second, the fixed cost of interrupts is not spread over enough of them.
const ENOUGH_PACKETS: f64 = 100.0;

/// Fewer IPIs than this say little about what one takes.
const ENOUGH_IPIS: u64 = 100;

impl<'a> Capacity<'a> {
    /// Computes the busy time of the CPUs without the load of the given silos.
    ///
    /// User and system time come from clock ticks. Softirq time is the measured one if available,
    /// and the silos' part of it ([`Silo::own_share`], from the same source) is subtracted. The
    /// system time includes threaded NAPIs.
    pub fn new(analysis: &Analysis<'a>, placed: &[&Silo]) -> Self {
        let attribution = &analysis.observation.attribution;
        let elapsed = attribution.elapsed.as_secs_f64();
        let time = |cpu: &CpuId| attribution.cpu_time.get(cpu).filter(|_| elapsed > 0.0);
        let measured =
            |cpu: &CpuId| Some((time(cpu)?.softirq_ns() as f64 / 1e9 / elapsed).min(1.0));
        let own =
            |cpu: &CpuId| placed.iter().filter_map(|silo| silo.own_share.get(cpu)).sum::<f64>();
        let busy = |(cpu, rates): (&CpuId, &CpuRates)| {
            let shares = rates.shares?;
            let softirq = measured(cpu).unwrap_or(shares.softirq);
            let rest = shares.usr + shares.nice + shares.sys + shares.irq + softirq - own(cpu);
            Some((*cpu, rest.clamp(0.0, 1.0)))
        };
        let (costs, source) = costs(analysis);
        Self {
            topology: &analysis.after().topology,
            costs,
            source,
            busy: analysis.rates.cpus.iter().filter_map(busy).collect(),
            dilation: dilation(analysis, placed),
        }
    }

    /// Share of the time in which a CPU has nothing else to do; none if that is unknown.
    pub fn idle(&self, cpu: CpuId) -> f64 {
        1.0 - self.busy.get(&cpu).copied().unwrap_or(1.0)
    }
}

/// How many times longer a packet takes than it could, on average over the queues.
///
/// The CPUs of such a guest do not have a fixed speed each: they share what the hypervisor gives
/// all of them, so that two loads fit on one CPU although their times add up to more than 100%.
fn dilation(analysis: &Analysis<'_>, placed: &[&Silo]) -> f64 {
    if analysis.after().machine.virtual_machine != Some(true) {
        return 1.0;
    }
    let polled = |silo: &&Silo| {
        Some((silo.packets_per_s?, silo.own_share.values().sum::<f64>() * SECOND_NS))
    };
    let (packets, ns) = placed
        .iter()
        .filter_map(polled)
        .fold((0.0, 0.0), |sum, queue| (sum.0 + queue.0, sum.1 + queue.1));
    if packets < ENOUGH_PACKETS {
        return 1.0;
    }
    (ns / packets / LONGEST_PACKET_NS).max(1.0)
}

/// The weights of the cost model with what was seen of IPIs, and their source in words.
///
/// Default weights are scaled so that the receiver's half of an IPI under one last-level cache is
/// the time that eBPF has measured; the sender's half is taken to change alike. Weights that were
/// calibrated or configured stay as they are.
fn costs(analysis: &Analysis<'_>) -> (Costs, String) {
    let given = analysis.costs;
    if given.source != CostSource::Default {
        return (given.clone(), given.source_in_words());
    }
    let costs = match analysis.after().machine.virtual_machine {
        Some(true) => Costs { assumed: given.assumed, ..Costs::for_virtual_machine() },
        _ => given.clone(),
    };
    let times = analysis.observation.attribution.cpu_time.values();
    let (ns, count) = times.fold((0_u64, 0_u64), |(ns, count), time| {
        (ns.saturating_add(time.ipi_ns), count.saturating_add(time.ipis))
    });
    if count < ENOUGH_IPIS || ns == 0 {
        let source = costs.source_in_words();
        return (costs, source);
    }
    let each = ns as f64 / count as f64;
    let scale = each / (costs.ipi_ns.llc / 2.0);
    let source = format!(
        "{}; an ipi takes {:.1} us here ({count} seen)",
        costs.source_in_words(),
        each / 1e3
    );
    (Costs { ipi_ns: costs.ipi_ns.map(|ns| ns * scale), ..costs }, source)
}
