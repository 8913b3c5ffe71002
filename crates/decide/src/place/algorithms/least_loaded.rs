//! The least busy CPU of the device's node, then of other nodes: the method of balancers that know
//! no flows.

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::words::whole_percent;

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::cpu_loads::{CpuLoads, millionths};
use crate::place::suggestion::Suggestion;
use crate::place::thresholds::WORTH_MOVING;
use crate::place::vector::Vector;

/// Most rounds over all vectors; each move evens out the CPUs, so the loop ends earlier.
const ROUNDS: usize = 32;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    suggest,
    judged_by_counts: false,
    moves_for_estimated_gain: false,
    completions_follow: false,
    tried_by_tune: true,
};

fn suggest(capacity: &Capacity<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let mut loads = CpuLoads::new(capacity);
    let mut at: Vec<Option<CpuId>> = Vec::with_capacity(vectors.len());
    for vector in vectors {
        let present = vector.present.filter(|cpu| vector.pool.contains(*cpu));
        present.into_iter().for_each(|cpu| loads.put(cpu, vector));
        at.push(present);
    }
    let mut order: Vec<usize> =
        (0..vectors.len()).filter(|index| vectors[*index].quiet().is_none()).collect();
    order.sort_unstable_by_key(|index| {
        (std::cmp::Reverse(millionths(capacity.load(&vectors[*index]))), *index)
    });
    let near: Vec<Vec<CpuId>> = vectors.iter().map(|it| nearest(it, capacity)).collect();
    // A plan that moves anything leaves no vector just below the threshold, where noise would make
    // the next plan move it.
    let mut margin = WORTH_MOVING;
    for _ in 0..ROUNDS {
        let mut moved = false;
        for &index in &order {
            let vector = &vectors[index];
            at[index].into_iter().for_each(|cpu| loads.take(cpu, vector));
            let to = place(vector, &near[index], at[index], margin, &loads);
            to.into_iter().for_each(|cpu| loads.put(cpu, vector));
            moved |= to != at[index];
            at[index] = to;
        }
        if !moved {
            break;
        }
        margin = WORTH_MOVING / 2.0;
    }
    vectors.iter().zip(at).map(|(vector, at)| suggestion(vector, at, &loads)).collect()
}

/// The CPUs of a vector's pool that are nearest to its device.
fn nearest(vector: &Vector, capacity: &Capacity<'_>) -> Vec<CpuId> {
    let far = |cpu: &CpuId| capacity.topology.distance_from_device(vector.node, *cpu);
    let least = vector.pool.iter().map(|cpu| far(&cpu)).min();
    vector.pool.iter().filter(|cpu| Some(far(cpu)) == least).collect()
}

/// Returns the best CPU, of those that are near, for a vector that is at `at` and whose load is not
/// counted in `loads`; it stays while another one is better by at most `margin`.
fn place(
    vector: &Vector,
    near: &[CpuId],
    at: Option<CpuId>,
    margin: f64,
    loads: &CpuLoads<'_>,
) -> Option<CpuId> {
    let with = |cpu: CpuId| crowd(loads, cpu) + millionths(loads.capacity.load_on(cpu, vector));
    let rank = |cpu: &CpuId| (with(*cpu), at != Some(*cpu), loads.queues_at(*cpu), *cpu);
    let best = near.iter().copied().min_by_key(rank)?;
    let limit = with(best) + millionths(margin);
    let good_enough = |cpu: &CpuId| near.contains(cpu) && with(*cpu) <= limit;
    at.filter(good_enough).or(Some(best))
}

/// Busy time of a CPU, plus the share that the other threads of its core take from it.
fn crowd(loads: &CpuLoads<'_>, cpu: CpuId) -> u64 {
    let own = loads.busy(cpu);
    own + ((loads.core_busy(cpu) - own) as f64 * loads.capacity.smt_loss) as u64
}

fn suggestion(vector: &Vector, at: Option<CpuId>, loads: &CpuLoads<'_>) -> Suggestion {
    if let Some(reason) = vector.quiet() {
        return Suggestion::Leave(reason);
    }
    let Some(cpu) = at else { return Suggestion::Leave("no cpu is allowed".into()) };
    let busy = whole_percent(loads.busy(cpu) as f64 / 1e6);
    let busy = format!("cpu {cpu} is {busy} busy including it");
    if vector.present == Some(cpu) {
        Suggestion::Keep(cpu, format!("{busy}, and none is clearly less busy"))
    } else {
        Suggestion::Move(cpu, format!("{busy}, the least busy of the device's node"))
    }
}
