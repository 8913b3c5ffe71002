//! Close to the weighted consumers, never on their own CPU or its SMT sibling, sharing the closest cache.
//!
//! Heaviest queue first, in this order: an idle core on the consumers' last-level cache that nobody reads on; the least
//! busy core on it that is not the consumers'; the same two on the rest of the node; else it stays, with the reason. On
//! the way: a core without a queue before one that has one, the same level 2 cache before another, the present CPU
//! before a new one, the lowest CPU last.

use std::collections::BTreeSet;

use super::{
    Floor, IDLE_BELOW, IDLE_STAYS, Room, Suggestion, Vector, WORTH_MOVING, consumer_in_words, softirq_in_words,
};
use crate::cpuset::{CpuId, CpuSet};
use crate::silo::heaviest;
use crate::topology::{Distance, Topology};

/// Busyness is compared in steps of this share of a CPU, so that noise does not decide.
const STEP: f64 = 0.05;

pub(super) fn suggest(room: &Room<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let readers = vectors.iter().fold(CpuSet::new(), |all, vector| all.or(&vector.consumer_cpus()));
    let readers = Readers { cores: cores_of(room.topology, &readers), cpus: readers };
    let mut floor = Floor::new(room);
    let mut suggestions: Vec<Suggestion> =
        vectors.iter().map(|vector| Suggestion::Leave(vector.quiet().unwrap_or_default())).collect();
    let (placeable, stuck): (Vec<usize>, Vec<usize>) = heaviest_first(vectors, &floor, &readers)
        .into_iter()
        .partition(|i| place(&vectors[*i], &floor, &readers).is_ok());
    // What must stay takes its room first.
    for index in stuck.into_iter().chain(placeable) {
        let vector = &vectors[index];
        suggestions[index] = match place(vector, &floor, &readers) {
            Ok(choice) => choice.suggestion(vector),
            Err(reason) => Suggestion::Leave(reason),
        };
        let cpu = match &suggestions[index] {
            Suggestion::Move(cpu, _) | Suggestion::Keep(cpu, _) => Some(*cpu),
            Suggestion::Leave(_) => vector.present.or(vector.softirq.map(|softirq| softirq.cpu)),
        };
        if let Some(cpu) = cpu {
            floor.put(cpu, vector.load);
        }
    }
    suggestions
}

/// Where data is read, of any vector.
struct Readers {
    cpus: CpuSet,
    cores: CpuSet,
}

/// Those with traffic: load to the per cent first, packets where no load is known, the given order among equals.
///
/// One that is well placed counts twice, so that another of about the same load does not take its core from it, and the
/// next measurement the other way round.
fn heaviest_first(vectors: &[Vector], floor: &Floor<'_>, readers: &Readers) -> Vec<usize> {
    let weight = |vector: &Vector| {
        let well_placed =
            place(vector, floor, readers).is_ok_and(|choice| choice.idle && vector.present == Some(choice.cpu));
        let factor = if well_placed { 2.0 } else { 1.0 };
        ((vector.load * factor * 100.0).round() as u64, (vector.packets_per_s * factor) as u64)
    };
    let mut order: Vec<(usize, (u64, u64))> = vectors
        .iter()
        .enumerate()
        .filter(|(_, vector)| vector.quiet().is_none())
        .map(|(i, vector)| (i, weight(vector)))
        .collect();
    order.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    order.into_iter().map(|(index, _)| index).collect()
}

/// A CPU, and what speaks for it.
struct Choice {
    cpu: CpuId,
    idle: bool,
    merit: String,
}

impl Choice {
    fn suggestion(self, vector: &Vector) -> Suggestion {
        let consumer = consumer_in_words(vector);
        if vector.present == Some(self.cpu) {
            let reason = format!("already well placed: its consumer {consumer}, cpu {} is {}", self.cpu, self.merit);
            return Suggestion::Keep(self.cpu, reason);
        }
        let softirq = softirq_in_words(vector);
        Suggestion::Move(self.cpu, format!("its consumer {consumer}; cpu {} is {}{softirq}", self.cpu, self.merit))
    }
}

fn place(vector: &Vector, floor: &Floor<'_>, readers: &Readers) -> Result<Choice, String> {
    let topology = floor.room.topology;
    let Some([home, best]) = home_llcs(vector, topology) else {
        return Err("packets arrive, but who reads them is not known".into());
    };
    let own = vector.consumer_cpus();
    let free = floor.room.pool.minus(&cores_of(topology, &own));
    let node = best.lowest().map(|cpu| node_of(topology, cpu)).unwrap_or_default();
    let rest = node.minus(&home).minus(&best);
    for (zone, word) in [(home, "the same llc"), (best, "the same llc"), (rest, "the same node")] {
        let zone = free.and(&zone);
        if let Some(cpu) = idle(vector, floor, &zone.minus(&readers.cores), &own) {
            return Ok(Choice { cpu, idle: true, merit: format!("on an idle core of {word}") });
        }
        if let Some(cpu) = least_busy(vector, floor, &zone, &readers.cpus) {
            let busy = floor.core_busy(cpu) * 100.0 / floor.core(cpu).len().max(1) as f64;
            return Ok(Choice {
                idle: false,
                cpu,
                merit: format!("on the least busy core of {word} ({busy:.0}% busy) that is not its consumer's"),
            });
        }
    }
    let consumer = consumer_in_words(vector);
    Err(match node.intersects(&floor.room.pool) {
        true => format!(
            "its consumer {consumer}: all allowed cpus of that node are on its consumers' cores; `spread` does not mind"
        ),
        false => format!("its consumer {consumer}, on a node of which no cpu is allowed"),
    })
}

/// The last-level cache that is read on most, and before it the present one if that is hardly less.
fn home_llcs(vector: &Vector, topology: &Topology) -> Option<[CpuSet; 2]> {
    let weight = |llc: &CpuSet| {
        vector.read_on.iter().filter(|(cpu, _)| llc.contains(**cpu)).map(|(_, bytes)| bytes).sum::<f64>()
    };
    let groups = topology.llc_groups();
    let best = heaviest(groups.iter().enumerate().map(|(i, llc)| (i, weight(llc))))?;
    let present = vector.present.map(|cpu| topology.llc_of(cpu)).unwrap_or_default();
    let enough = weight(&present) >= weight(&groups[best]) * (1.0 - WORTH_MOVING);
    let home = if enough { present } else { groups[best].clone() };
    Some([home, groups[best].clone()])
}

fn idle(vector: &Vector, floor: &Floor<'_>, zone: &CpuSet, own: &CpuSet) -> Option<CpuId> {
    let topology = floor.room.topology;
    let shares_l2 = |cpu: CpuId| own.iter().any(|reader| topology.distance(cpu, reader) <= Distance::L2);
    let rank = |cpu: &CpuId| {
        let queues = floor.queues_on(&floor.core(*cpu));
        (queues, floor.is_slow(*cpu), !shares_l2(*cpu), vector.present != Some(*cpu), *cpu)
    };
    let limit = |cpu: CpuId| {
        if floor.core(cpu).iter().any(|cpu| vector.present == Some(cpu)) { IDLE_STAYS } else { IDLE_BELOW }
    };
    zone.iter().filter(|cpu| floor.core_busy_below(*cpu, limit(*cpu))).min_by_key(rank)
}

/// The least busy core first, the present one if it is hardly busier; then the CPU of it that is not read on.
fn least_busy(vector: &Vector, floor: &Floor<'_>, zone: &CpuSet, readers: &CpuSet) -> Option<CpuId> {
    let steps = |core: &CpuSet| core.lowest().map_or(u64::MAX, |cpu| (floor.core_busy(cpu) / STEP) as u64);
    let is_present = |core: &CpuSet| vector.present.is_some_and(|cpu| core.contains(cpu));
    let cores: BTreeSet<CpuSet> = zone.iter().map(|cpu| floor.core(cpu)).collect();
    let best =
        cores.iter().min_by_key(|core| (steps(core), floor.queues_on(core), !is_present(core), core.lowest()))?;
    let margin = (WORTH_MOVING / STEP) as u64;
    let good_enough = |core: &&CpuSet| {
        is_present(core) && floor.queues_on(core) <= floor.queues_on(best) && steps(core) <= steps(best) + margin
    };
    let core = cores.iter().find(good_enough).unwrap_or(best);
    zone.and(core).iter().min_by_key(|cpu| (readers.contains(*cpu), vector.present != Some(*cpu), *cpu))
}

fn cores_of(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    cpus.iter().fold(CpuSet::new(), |cores, cpu| cores.or(&topology.core_of(cpu)))
}

/// CPUs of the same node, or package where the kernel shows no nodes.
fn node_of(topology: &Topology, cpu: CpuId) -> CpuSet {
    let Some(known) = topology.cpus.get(&cpu) else { return CpuSet::new() };
    known.node.map_or_else(|| known.package.clone(), |node| topology.node_cpus(node))
}
