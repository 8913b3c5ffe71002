//! [`LevelCosts`]: a cost that depends on the distance from several CPUs.

use netsilo_model::cost::weights::ByDistance;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::{Distance, Topology};

/// A cost that depends on the distance from several CPUs, as differences between the levels that
/// a CPU shares with them: on those CPUs, on each of their cores, caches and nodes, and anywhere.
#[derive(Default)]
pub(super) struct LevelCosts {
    on: Sums,
    levels: [Sums; 4],
    anywhere: f64,
}

/// Sums by number. Most costs depend on one CPU or two.
#[derive(Default)]
struct Sums {
    first: Option<(u32, f64)>,
    /// In the order of their numbers.
    others: Vec<(u32, f64)>,
}

impl Sums {
    fn add(&mut self, number: u32, more: f64) {
        match &mut self.first {
            None => self.first = Some((number, more)),
            Some((first, sum)) if *first == number => *sum += more,
            Some(_) => match self.others.binary_search_by_key(&number, |it| it.0) {
                Ok(at) => self.others[at].1 += more,
                Err(at) => self.others.insert(at, (number, more)),
            },
        }
    }

    #[inline]
    fn get(&self, number: u32) -> Option<f64> {
        match self.first {
            Some((first, sum)) if first == number => Some(sum),
            _ if self.others.is_empty() => None,
            _ => {
                let at = self.others.binary_search_by_key(&number, |it| it.0).ok()?;
                Some(self.others[at].1)
            }
        }
    }
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
            level.add(number, at(step[0]) - at(step[1]));
        }
        self.on.add(cpu.0, at(Distance::SameCpu) - at(Distance::Smt));
    }

    /// The cost on a CPU with these levels.
    pub(super) fn on(&self, cpu: CpuId, levels: [u32; 4]) -> f64 {
        if self.on.first.is_none() {
            return 0.0;
        }
        let shared = self.levels.iter().zip(levels).filter_map(|(level, number)| level.get(number));
        self.anywhere + shared.chain(self.on.get(cpu.0)).sum::<f64>()
    }
}
