//! As few CPUs as the softirq time needs, separate from the consumers: the rest of the machine is
//! not interrupted.
//!
//! The number of CPUs follows from the measured load. Their choice follows from the device's node,
//! the reading CPUs, and their other load; devices of different nodes get a set each. The present
//! set stays while it is neither too small nor much too large.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::NodeId;
use netsilo_model::machine::words::plural;

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::cpu_loads::{CpuLoads, millionths};
use crate::place::suggestion::Suggestion;
use crate::place::thresholds::WORTH_MOVING;
use crate::place::vector::Vector;

/// Target share of a dedicated CPU's time for the vectors; the rest absorbs bursts.
const FILL: f64 = 0.60;
/// The present set is large enough while its CPUs are filled to no more than this on average.
const KEEP_BELOW: f64 = 0.75;
/// The present set is small enough while one CPU fewer would be filled to at least this.
const KEEP_ABOVE: f64 = 0.45;
/// Most fill of a CPU with more than one vector.
const MAX_FILL: f64 = 0.85;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    suggest,
    judged_by_counts: false,
    moves_for_estimated_gain: false,
    completions_follow: false,
    tried_by_tune: true,
};

fn suggest(capacity: &Capacity<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let loads = CpuLoads::new(capacity);
    let mut suggestions: Vec<Suggestion> = vectors
        .iter()
        .map(|vector| vector.quiet().unwrap_or_else(|| "no cpu is allowed".into()))
        .map(Suggestion::Leave)
        .collect();
    let mut taken = CpuSet::new();
    for group in by_node(vectors) {
        let placed: Vec<&Vector> = group.iter().map(|index| &vectors[*index]).collect();
        let load: f64 = placed.iter().map(|vector| capacity.load(vector)).sum();
        let candidates = candidates(&placed, &loads, &taken);
        let set = in_use(&placed, &loads, &candidates)
            .unwrap_or_else(|| chosen(&placed, load, &loads, &candidates));
        let cpus: CpuSet = set.iter().flatten().copied().collect();
        let count = plural(cpus.len(), "cpu");
        let basis = format!("{:.0}% of a cpu in total: {count} dedicated ({cpus})", load * 100.0);
        for (index, cpu) in group.into_iter().zip(set) {
            let Some(cpu) = cpu else { continue };
            suggestions[index] = if vectors[index].present == Some(cpu) {
                Suggestion::Keep(cpu, basis.clone())
            } else {
                Suggestion::Move(cpu, basis.clone())
            };
        }
        taken = cpus.iter().fold(taken, |taken, cpu| taken.or(loads.core(cpu)));
    }
    suggestions
}

/// The vectors with traffic by the node of their device: each node's devices get CPUs of their own.
///
/// Devices without a node join those of the first node.
fn by_node(vectors: &[Vector]) -> Vec<Vec<usize>> {
    let first = vectors.iter().filter_map(|vector| vector.node).min();
    let mut nodes: BTreeMap<Option<NodeId>, Vec<usize>> = BTreeMap::new();
    for (index, vector) in vectors.iter().enumerate().filter(|(_, it)| it.quiet().is_none()) {
        nodes.entry(vector.node.or(first)).or_default().push(index);
    }
    nodes.into_values().collect()
}

/// Returns the present places, if they are a set of dedicated CPUs that fits.
fn in_use(
    vectors: &[&Vector],
    loads: &CpuLoads<'_>,
    candidates: &[Candidate],
) -> Option<Vec<Option<CpuId>>> {
    let present = |vector: &&Vector| vector.present.filter(|cpu| vector.pool.contains(*cpu));
    let at: Vec<CpuId> = vectors.iter().map(present).collect::<Option<_>>()?;
    let cpus: CpuSet = at.iter().copied().collect();
    let load_on = |(cpu, vector): (&CpuId, &&Vector)| loads.capacity.load_on(*cpu, vector);
    let (count, load) = (cpus.len() as f64, at.iter().zip(vectors).map(load_on).sum::<f64>());
    let few_enough = cpus.len() <= 1 || load / (count - 1.0) >= KEEP_ABOVE;
    let fits = load / count <= KEEP_BELOW || cpus.len() == vectors.len();
    let most = MAX_FILL + (KEEP_BELOW - FILL);
    let even = cpus.iter().all(|cpu| is_filled_well(cpu, vectors, &at, most, loads.capacity));
    let apart = cpus.iter().all(|cpu| loads.core(cpu).and(&cpus).len() == 1);
    let unused = candidates.iter().find(|candidate| !loads.core(candidate.cpu).intersects(&cpus));
    let well_chosen = cpus.iter().all(|cpu| {
        let this = candidates.iter().find(|candidate| candidate.cpu == cpu);
        this.is_some_and(|this| unused.is_none_or(|unused| !unused.is_clearly_better_than(this)))
    });
    (few_enough && fits && even && apart && well_chosen).then(|| at.into_iter().map(Some).collect())
}

fn is_filled_well(
    cpu: CpuId,
    vectors: &[&Vector],
    at: &[CpuId],
    most: f64,
    capacity: &Capacity<'_>,
) -> bool {
    let placed_here = vectors.iter().zip(at).filter(|(_, at)| **at == cpu);
    let here: Vec<f64> =
        placed_here.map(|(vector, _)| capacity.load_on(cpu, vector)).collect();
    here.len() <= 1 || here.iter().sum::<f64>() <= most
}

/// Chooses a new set, as small as possible, and the CPU of each vector; `load` is that of all on
/// the fastest CPU.
fn chosen(
    vectors: &[&Vector],
    load: f64,
    loads: &CpuLoads<'_>,
    candidates: &[Candidate],
) -> Vec<Option<CpuId>> {
    let mut cores = CpuSet::new();
    let mut one_per_core: Vec<CpuId> = Vec::new();
    for candidate in candidates {
        if !cores.contains(candidate.cpu) {
            cores = cores.or(loads.core(candidate.cpu));
            one_per_core.push(candidate.cpu);
        }
    }
    let mut seats = Vec::new();
    let mut speed = 0.0;
    for (cpu, count) in one_per_core.iter().zip(1..) {
        speed += 1.0 / loads.capacity.topology.slowdown(*cpu);
        if speed < load / FILL && count < one_per_core.len() {
            continue;
        }
        seats = seated(vectors, &one_per_core[..count], loads.capacity);
        let at: Vec<CpuId> = seats.iter().flatten().copied().collect();
        if at.len() < seats.len()
            || at.iter().all(|cpu| is_filled_well(*cpu, vectors, &at, MAX_FILL, loads.capacity))
        {
            break;
        }
    }
    if seats.is_empty() { vec![None; vectors.len()] } else { seats }
}

/// Assigns the heaviest vector first, each to the least filled CPU.
fn seated(vectors: &[&Vector], cpus: &[CpuId], capacity: &Capacity<'_>) -> Vec<Option<CpuId>> {
    let mut order: Vec<usize> = (0..vectors.len()).collect();
    order.sort_unstable_by_key(|index| {
        (std::cmp::Reverse(millionths(capacity.load(vectors[*index]))), *index)
    });
    let mut filled: Vec<(u64, usize, CpuId)> =
        cpus.iter().enumerate().map(|(rank, cpu)| (0, rank, *cpu)).collect();
    let mut seats = vec![None; vectors.len()];
    for index in order {
        let vector = vectors[index];
        let allowed = filled.iter_mut().filter(|(.., cpu)| vector.pool.contains(*cpu));
        // Vectors without a measured load count as 1, so that they spread out too.
        let load_on = |cpu: CpuId| millionths(capacity.load_on(cpu, vector)).max(1);
        let order = |(load, rank, cpu): &&mut (u64, usize, CpuId)| {
            (*load + load_on(*cpu), vector.present != Some(*cpu), *rank)
        };
        if let Some(seat) = allowed.min_by_key(order) {
            seat.0 += load_on(seat.2);
            seats[index] = Some(seat.2);
        }
    }
    seats
}

/// A CPU that may be dedicated.
struct Candidate {
    cpu: CpuId,
    distance: u32,
    /// Whether a consumer reads on its core.
    read_on: bool,
    slow: bool,
    /// Busy time of its core besides the vectors, in millionths of a CPU.
    busy: u64,
}

impl Candidate {
    fn is_clearly_better_than(&self, other: &Self) -> bool {
        let kind = |it: &Self| (it.distance, it.read_on, it.slow);
        match kind(self).cmp(&kind(other)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.busy + millionths(WORTH_MOVING) < other.busy,
            std::cmp::Ordering::Greater => false,
        }
    }
}

/// Lists the CPUs that may be dedicated, the best first: those that devices of other nodes have
/// taken only if there is no other.
fn candidates(vectors: &[&Vector], loads: &CpuLoads<'_>, taken: &CpuSet) -> Vec<Candidate> {
    let pool = vectors.iter().fold(CpuSet::new(), |pool, vector| pool.or(&vector.pool));
    let rest = pool.minus(taken);
    let is_enough = vectors.iter().all(|vector| vector.pool.intersects(&rest));
    let pool = if is_enough { rest } else { pool };
    let readers = vectors.iter().fold(CpuSet::new(), |all, vector| all.or(&vector.consumer_cpus()));
    let node = vectors.iter().find_map(|vector| vector.node);
    let candidate = |cpu: CpuId| Candidate {
        cpu,
        distance: loads.capacity.topology.distance_from_device(node, cpu),
        read_on: loads.core(cpu).intersects(&readers),
        slow: loads.is_slow(cpu),
        busy: loads.core_busy(cpu),
    };
    let mut all: Vec<Candidate> = pool.iter().map(candidate).collect();
    all.sort_unstable_by_key(|c| (c.distance, c.read_on, c.slow, c.busy, c.cpu));
    all
}
