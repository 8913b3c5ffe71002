//! [`Capacity`]: the CPUs, and how busy each is with other work than the vectors.

use std::collections::BTreeMap;

use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::rates::CpuRates;
use netsilo_model::derive::seen_costs::{dilation, seen_ipis};
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
    let Some((each, count)) = seen_ipis(analysis) else {
        let source = costs.source_in_words();
        return (costs, source);
    };
    let scale = each / (costs.ipi_ns.llc / 2.0);
    let source = format!(
        "{}; an ipi takes {:.1} us here ({count} seen)",
        costs.source_in_words(),
        each / 1e3
    );
    (Costs { ipi_ns: costs.ipi_ns.map(|ns| ns * scale), ..costs }, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue};

    #[test]
    fn packets_take_longer_than_they_could_in_a_guest_that_receives_enough_of_them() {
        let dilation = |packets_per_s: u64, load: f64, virtual_machine: bool| {
            let (irq, cpus) = (Some(30), CpuSet::from_cpu(CpuId(0)));
            let queue = SceneQueue { irq, cpus, packets_per_s, load, ..SceneQueue::default() };
            let (name, queues) = ("eth0".into(), vec![queue]);
            let netdevs = vec![SceneNetdev { name, queues, ..SceneNetdev::default() }];
            let virtual_machine = Some(virtual_machine);
            let scene = Scene { netdevs, virtual_machine, ..Scene::default() };
            let (observation, costs) = (scene.observation(), Costs::default());
            let analysis = Analysis::new(&observation, &costs);
            let silos: Vec<&Silo> = analysis.silos.queues.iter().collect();
            Capacity::new(&analysis, &silos).dilation
        };
        // 500 us a packet, of which 25 are the packet's
        assert_eq!(dilation(1000, 0.5, true), 20.0);
        assert_eq!(dilation(100, 0.05, true), 20.0);
        assert_eq!(dilation(1000, 0.5, false), 1.0, "a machine's own time");
        assert_eq!(dilation(1000, 0.02, true), 1.0, "20 us are usual");
        assert_eq!(dilation(99, 0.5, true), 1.0, "too few packets");
    }
}
