//! [`Capacity`]: the CPUs, and how busy each is with other work than the vectors.

use std::collections::BTreeMap;

use netsilo_model::cost::weights::Costs;
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
    /// The weights of the cost model.
    pub costs: &'a Costs,
    /// Share of the time in which each CPU is busy with other work than the vectors; unknown CPUs
    /// are left out.
    pub busy: BTreeMap<CpuId, f64>,
}

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
        Self {
            topology: &analysis.after().topology,
            costs: analysis.costs,
            busy: analysis.rates.cpus.iter().filter_map(busy).collect(),
        }
    }
}
