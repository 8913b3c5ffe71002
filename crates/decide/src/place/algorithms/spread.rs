//! One queue per core, on the device's node first, spread evenly over its caches; SMT siblings when
//! the cores run out.
//!
//! It ignores traffic and consumers, so a machine gets the same placement under any load.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::NodeId;

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::cpu_loads::CpuLoads;
use crate::place::suggestion::Suggestion;
use crate::place::vector::Vector;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    suggest,
    judged_by_counts: false,
    moves_for_estimated_gain: false,
    completions_follow: false,
    tried_by_tune: true,
};

fn suggest(capacity: &Capacity<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let mut loads = CpuLoads::new(capacity);
    let mut crowds = Crowds::default();
    let mut candidates: BTreeMap<(Option<NodeId>, &CpuSet), Vec<Candidate>> = BTreeMap::new();
    let mut suggestions = Vec::with_capacity(vectors.len());
    for vector in vectors {
        let seen_from = candidates.entry((vector.node, &vector.pool));
        let candidates = seen_from.or_insert_with(|| all_candidates(vector, &loads));
        // The CPU with the fewest queues, then the nearest to the device, then the one with the
        // fewest queues on its core and caches.
        let rank = |candidate: &&Candidate| {
            let Candidate { cpu, distance, slow, shared } = **candidate;
            let moves = vector.present != Some(cpu);
            (loads.queues_at(cpu), distance, crowds.around(shared), slow, moves, cpu)
        };
        let Some(&Candidate { cpu, shared, .. }) = candidates.iter().min_by_key(rank) else {
            suggestions.push(Suggestion::Leave("no cpu is allowed".into()));
            continue;
        };
        suggestions.push(suggestion(vector, cpu, &loads));
        loads.put(cpu, vector);
        crowds.add(shared);
    }
    suggestions
}

/// An allowed CPU, with its distance from the device.
#[derive(Clone, Copy)]
struct Candidate {
    cpu: CpuId,
    distance: u32,
    slow: bool,
    /// Lowest CPUs of its core, its last-level cache and its level 2 cache.
    shared: [CpuId; 3],
}

fn all_candidates(vector: &Vector, loads: &CpuLoads<'_>) -> Vec<Candidate> {
    let candidate = |cpu| {
        let known = loads.capacity.topology.cpus.get(&cpu);
        let sets = known.map(|known| [&known.siblings, &known.llc, &known.l2]);
        let shared = sets.map_or([cpu; 3], |sets| sets.map(|set| set.lowest().unwrap_or(cpu)));
        let distance = loads.capacity.topology.distance_from_device(vector.node, cpu);
        let slow = loads.is_slow(cpu);
        Candidate { cpu, distance, slow, shared }
    };
    vector.pool.iter().map(candidate).collect()
}

/// Number of queues per core, last-level cache and level 2 cache, indexed by their lowest CPU.
#[derive(Default)]
struct Crowds([Vec<usize>; 3]);

impl Crowds {
    fn add(&mut self, shared: [CpuId; 3]) {
        for (counts, CpuId(lowest)) in self.0.iter_mut().zip(shared) {
            let lowest = lowest as usize;
            counts.resize(counts.len().max(lowest + 1), 0);
            counts[lowest] += 1;
        }
    }

    fn around(&self, [core, llc, l2]: [CpuId; 3]) -> [usize; 3] {
        let [cores, llcs, l2s] = &self.0;
        let count =
            |counts: &[usize], lowest: CpuId| counts.get(lowest.0 as usize).copied().unwrap_or(0);
        [count(cores, core), count(llcs, llc), count(l2s, l2)]
    }
}

fn suggestion(vector: &Vector, cpu: CpuId, loads: &CpuLoads<'_>) -> Suggestion {
    let core = match loads.queues_on(loads.core(cpu)) {
        0 => "a core of its own".to_owned(),
        others => format!(
            "a core shared with {}: there are more queues than cores",
            netsilo_model::machine::words::plural(others, "other queue")
        ),
    };
    let node = match (vector.node, loads.capacity.topology.cpus.get(&cpu).and_then(|cpu| cpu.node))
    {
        (Some(device), Some(node)) if device == node => format!(", on the device's node {node}"),
        (Some(device), Some(node)) => {
            format!(", on node {node}: the device's node {device} has no free cpu")
        }
        _ => String::new(),
    };
    if vector.present == Some(cpu) {
        Suggestion::Keep(cpu, format!("already on {core}{node}"))
    } else {
        Suggestion::Move(cpu, format!("{core}{node}"))
    }
}
