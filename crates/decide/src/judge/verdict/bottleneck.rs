//! The bottleneck: how far the load can grow until one CPU's interrupt work, all CPUs together, or
//! the link is saturated.
//!
//! These are the asymptotic bounds of queueing theory (Denning and Buzen 1978): the busiest
//! resource limits the load. A remedy moves and adds work; its gain is the ratio of the bound
//! afterwards to the bound before.

use std::collections::BTreeMap;
use std::fmt;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};

/// Busy share from which a resource is saturated: at 80% a poll waits four times as long as it runs
/// (M/M/1), and bursts overflow.
pub(super) const FULL: f64 = 0.8;

/// One CPU's load, as shares of the time that the hypervisor does not steal.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CpuLoad {
    /// All time but idle, iowait and nice (low-priority work yields).
    pub(super) busy: f64,
    /// The part that the scheduler cannot move: interrupts, softirqs and NAPI kthreads.
    pub(super) bound: f64,
}

/// The loads of all usable CPUs.
pub(super) type Loads = BTreeMap<CpuId, CpuLoad>;

/// The bottleneck: the resource that a growing load saturates first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bottleneck {
    /// The resource.
    pub(super) at: Resource,
    /// The load that saturates it, as a multiple of the present load.
    pub(super) load_factor: f64,
}

/// A resource that can be saturated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    /// The interrupt work of one CPU.
    Cpu(CpuId),
    /// All CPUs together.
    Machine,
    /// The link.
    Link,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "cpu {cpu}"),
            Self::Machine => f.write_str("the machine as a whole"),
            Self::Link => f.write_str("the link"),
        }
    }
}

impl Bottleneck {
    /// Finds the bottleneck. Applications on `fixed` CPUs cannot move; the scheduler moves all
    /// others.
    pub(super) fn of(loads: &Loads, fixed: &CpuSet, link: Option<f64>) -> Self {
        let all: f64 = loads.values().map(|load| load.busy.max(load.bound)).sum();
        let machine = (Resource::Machine, all / (loads.len().max(1)) as f64);
        let link = (Resource::Link, link.unwrap_or(0.0));
        let cpus = loads.iter().map(|(cpu, load)| {
            (
                Resource::Cpu(*cpu),
                if fixed.contains(*cpu) { load.busy.max(load.bound) } else { load.bound },
            )
        });
        let fullest = cpus.fold(machine, |most, it| if it.1 > most.1 { it } else { most });
        let (at, use_of_it) = if link.1 > fullest.1 { link } else { fullest };
        Self { at, load_factor: 1.0 / use_of_it.max(1e-6) }
    }

    /// Whether the present load already reaches the saturation threshold.
    pub(super) fn is_near(&self) -> bool {
        self.load_factor <= 1.0 / FULL
    }
}

/// Adds work (a share of its time, negative to remove) to a CPU.
pub(super) fn add(loads: &mut Loads, cpu: CpuId, work: f64) {
    if let Some(load) = loads.get_mut(&cpu) {
        load.busy = (load.busy + work).max(0.0);
        load.bound = (load.bound + work).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loads(all: &[(f64, f64)]) -> Loads {
        all.iter()
            .enumerate()
            .map(|(cpu, (busy, bound))| (CpuId(cpu as u32), CpuLoad { busy: *busy, bound: *bound }))
            .collect()
    }

    #[test]
    fn the_busiest_of_cpu_machine_and_link_is_the_bottleneck() {
        let one_cpu = loads(&[(0.9, 0.9), (0.1, 0.0)]);
        let bottleneck = Bottleneck::of(&one_cpu, &CpuSet::new(), None);
        assert_eq!((bottleneck.at, bottleneck.is_near()), (Resource::Cpu(CpuId(0)), true));
        let all = loads(&[(0.95, 0.2), (0.95, 0.0)]);
        assert_eq!(Bottleneck::of(&all, &CpuSet::new(), None).at, Resource::Machine);
        assert_eq!(Bottleneck::of(&all, &CpuSet::new(), Some(0.99)).at, Resource::Link);
        let idle = loads(&[(0.2, 0.1), (0.1, 0.0)]);
        assert!(!Bottleneck::of(&idle, &CpuSet::new(), Some(0.5)).is_near());
    }

    #[test]
    fn an_application_saturates_its_cpu_only_if_it_cannot_move() {
        let busy = loads(&[(1.0, 0.3), (0.0, 0.0)]);
        assert_eq!(
            Bottleneck::of(&busy, &CpuSet::from_cpu(CpuId(0)), None).at,
            Resource::Cpu(CpuId(0))
        );
        assert_eq!(Bottleneck::of(&busy, &CpuSet::new(), None).at, Resource::Machine);
    }

    proptest! {
        #[test]
        fn more_work_never_raises_the_bound(
            all in prop::collection::vec((0.0..1.0f64, 0.0..1.0f64), 1..9),
            more in 0.0..1.0f64,
            at in 0..9usize,
        ) {
            let before = loads(&all);
            let mut after = before.clone();
            add(&mut after, CpuId((at % all.len()) as u32), more);
            let bottleneck = |loads| Bottleneck::of(loads, &CpuSet::new(), None).load_factor;
            prop_assert!(bottleneck(&after) <= bottleneck(&before) + 1e-9);
        }
    }
}
