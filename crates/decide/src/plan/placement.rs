//! Places interrupts and NAPI kthreads: asks the algorithm for a CPU for each vector.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::{Target, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::{Silo, heaviest};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::Netdev;

use crate::place::model::Model;
use crate::place::{
    AlgorithmName, Capacity, Completion, FILLS_A_CPU, Suggestion, Vector, suggest, suggest_auto,
};
use crate::plan::completions::{add_completed_by, follow, senders};
use crate::plan::contents::{Advice, Plan};
use crate::plan::free_vectors::FreeVectors;
use crate::plan::goal::Goal;
use crate::plan::irq_changes::accept;
use crate::plan::matching_outcome::MatchingOutcome;
use crate::plan::placement_cost::{Detail, PlacedCost, placement_cost};
use crate::plan::places::{Places, present_places};
use crate::plan::threads;
use crate::plan::vectors::{Group, VectorRules, groups};

/// What a placement follows.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis<'a> {
    /// The algorithms of the goal.
    Algorithms,
    /// Everything stays where it is, if it is where it may be; else the algorithms.
    Present,
    /// A measured outcome.
    Outcome(&'a MatchingOutcome<'a>),
}

impl Basis<'_> {
    fn suggestions<'m, F: FnOnce() -> Model<'m>>(
        self,
        capacity: &Capacity<'_>,
        vectors: &[Vector],
        model: &LazyCell<Model<'m>, F>,
        groups: &[(Group<'_>, AlgorithmName)],
    ) -> Vec<Suggestion> {
        let may_stay = |vector: &Vector| vector.present.is_some_and(|it| vector.pool.contains(it));
        match self {
            Self::Present if vectors.iter().all(|it| it.quiet().is_some() || may_stay(it)) => {
                vectors.iter().map(stay).collect()
            }
            Self::Present | Self::Algorithms => {
                let algorithms: Vec<_> = groups.iter().map(|(_, algorithm)| *algorithm).collect();
                suggest_each(capacity, vectors, model, &algorithms)
            }
            Self::Outcome(matching) => {
                let pairs = groups.iter().zip(vectors);
                pairs.map(|((group, _), vector)| matching.suggest(group, vector)).collect()
            }
        }
    }
}

/// The suggestion to stay.
fn stay(vector: &Vector) -> Suggestion {
    match (vector.quiet(), vector.present) {
        (Some(quiet), _) => Suggestion::Leave(quiet),
        (None, Some(cpu)) => Suggestion::Keep(cpu, "more load fits if nothing moves".to_owned()),
        (None, None) => Suggestion::Leave("no cpu is known".to_owned()),
    }
}

/// Plans the changes that move interrupts and kthreads as the basis has them; also returns the CPU
/// of each interrupt afterwards.
pub(super) fn place(
    analysis: &Analysis<'_>,
    netdevs: &[&Netdev],
    pool: Option<CpuSet>,
    goal: &Goal,
    basis: Basis<'_>,
    detail: Detail,
) -> (Places, Plan) {
    let after = analysis.after();
    let mut places = present_places(&analysis.rates, analysis.after());
    let Some(pool) = pool.filter(|_| goal.irqs) else { return (places, Plan::default()) };
    let allowed = pool.len();
    let prepared = prepare(analysis, netdevs, pool.clone(), goal);
    let Prepared { groups, vectors, capacity, mut part } = prepared;
    let model = LazyCell::new(|| Model::new(&capacity, &vectors));
    let mut suggestions = basis.suggestions(&capacity, &vectors, &model, &groups);
    let mut free = FreeVectors::of(after);
    let placed = groups.iter().map(|(group, _)| group.movable_irq(after)).zip(&vectors);
    free.fit(after, placed, &mut suggestions);
    part.advice.extend(netdevs.iter().filter_map(|it| fewer_queues(it, &groups, allowed)));
    let judged = if detail == Detail::WithoutCosts {
        suggestions.iter().map(|_| PlacedCost::default()).collect()
    } else {
        let (judged, predicted) = placement_cost(&model, &suggestions, detail);
        part.predicted = predicted;
        judged
    };
    let assumed = &capacity.costs.assumed;
    let senders = senders(analysis, goal, &groups, &vectors, &suggestions, assumed);
    let (mut changes, mut busy) = (Vec::new(), capacity.busy.clone());
    for ((((group, algorithm), vector), suggestion), judged) in
        groups.iter().zip(&vectors).zip(suggestions).zip(judged)
    {
        let at = suggestion.cpu().or(vector.present);
        let at = at.and_then(|cpu| Some((cpu, busy.get_mut(&cpu)?)));
        at.into_iter().for_each(|(cpu, busy)| *busy += capacity.load_on(cpu, vector));
        let (cpu, basis, moves) = match suggestion {
            Suggestion::Leave(reason) => {
                part.leave(&vector.label, &reason);
                continue;
            }
            Suggestion::Move(cpu, reason) => (cpu, reason, true),
            Suggestion::Keep(cpu, reason) => (cpu, reason, false),
        };
        if moves {
            changes.extend(group.changes(after, cpu, &vector.label, &basis));
        } else {
            part.leave(&vector.label, &basis);
            // A kthread that stays put still wants its interrupt on its CPU.
            let threaded = group.kthread().is_some();
            let change = group.interrupt_to_kthread(after, cpu, &vector.label);
            changes.extend(change.filter(|it| threaded && free.take_for_change(after, it)));
        }
        part.placements.push(group.placement(after, vector, *algorithm, cpu, basis, judged));
    }
    let names_some = !goal.netdevs.is_empty() || !goal.readers.is_empty();
    if !names_some && !matches!(basis, Basis::Outcome(_)) {
        part = part.and(threads::apart(analysis, &pool, busy));
    }
    let mut completions = match basis {
        Basis::Outcome(matching) => {
            Plan { changes: matching.completions(analysis, netdevs), ..Plan::default() }
        }
        Basis::Present => Plan::default(),
        Basis::Algorithms => follow(analysis, netdevs, &senders, &part.placements),
    };
    completions.changes.retain(|change| free.take_for_change(after, change));
    changes.append(&mut completions.changes);
    let placed = part.placements.iter().chain(&completions.placements);
    let placed: BTreeSet<Irq> = placed.filter_map(|placement| placement.irq).collect();
    let accepted = accept(after, goal, changes, &placed);
    for change in &accepted.changes {
        if let (Target::IrqAffinity(knob), Value::Cpus(cpus)) = (&change.target, &change.new) {
            places.extend(cpus.single().map(|cpu| (knob.irq, cpu)));
        }
    }
    (places, part.and(completions).and(accepted))
}

/// Demand of a vector on a saturated CPU, relative to the time that it got: an assumption. Packets
/// that were lost or not sent took no time.
const UNSERVED: f64 = 1.5;

/// Replaces what softirqs on saturated CPUs got by an estimate of what they would take of a CPU
/// with time left, unless one vector fills the CPU. A kthread gets its turns like any thread.
fn estimate_demand(vectors: &mut [(Group<'_>, Vector, AlgorithmName)], capacity: &Capacity<'_>) {
    let shares = |group: &Group<'_>| {
        let mut shares: BTreeMap<CpuId, f64> = BTreeMap::new();
        for (cpu, share) in group.silos.iter().flat_map(|silo| &silo.own_share) {
            *shares.entry(*cpu).or_default() += share;
        }
        shares
    };
    let mut busy = capacity.busy.clone();
    for (cpu, share) in vectors.iter().flat_map(|(group, ..)| shares(group)) {
        busy.entry(cpu).and_modify(|busy| *busy += share);
    }
    let [_, (saturated, _)] = capacity.costs.assumed.full;
    for (group, vector, _) in vectors {
        // Where its load was measured, whatever its settings are by now.
        let cpu = heaviest(shares(group).into_iter());
        let was_full = cpu.and_then(|cpu| busy.get(&cpu)).is_some_and(|busy| *busy >= saturated);
        if was_full && !vector.threaded && vector.load < FILLS_A_CPU {
            vector.load *= UNSERVED;
        }
    }
}

/// Advice on a netdev with more queues than CPUs that may take their interrupts: the others take
/// vectors and only divide the same work into more interrupts.
fn fewer_queues(
    netdev: &Netdev,
    groups: &[(Group<'_>, AlgorithmName)],
    cpus: usize,
) -> Option<Advice> {
    let own = groups.iter().filter(|(group, _)| group.netdev.name == netdev.name);
    let interrupts = own.filter(|(group, _)| group.irq.is_some()).count();
    let channels = netdev.ethtool.as_ref()?.channels.value()?;
    let limit = channels.combined.filter(|limit| limit.max > 0);
    let (name, limit) = limit.map(|it| ("combined", it)).or(channels.rx.map(|it| ("rx", it)))?;
    let too_many = cpus > 0 && interrupts > cpus && limit.current as usize > cpus;
    let text = format!(
        "it has {interrupts} interrupts for its queues, and {cpus} cpus may take them: fewer \
         queues (ethtool -L {} {name} {cpus}) do the same work with fewer interrupts and vectors; \
         this resets the device",
        netdev.name
    );
    too_many.then(|| Advice { subject: netdev.name.clone(), text, needs_rfs: false })
}

/// What an algorithm places, and the CPUs for it.
pub(super) struct Prepared<'a> {
    /// The interrupts and kthreads of each vector, and its algorithm.
    groups: Vec<(Group<'a>, AlgorithmName)>,
    pub(super) vectors: Vec<Vector>,
    pub(super) capacity: Capacity<'a>,
    /// The part of the plan that says what cannot be placed.
    part: Plan,
}

/// Makes the vectors of some netdevs.
pub(super) fn prepare<'a>(
    analysis: &'a Analysis<'a>,
    netdevs: &[&'a Netdev],
    pool: CpuSet,
    goal: &Goal,
) -> Prepared<'a> {
    let after = analysis.after();
    let (groups, mut part) = groups(analysis, netdevs);
    let (immovable, groups): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(|group| group.immovable(analysis).is_some());
    part.refuse_all(immovable.iter().filter_map(|group| group.immovable(analysis)));
    let (rules, left_out) = VectorRules::new(after, goal, pool);
    part = part.and(left_out);
    let mut vectors: Vec<(Group<'_>, Vector, AlgorithmName)> = Vec::new();
    for group in groups {
        match rules.vector(group, after) {
            Ok(vector) => vectors.push(vector),
            Err(left) => part = part.and(*left),
        }
    }
    add_completed_by(after, &analysis.silos, goal, &mut vectors);
    let placed: Vec<&Silo> =
        vectors.iter().flat_map(|(group, ..)| group.silos.iter().copied()).collect();
    let capacity = Capacity::new(analysis, &placed);
    estimate_demand(&mut vectors, &capacity);
    let split_group = |(group, vector, algorithm)| ((group, algorithm), vector);
    let (groups, vectors) = vectors.into_iter().map(split_group).unzip();
    Prepared { groups, vectors, capacity, part }
}

/// Asks each vector's own algorithm for a suggestion.
///
/// Load that another algorithm places counts as busy time of its CPU. `auto` runs last, as it
/// weighs everything else.
fn suggest_each<'m, F: FnOnce() -> Model<'m>>(
    capacity: &Capacity<'_>,
    vectors: &[Vector],
    model: &LazyCell<Model<'m>, F>,
    algorithms: &[AlgorithmName],
) -> Vec<Suggestion> {
    let mut names: Vec<AlgorithmName> = AlgorithmName::ALL.to_vec();
    names.retain(|name| algorithms.contains(name));
    if let Some(auto) = names.iter().position(|name| *name == AlgorithmName::Auto) {
        names[auto..].rotate_left(1);
    }
    match names.as_slice() {
        [AlgorithmName::Auto] => return suggest_auto(model),
        [only] => return suggest(*only, capacity, vectors),
        _ => {}
    }
    let mut at: Vec<Option<CpuId>> = vectors.iter().map(|vector| vector.present).collect();
    let mut suggestions: Vec<Suggestion> = vec![Suggestion::Leave(String::new()); vectors.len()];
    for name in names {
        let (mine, others): (Vec<usize>, Vec<usize>) =
            (0..vectors.len()).partition(|index| algorithms[*index] == name);
        let mut capacity = capacity.clone();
        for index in others {
            let load = at[index].map_or(0.0, |cpu| capacity.load_on(cpu, &vectors[index]));
            if let Some(busy) = at[index].and_then(|cpu| capacity.busy.get_mut(&cpu)) {
                *busy = (*busy + load).min(1.0);
            }
        }
        let number = |index: &usize| mine.binary_search(index).ok();
        let own = |index: &usize| {
            let renumbered =
                |it: &Completion| Some(Completion { to: number(&it.to)?, ..it.clone() });
            let completed_by = vectors[*index].completed_by.iter().filter_map(renumbered).collect();
            Vector { completed_by, ..vectors[*index].clone() }
        };
        let own: Vec<Vector> = mine.iter().map(own).collect();
        for (index, suggestion) in mine.iter().zip(suggest(name, &capacity, &own)) {
            at[*index] = suggestion.cpu().or(at[*index]);
            suggestions[*index] = suggestion;
        }
    }
    suggestions
}
