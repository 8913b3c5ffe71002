//! [`LevelCosts`]: a cost that depends on the distance from several CPUs.

use std::collections::BTreeMap;

use netsilo_model::cost::weights::ByDistance;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::{Distance, Topology};

/// A cost that depends on the distance from several CPUs, as differences between the levels that
/// a CPU shares with them: on those CPUs, on each of their cores, caches and nodes, and anywhere.
#[derive(Default)]
pub(super) struct LevelCosts {
    on: BTreeMap<CpuId, f64>,
    levels: [BTreeMap<u32, f64>; 4],
    anywhere: f64,
}

impl LevelCosts {
    /// Adds a cost that is met `times`, by the distance from this CPU.
    pub(super) fn add(&mut self, cpu: CpuId, topology: &Topology, cost: &ByDistance, times: f64) {
        let Some(known) = topology.cpus.get(&cpu) else { return };
        let at = |distance: Distance| cost.at(distance) * times;
        let steps = [Distance::Smt, Distance::L2, Distance::Llc, Distance::Node, Distance::Remote];
        self.anywhere += at(Distance::Remote);
        for ((level, number), step) in
            self.levels.iter_mut().zip(known.levels(cpu)).zip(steps.windows(2))
        {
            *level.entry(number).or_default() += at(step[0]) - at(step[1]);
        }
        *self.on.entry(cpu).or_default() += at(Distance::SameCpu) - at(Distance::Smt);
    }

    /// The cost on a CPU with these levels.
    pub(super) fn on(&self, cpu: CpuId, levels: [u32; 4]) -> f64 {
        if self.on.is_empty() {
            return 0.0;
        }
        let shared =
            self.levels.iter().zip(levels).filter_map(|(level, number)| level.get(&number));
        self.anywhere + shared.chain(self.on.get(&cpu)).sum::<f64>()
    }
}
