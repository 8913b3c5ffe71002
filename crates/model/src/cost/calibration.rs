//! Results of `netsilo calibrate`: the pairs of CPUs to measure, the summary of their samples, and
//! the identity of the machine.
//!
//! The measuring loops live in `netsilo-sys`; this module only selects and computes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cost::weights::{CostSource, Costs};
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::topology::{Distance, Topology};

/// Most pairs of CPUs that are measured per distance.
pub const PAIRS: usize = 4;

/// Most CPUs that pairs start from: all pairs of a large machine would be millions.
const STARTS: usize = 64;

/// A spread above this share of its median is wide: the machine was busy, or its pairs differ.
const WIDE: f64 = 0.25;

/// The longest that a line or an interrupt takes between two CPUs that run (ns), some ten times
/// what is usual. A longer time is a wait for the hypervisor or the emulator.
const LONGEST_LINE: f64 = 5e3;
const LONGEST_IPI: f64 = 2e5;

/// A measured time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Median over all pairs and rounds, in nanoseconds.
    pub median_ns: f64,
    /// Interquartile range over all pairs and rounds, in nanoseconds.
    pub spread_ns: f64,
    /// Number of measured pairs of CPUs.
    pub pairs: usize,
    /// Number of rounds per pair.
    pub rounds: usize,
}

impl Measured {
    /// Whether it is noise: longer than it can be, or spread wider than its median.
    fn is_noise(&self, longest: f64) -> bool {
        self.median_ns > longest || self.spread_ns > self.median_ns
    }

    /// Whether the spread is too wide to compare two machines by this time.
    pub fn is_wide(&self) -> bool {
        self.spread_ns > self.median_ns * WIDE
    }
}

/// Times of waking a thread that sleeps on a CPU at some distance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Wakeup {
    /// CPU time of the waking thread, for the system call that wakes.
    pub waker: Measured,
    /// Latency from just before that call until the woken thread runs.
    pub latency: Measured,
}

/// All measurements of a machine, by distance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Transfer of one modified cache line from one CPU to another.
    pub transfer: BTreeMap<Distance, Measured>,
    /// Waking a thread that sleeps on the other CPU; the same CPU is the base for comparison.
    pub wakeup: BTreeMap<Distance, Wakeup>,
    /// Time that an inter-processor interrupt takes from a thread that runs on the other CPU; empty
    /// if the kernel has no `membarrier` to send one with.
    pub interrupted: BTreeMap<Distance, Measured>,
}

impl Calibration {
    /// CPU time of a wakeup on both CPUs beyond a wakeup on the same CPU, in nanoseconds.
    ///
    /// It is the sum of the waker's extra time (never below 0) and of the time that the interrupt
    /// takes from the other CPU. `None` unless both were measured beyond noise, the transfer too:
    /// without a transfer the two CPUs did not run side by side (emulation), and the other times
    /// are waiting.
    pub fn ipi_ns(&self, distance: Distance) -> Option<f64> {
        self.line_ns(distance)?;
        let here = self.wakeup.get(&Distance::SameCpu)?.waker.median_ns;
        let waker = self.wakeup.get(&distance)?.waker;
        let interrupted = self.interrupted.get(&distance)?;
        if waker.is_noise(LONGEST_IPI) || interrupted.is_noise(LONGEST_IPI) {
            return None;
        }
        Some((waker.median_ns - here).max(0.0) + interrupted.median_ns)
    }

    /// Time of a line's transfer; `None` unless measured, and beyond noise.
    fn line_ns(&self, distance: Distance) -> Option<f64> {
        let transfer = self.transfer.get(&distance)?;
        (!transfer.is_noise(LONGEST_LINE)).then_some(transfer.median_ns)
    }

    /// Distances of which a time was measured and refused as noise.
    pub fn noise(&self) -> Vec<Distance> {
        let refused = |distance: &Distance| {
            let line = self.transfer.get(distance);
            let waker = self.wakeup.get(distance).map(|it| &it.waker);
            let interrupted = self.interrupted.get(distance);
            line.is_some_and(|it| it.is_noise(LONGEST_LINE))
                || waker.into_iter().chain(interrupted).any(|it| it.is_noise(LONGEST_IPI))
        };
        Distance::ALL[1..].iter().copied().filter(refused).collect()
    }

    /// Returns cost model weights: the measured values, and those of `table` where nothing was
    /// measured.
    pub fn costs(&self, table: Costs, when: &str, machine: &MachineIdentity) -> Costs {
        let mut costs = table;
        let mut defaulted = Vec::new();
        for distance in Distance::ALL.into_iter().filter(|distance| *distance != Distance::SameCpu)
        {
            let line = self.line_ns(distance);
            let ipi = self.ipi_ns(distance);
            if line.is_none() || ipi.is_none() {
                defaulted.push(distance);
            }
            for (value, measured) in
                [(costs.line_ns.at_mut(distance), line), (costs.ipi_ns.at_mut(distance), ipi)]
            {
                *value = measured.map_or(*value, f64::round);
            }
        }
        let machine = format!("{}, {}, {}", machine.hostname, machine.cpu_model, machine.kernel);
        costs.source = CostSource::Measured { when: when.to_owned(), machine, defaulted };
        costs
    }

    /// Whether at least one median has a wide spread.
    pub fn is_wide(&self) -> bool {
        let wakers = self.wakeup.values().map(|it| &it.waker);
        self.transfer.values().chain(wakers).chain(self.interrupted.values()).any(Measured::is_wide)
    }
}

/// Identity of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MachineIdentity {
    /// Host name.
    pub hostname: String,
    /// Name of the CPU model.
    pub cpu_model: String,
    /// Number of CPUs present.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// Whether it is a virtual machine; `None` if unknown.
    pub virtual_machine: Option<bool>,
}

impl MachineIdentity {
    /// Returns how the two machines differ; `None` if they are the same, even with another kernel.
    pub fn differs_from(&self, other: &Self) -> Option<String> {
        let differs =
            |what: &str, this: &str, that: &str| Some(format!("its {what} is {this}, not {that}"));
        if self.hostname != other.hostname {
            differs("host name", &self.hostname, &other.hostname)
        } else if self.cpu_model != other.cpu_model {
            differs("cpu model", &self.cpu_model, &other.cpu_model)
        } else if self.cpus != other.cpus {
            differs("number of cpus", &self.cpus.to_string(), &other.cpus.to_string())
        } else if self.virtual_machine != other.virtual_machine {
            let word = |virtual_machine| match virtual_machine {
                Some(true) => "a virtual machine",
                Some(false) => "a physical machine",
                None => "unknown",
            };
            differs("kind", word(self.virtual_machine), word(other.virtual_machine))
        } else {
            None
        }
    }
}

/// Selects a few pairs per distance among these CPUs, evenly spread over the machine; a CPU and
/// itself are no pair.
pub fn pairs(topology: &Topology, cpus: &CpuSet) -> BTreeMap<Distance, Vec<(CpuId, CpuId)>> {
    let all: Vec<CpuId> = cpus.iter().collect();
    let mut found: BTreeMap<Distance, Vec<(CpuId, CpuId)>> = BTreeMap::new();
    for &a in &evenly(&all, STARTS) {
        let mut nearest: BTreeMap<Distance, CpuId> = BTreeMap::new();
        // Each start gives one pair per distance, to the next CPU at that distance, so that the
        // pairs do not all end on one CPU.
        let after = all.iter().filter(|b| **b > a).chain(all.iter().filter(|b| **b < a));
        for &b in after {
            nearest.entry(topology.distance(a, b)).or_insert(b);
        }
        for (distance, b) in nearest {
            let pair = (a.min(b), a.max(b));
            let known = found.entry(distance).or_default();
            if !known.contains(&pair) {
                known.push(pair);
            }
        }
    }
    found.values_mut().for_each(|pairs| *pairs = evenly(pairs, PAIRS));
    found
}

/// Selects at most `most` elements, evenly spaced, the first and last included.
pub fn evenly<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    if all.len() <= most {
        return all.to_vec();
    }
    (0..most).map(|n| all[n * (all.len() - 1) / (most - 1).max(1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::grid::Grid;

    fn machine() -> MachineIdentity {
        MachineIdentity {
            hostname: "db1".into(),
            cpu_model: "Some CPU".into(),
            cpus: 8,
            kernel: "6.12.1".into(),
            virtual_machine: Some(false),
        }
    }

    #[test]
    fn every_distance_of_a_machine_gets_a_few_pairs() {
        let grid = Grid { nodes: 2, llcs: 2, l2s: 2, cores: 2, threads: 2, siblings_apart: true };
        let topology = grid.topology();
        let pairs = pairs(&topology, &topology.online);
        assert_eq!(pairs.keys().copied().collect::<Vec<_>>(), Distance::ALL[1..]);
        for (distance, pairs) in &pairs {
            assert!((1..=PAIRS).contains(&pairs.len()), "{distance:?} {pairs:?}");
            assert!(
                pairs.iter().all(|(a, b)| topology.distance(*a, *b) == *distance && a < b),
                "{pairs:?}"
            );
        }
    }

    #[test]
    fn only_allowed_cpus_are_paired() {
        let topology = Grid { cores: 4, ..Grid::default() }.topology();
        let two = CpuSet::parse_list("1,3").unwrap();
        assert_eq!(
            pairs(&topology, &two),
            BTreeMap::from([(Distance::L2, vec![(CpuId(1), CpuId(3))])])
        );
        assert!(pairs(&topology, &CpuSet::from_cpu(CpuId(2))).is_empty());
    }

    #[test]
    fn a_huge_machine_is_measured_on_as_few_pairs_as_a_small_one() {
        let topology =
            Grid { nodes: 2, llcs: 8, l2s: 16, cores: 1, threads: 2, siblings_apart: true }
                .topology();
        let count: usize = pairs(&topology, &topology.online).values().map(Vec::len).sum();
        assert!(count <= PAIRS * 5, "{count}");
    }

    #[test]
    fn a_spread_is_wide_compared_with_its_median() {
        let measured =
            |median_ns, spread_ns| Measured { median_ns, spread_ns, pairs: 5, rounds: 1 };
        assert!(!measured(101.0, 2.0).is_wide());
        assert!(measured(250.0, 150.0).is_wide());
    }

    fn measured() -> Calibration {
        let time = |median_ns| Measured { median_ns, spread_ns: 1.0, pairs: 1, rounds: 5 };
        let wakeup = |waker| Wakeup { waker: time(waker), latency: time(9.0) };
        Calibration {
            transfer: [
                (Distance::Smt, time(12.4)),
                (Distance::Llc, time(61.0)),
                (Distance::Node, time(80.0)),
            ]
            .into(),
            wakeup: [
                (Distance::SameCpu, wakeup(600.0)),
                (Distance::Smt, wakeup(590.0)),
                (Distance::Llc, wakeup(2100.0)),
                (Distance::Node, wakeup(2200.0)),
            ]
            .into(),
            interrupted: [(Distance::Smt, time(700.0)), (Distance::Llc, time(800.0))].into(),
        }
    }

    #[test]
    fn an_interrupt_costs_both_cpus() {
        assert_eq!(measured().ipi_ns(Distance::Llc), Some(1500.0 + 800.0));
        assert_eq!(measured().ipi_ns(Distance::Smt), Some(0.0 + 700.0));
        assert_eq!(measured().ipi_ns(Distance::Node), None);
        assert_eq!(measured().ipi_ns(Distance::Remote), None);
        let mut apart = measured();
        apart.transfer.remove(&Distance::Llc);
        assert_eq!(apart.ipi_ns(Distance::Llc), None);
    }

    #[test]
    fn noise_is_refused_and_keeps_the_default() {
        let time = |median_ns, spread_ns| Measured { median_ns, spread_ns, pairs: 1, rounds: 5 };
        let mut noisy = measured();
        noisy.interrupted.insert(Distance::Llc, time(7.3e6, 2.4e6));
        noisy.transfer.insert(Distance::Smt, time(12.0, 40.0));
        assert_eq!(noisy.noise(), [Distance::Smt, Distance::Llc]);
        let table = Costs::default();
        let costs = noisy.costs(table.clone(), "2026-01-02T03:04:05Z", &machine());
        assert_eq!((costs.ipi_ns.llc, costs.line_ns.llc), (table.ipi_ns.llc, 61.0));
        assert_eq!((costs.ipi_ns.smt, costs.line_ns.smt), (table.ipi_ns.smt, table.line_ns.smt));
        assert!(measured().noise().is_empty());
    }

    #[test]
    fn unmeasured_distances_keep_the_default_and_are_listed() {
        let table = Costs::default();
        let costs = measured().costs(table.clone(), "2026-01-02T03:04:05Z", &machine());
        assert_eq!((costs.line_ns.smt, costs.ipi_ns.smt, costs.line_ns.llc), (12.0, 700.0, 61.0));
        assert_eq!(
            (costs.line_ns.remote, costs.ipi_ns.remote),
            (table.line_ns.remote, table.ipi_ns.remote)
        );
        assert_eq!((costs.line_ns.node, costs.ipi_ns.node), (80.0, table.ipi_ns.node));
        assert_eq!((costs.line_ns.same_cpu, costs.ipi_ns.same_cpu), (0.0, 0.0));
        let CostSource::Measured { defaulted, machine, .. } = costs.source else {
            panic!("{:?}", costs.source)
        };
        assert_eq!(defaulted, [Distance::L2, Distance::Node, Distance::Remote]);
        assert_eq!(machine, "db1, Some CPU, 6.12.1");
    }

    #[test]
    fn another_kernel_is_the_same_machine_and_another_name_is_not() {
        let upgraded = MachineIdentity { kernel: "6.13.0".into(), ..machine() };
        assert_eq!(upgraded.differs_from(&machine()), None);
        let other = MachineIdentity { hostname: "db2".into(), ..machine() };
        assert_eq!(other.differs_from(&machine()).unwrap(), "its host name is db2, not db1");
        let other = MachineIdentity { virtual_machine: Some(true), ..machine() };
        assert_eq!(
            other.differs_from(&machine()).unwrap(),
            "its kind is a virtual machine, not a physical machine"
        );
    }
}
