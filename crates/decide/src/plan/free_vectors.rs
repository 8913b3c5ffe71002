//! The interrupt vectors that each CPU has left, and the planned moves that take them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;

use crate::place::{Suggestion, Vector};

/// Most interrupts on one x86 CPU: of 256 vectors, 32 are exceptions and about two dozen are the
/// system's own (`arch/x86/include/asm/irq_vectors.h`).
const VECTORS_PER_CPU: usize = 190;

/// Free vectors of each CPU. The kernel refuses a write that targets only full CPUs (ENOSPC).
pub(super) struct FreeVectors {
    /// `None`: not limited, as on other architectures than x86.
    left: Option<BTreeMap<CpuId, usize>>,
}

impl FreeVectors {
    /// As the kernel counts them, or else estimated from where interrupts arrive.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        if !snapshot.free_vectors.is_empty() {
            return Self { left: Some(snapshot.free_vectors.clone()) };
        }
        if !snapshot.is_x86() {
            return Self { left: None };
        }
        let online = snapshot.topology.online.iter();
        let mut left: BTreeMap<CpuId, usize> = online.map(|cpu| (cpu, VECTORS_PER_CPU)).collect();
        let others = snapshot.other_vectors.iter().map(|(cpu, count)| (*cpu, *count));
        let arrive = |cpus: &CpuSet| Some((cpus.single()?, 1));
        let shown = snapshot.irqs.values().filter_map(|it| arrive(it.effective.as_ref()?));
        for (cpu, count) in others.chain(shown) {
            left.entry(cpu).and_modify(|left| *left = left.saturating_sub(count));
        }
        Self { left: Some(left) }
    }

    /// CPUs that have none.
    pub(super) fn full(&self) -> CpuSet {
        let all = self.left.iter().flatten();
        all.filter(|(_, left)| **left == 0).map(|(cpu, _)| *cpu).collect()
    }

    /// Takes one of the first CPU, or of the CPU with most of the others; `None` if all are full.
    fn take(&mut self, first: CpuId, others: &CpuSet) -> Option<CpuId> {
        let Some(left) = &mut self.left else { return Some(first) };
        let count = |cpu: CpuId| left.get(&cpu).copied().unwrap_or(0);
        let most = || others.iter().max_by_key(|cpu| (count(*cpu), Reverse(*cpu)));
        let cpu = Some(first).filter(|cpu| count(*cpu) > 0).or_else(most)?;
        let left = left.get_mut(&cpu).filter(|left| **left > 0)?;
        *left -= 1;
        Some(cpu)
    }

    /// Takes one for an interrupt that moves to these CPUs; false if they are all full. The one
    /// that it has stays its own.
    pub(super) fn take_for(&mut self, snapshot: &Snapshot, irq: Irq, cpus: &CpuSet) -> bool {
        let effective = snapshot.irqs.get(&irq).and_then(|state| state.effective.as_ref());
        let stays = effective.is_some_and(|at| !at.and(cpus).is_empty());
        stays || cpus.lowest().is_none_or(|first| self.take(first, cpus).is_some())
    }

    /// Takes one for a change, if it moves an interrupt.
    pub(super) fn take_for_change(&mut self, snapshot: &Snapshot, change: &Change) -> bool {
        match (&change.target, &change.new) {
            (Target::IrqAffinity(knob), Value::Cpus(cpus)) => {
                self.take_for(snapshot, knob.irq, cpus)
            }
            _ => true,
        }
    }

    /// Moves what the suggestions put on CPUs that are full by then to other CPUs of the pool:
    /// those that are as near to the device first.
    pub(super) fn fit<'g>(
        &mut self,
        snapshot: &Snapshot,
        placed: impl Iterator<Item = (Option<Irq>, &'g Vector)>,
        suggestions: &mut [Suggestion],
    ) {
        for ((irq, vector), suggestion) in placed.zip(suggestions) {
            let (Suggestion::Move(cpu, reason), Some(irq)) = (&mut *suggestion, irq) else {
                continue;
            };
            if self.take_for(snapshot, irq, &CpuSet::from_cpu(*cpu)) {
                continue;
            }
            let open = vector.pool.minus(&self.full());
            let far = |cpu: CpuId| snapshot.topology.distance_from_device(vector.node, cpu);
            let least = open.iter().map(far).min();
            let near: CpuSet = open.iter().filter(|cpu| Some(far(*cpu)) == least).collect();
            *suggestion = match self.take(*cpu, &near) {
                Some(other) => Suggestion::Move(
                    other,
                    format!("{reason}; cpu {cpu} has no interrupt vector left for it"),
                ),
                None => Suggestion::Leave("no allowed cpu has a free interrupt vector".to_owned()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Goal, plan};
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue};
    use proptest::prelude::*;

    /// Eight CPUs, of which the last ones are isolated; light queues on these.
    fn scene(queues: u32, isolated: u32, free: BTreeMap<CpuId, usize>) -> Scene {
        let isolated: CpuSet = (8 - isolated..8).map(CpuId).collect();
        let on: Vec<CpuId> = isolated.iter().collect();
        let queue = |at: u32| SceneQueue {
            irq: Some(30 + at),
            cpus: CpuSet::from_cpu(on[at as usize % on.len()]),
            packets_per_s: 2000,
            load: 0.003,
            ..SceneQueue::default()
        };
        let queues = (0..queues).map(queue).collect();
        let netdev = SceneNetdev { name: "eth0".into(), queues, ..SceneNetdev::default() };
        let grid = Grid { l2s: 8, cores: 1, ..Grid::default() };
        Scene { grid, isolated, free_vectors: free, netdevs: vec![netdev], ..Scene::default() }
    }

    proptest! {
        #[test]
        fn no_plan_takes_more_vectors_than_there_are_nor_stacks_what_could_be_apart(
            queues in 1_u32..40,
            isolated in 1_u32..7,
            free in proptest::option::of(proptest::collection::vec(0_usize..9, 8)),
        ) {
            let free = free.unwrap_or_default();
            let free: BTreeMap<CpuId, usize> = (0..).map(CpuId).zip(free).collect();
            let observation = scene(queues, isolated, free.clone()).observation();
            let costs = Costs::default();
            let goal = Goal::default();
            let plan = plan(&Analysis::new(&observation, &costs), &goal);
            let mut moved: BTreeMap<CpuId, usize> = BTreeMap::new();
            for change in &plan.changes {
                if let (Target::IrqAffinity(_), Value::Cpus(cpus)) = (&change.target, &change.new) {
                    cpus.single().into_iter().for_each(|cpu| *moved.entry(cpu).or_default() += 1);
                }
            }
            let housekeeping: Vec<CpuId> = (0..8 - isolated).map(CpuId).collect();
            let count = |cpu: &CpuId| moved.get(cpu).copied().unwrap_or(0);
            let all: usize = moved.values().sum();
            if free.is_empty() {
                prop_assert_eq!(all, queues as usize);
                let counts: Vec<usize> = housekeeping.iter().map(count).collect();
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}", counts);
            } else {
                prop_assert!(moved.iter().all(|(cpu, count)| *count <= free[cpu]), "{:?}", moved);
                let room: usize = housekeeping.iter().map(|cpu| free[cpu]).sum();
                prop_assert_eq!(all, room.min(queues as usize));
            }
        }
    }

    #[test]
    fn a_plan_of_a_file_is_refused_where_its_own_moves_take_the_last_vectors() {
        let mut host = scene(4, 4, BTreeMap::new()).observation().after;
        let to = |cpu: u32| CpuSet::from_cpu(CpuId(cpu));
        host.free_vectors = [(CpuId(0), 2), (CpuId(1), 0)].into();
        let mut vectors = FreeVectors::of(&host);
        assert_eq!(vectors.full().to_string(), "1");
        let taken =
            |vectors: &mut FreeVectors, irq, cpus: CpuSet| vectors.take_for(&host, Irq(irq), &cpus);
        assert!(taken(&mut vectors, 30, to(0)) && taken(&mut vectors, 31, to(0)));
        assert!(!taken(&mut vectors, 32, to(0)) && !taken(&mut vectors, 33, to(1)));
        assert!(taken(&mut vectors, 32, to(6)), "it is there");
    }
}
