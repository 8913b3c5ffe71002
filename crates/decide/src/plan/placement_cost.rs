//! What the cost model says of a placement: its cost, the gain of each move, and the CPUs that were
//! not chosen.

use std::collections::BTreeMap;

use netsilo_model::cost::problem::CpuPlace;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Distance;

use crate::place::model::Model;
use crate::place::parts::Parts;
use crate::place::{Suggestion, Vector};
use crate::plan::contents::{Alternative, PlacementCost};

/// Rounding the parts changes their total by less than this (ns/s), and takes long.
const ROUNDED: f64 = 4.0;

/// What a plan says beyond its changes: costs take most of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Everything.
    Full,
    /// What each placement costs and gains, but not the CPUs that were not chosen.
    WithoutAlternatives,
    /// No costs.
    WithoutCosts,
}

/// What the model says of a vector where the plan puts it; nothing of one that the plan leaves.
#[derive(Default)]
pub(super) struct PlacedCost {
    /// Gain of the move (ns/s).
    pub(super) gain: f64,
    pub(super) cost: Parts,
    pub(super) alternatives: Vec<Alternative>,
}

/// Returns what the model says of each vector, and the predicted cost if anything moves.
pub(super) fn placement_cost(
    model: &Model<'_>,
    suggestions: &[Suggestion],
    detail: Detail,
) -> (Vec<PlacedCost>, Option<PlacementCost>) {
    let Model { capacity, vectors, .. } = model;
    let after: Vec<Option<CpuId>> = vectors
        .iter()
        .zip(suggestions)
        .map(|(vector, suggestion)| suggestion.cpu().or(vector.present))
        .collect();
    let before: Vec<Option<CpuId>> =
        vectors.iter().zip(&after).map(|(vector, after)| vector.present.or(*after)).collect();
    let placed = model.placed(&after);
    let moves = suggestions.iter().any(|suggestion| matches!(suggestion, Suggestion::Move(..)));
    let predicted = moves.then(|| {
        let (old, new) = (model.placed(&before).cost(), placed.cost());
        PlacementCost {
            before_ns_per_s: old.total().round() as u64,
            after_ns_per_s: new.total().round() as u64,
            before_cpu_ns_per_s: old.cpu_time().round() as u64,
            after_cpu_ns_per_s: new.cpu_time().round() as u64,
            distances: capacity.source.clone(),
        }
    });
    let judged = |(index, vector): (usize, &Vector)| {
        if let Suggestion::Leave(_) = suggestions[index] {
            return PlacedCost::default();
        }
        let parts = placed.parts_by_place(index);
        let on = |cpu: Option<CpuId>| Some(parts(model.place(&cpu?)?));
        let (here, there) = (on(vector.present), on(after[index]));
        let gain = here.zip(there).map_or(0.0, |(here, there)| here.total() - there.total());
        let alternatives = match detail {
            Detail::Full if vector.quiet().is_none() => {
                alternatives(model, parts, vector, after[index])
            }
            _ => Vec::new(),
        };
        PlacedCost { gain, cost: there.unwrap_or_default().rounded(), alternatives }
    };
    (vectors.iter().enumerate().map(judged).collect(), predicted)
}

/// The present CPU, and the cheapest one at each distance from the main reader, without the chosen
/// one.
fn alternatives(
    model: &Model<'_>,
    parts: impl Fn(usize) -> Parts,
    vector: &Vector,
    chosen: Option<CpuId>,
) -> Vec<Alternative> {
    let reader = vector.main_reader();
    let known = reader.and_then(|reader| model.capacity.topology.cpus.get(&reader));
    let levels = reader.zip(known).map(|(reader, known)| known.levels(reader));
    let distance = |cpu: CpuId, place: &CpuPlace| match levels {
        _ if reader == Some(cpu) => Distance::SameCpu,
        Some(levels) => Distance::between(&place.levels, &levels),
        None => Distance::Remote,
    };
    let mut cheapest: BTreeMap<Option<Distance>, Alternative> = BTreeMap::new();
    let mut present = None;
    for (number, (cpu, place)) in model.cpus.iter().zip(&model.problem.places).enumerate() {
        if Some(*cpu) == chosen || !vector.pool.contains(*cpu) {
            continue;
        }
        let cost = parts(number);
        let distance = reader.map(|_| distance(*cpu, place));
        let known = cheapest.get(&distance).map_or(f64::INFINITY, |it| it.cost.total());
        if Some(*cpu) != vector.present && cost.total() >= known + ROUNDED {
            continue;
        }
        let this = Alternative { cpu: *cpu, distance, cost: cost.rounded() };
        if Some(*cpu) == vector.present {
            present = Some(this.clone());
        }
        match cheapest.get(&distance) {
            Some(known) if known.cost.total() <= this.cost.total() => {}
            _ => {
                cheapest.insert(distance, this);
            }
        }
    }
    let mut all: Vec<Alternative> = cheapest.into_values().collect();
    all.extend(present.filter(|it| !all.contains(it)));
    all.sort_by(|a, b| a.cost.total().total_cmp(&b.cost.total()).then(a.cpu.cmp(&b.cpu)));
    all
}
