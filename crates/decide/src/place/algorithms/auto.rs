//! Least cost by the model ([`crate::place::model`]), for all vectors together.
//!
//! It weighs what the other algorithms assume. Whether a vector goes near its consumer or on its
//! CPU depends on how busy that CPU is and what a wakeup costs. Whether it stays apart depends on a
//! free core at the same distance. It stays if nothing gains. The reason names the algorithm that
//! would choose the same CPU.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netsilo_model::cost::problem::SECOND_NS;
use netsilo_model::cost::solver::solve;
use netsilo_model::derive::reader_spread::ReaderSpread;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Distance;
use netsilo_model::machine::words::{bytes_per_s, whole_percent};

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::model::Model;
use crate::place::parts::Parts;
use crate::place::suggestion::Suggestion;
use crate::place::thresholds::SUFFICES_FIXED;
use crate::place::vector::{Completion, Vector};
use crate::place::words::consumer_in_words;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    suggest,
    judged_by_counts: true,
    moves_for_estimated_gain: true,
    completions_follow: true,
    tried_by_tune: true,
};

fn suggest(capacity: &Capacity<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    suggest_by(&Model::new(capacity, vectors))
}

pub(super) fn suggest_by(model: &Model<'_>) -> Vec<Suggestion> {
    let Model { capacity, vectors, .. } = model;
    let at = settled(capacity, vectors, solved(model));
    let at = unstacked(model, at.clone()).filter(|it| stays(model, it)).unwrap_or(at);
    let placed = model.placed(&at);
    let llcs = capacity.topology.llc_groups().len();
    let mut suggestion = |(index, vector): (usize, &Vector)| {
        if let Some(reason) = vector.quiet() {
            return Suggestion::Leave(reason);
        }
        let Some(cpu) = at[index] else { return Suggestion::Leave("no cpu is allowed".into()) };
        let basis = basis(capacity, vectors, &at, index, cpu, llcs);
        if vector.present == Some(cpu) {
            return Suggestion::Keep(cpu, format!("no other cpu gains enough: {basis}"));
        }
        let parts = placed.parts_by_place(index);
        let on = |cpu: CpuId| Some(parts(model.place(&cpu)?));
        let both = vector.present.and_then(on).zip(on(cpu));
        let gain = both.map_or_else(String::new, |(before, after)| gain_in_words(before, after));
        Suggestion::Move(cpu, format!("{basis}{gain}"))
    };
    vectors.iter().enumerate().map(&mut suggestion).collect()
}

/// Share of what a move must gain that suffices in a plan that moves something anyway.
const SUFFICES: f64 = 0.8;

/// Most rounds until nothing moves.
const ROUNDS: usize = 4;

/// The CPU of each vector at least cost.
fn solved(model: &Model<'_>) -> Vec<Option<CpuId>> {
    let cpu = |place: Option<usize>| place.map(|place| model.cpus[place]);
    solve(&model.problem).into_iter().map(cpu).collect()
}

/// Moves also what nearly gains enough, if anything moves: noise would make the next plan move it.
/// Of the fixed part of the least gain, less suffices then.
fn settled(
    capacity: &Capacity<'_>,
    vectors: &[Vector],
    first: Vec<Option<CpuId>>,
) -> Vec<Option<CpuId>> {
    let mut at = first;
    if vectors.iter().zip(&at).all(|(vector, at)| vector.present == *at || at.is_none()) {
        return at;
    }
    let mut eager = capacity.clone();
    eager.costs.assumed.scale_moving(SUFFICES);
    eager.costs.assumed.moving_least = capacity.costs.assumed.moving_least * SUFFICES_FIXED;
    let mut vectors = vectors.to_vec();
    for _ in 0..ROUNDS {
        vectors.iter_mut().zip(&at).for_each(|(it, at)| it.present = at.or(it.present));
        let next = solved(&Model::new(&eager, &vectors));
        if next == at {
            break;
        }
        at = next;
    }
    at
}

/// Whether the solver would move nothing from there.
fn stays(model: &Model<'_>, at: &[Option<CpuId>]) -> bool {
    let mut vectors = model.vectors.to_vec();
    vectors.iter_mut().zip(at).for_each(|(it, at)| it.present = at.or(it.present));
    solved(&Model::new(model.capacity, &vectors)) == at
}

/// Moves what moves anyway to the one with the fewest vectors of several CPUs that are as good;
/// `None` if that changes nothing.
fn unstacked(model: &Model<'_>, mut at: Vec<Option<CpuId>>) -> Option<Vec<Option<CpuId>>> {
    let first = at.clone();
    let Model { cpus, vectors, .. } = model;
    let mut counts: BTreeMap<CpuId, usize> = BTreeMap::new();
    at.iter().flatten().for_each(|cpu| *counts.entry(*cpu).or_default() += 1);
    let mut placed = model.placed(&at);
    for (index, vector) in vectors.iter().enumerate() {
        let Some(chosen) = at[index].filter(|cpu| vector.present != Some(*cpu)) else { continue };
        let count = |cpu: CpuId| counts.get(&cpu).copied().unwrap_or(0);
        let least = cpus.iter().map(|cpu| count(*cpu)).min().unwrap_or(0);
        let Some(place) = model.place(&chosen).filter(|_| count(chosen) > least + 1) else {
            continue;
        };
        let parts = placed.parts_by_place(index);
        let cost = |place: usize| parts(place).total();
        let limit = cost(place) + TOLD;
        let is_as_good = |(place, cpu): &(usize, &CpuId)| {
            vector.pool.contains(**cpu) && count(**cpu) + 1 < count(chosen) && cost(*place) <= limit
        };
        let others = cpus.iter().enumerate().filter(is_as_good);
        if let Some((other, cpu)) = others.min_by_key(|(_, cpu)| (count(**cpu), **cpu)) {
            drop(parts);
            placed.shift(index, other);
            *counts.entry(chosen).or_default() -= 1;
            *counts.entry(*cpu).or_default() += 1;
            at[index] = Some(*cpu);
        }
    }
    (at != first).then_some(at)
}

/// What a move changes: the CPU time that it saves or costs, and how much work waits.
fn gain_in_words(before: Parts, after: Parts) -> String {
    let share = |ns_per_s: f64| format!("{:.1}%", ns_per_s / SECOND_NS * 100.0);
    let mut text = String::new();
    let saved = before.cpu_time() - after.cpu_time();
    if saved.abs() >= TOLD {
        let word = if saved > 0.0 { "saves" } else { "costs" };
        let _ = write!(text, "; {word} {} of a cpu", share(saved.abs()));
    }
    let waits = |parts: Parts| parts.waiting + parts.crowding;
    if (waits(before) - waits(after)).abs() >= TOLD {
        let _ = write!(text, "; work waits {} -> {}", share(waits(before)), share(waits(after)));
    }
    text
}

/// A difference below this (ns/s) is not worth a word.
const TOLD: f64 = 0.0005 * SECOND_NS;

/// Names the algorithm that would choose the same CPU, with its numbers.
fn basis(
    capacity: &Capacity<'_>,
    vectors: &[Vector],
    at: &[Option<CpuId>],
    index: usize,
    cpu: CpuId,
    llcs: usize,
) -> String {
    let vector = &vectors[index];
    let topology = capacity.topology;
    let busy = |cpu| match capacity.busy.get(&cpu) {
        None => "of unknown load".to_owned(),
        Some(busy) => format!("{} busy otherwise", whole_percent(*busy)),
    };
    if let Some(reader) = vector.main_reader() {
        let all: f64 = vector.read_on.values().sum();
        let spread = ReaderSpread::from_reads(&vector.read_on, topology)
            .is_some_and(|it| it.is_spread(llcs));
        let consumer = consumer_in_words(vector);
        let near = |level: &str| {
            format!(
                "near-consumer: {consumer} ({}); cpu {cpu} on the same {level} is {}",
                busy(reader),
                busy(cpu)
            )
        };
        return match topology.distance(cpu, reader) {
            _ if spread => {
                let cpus = vector.read_on.len();
                format!(
                    "its {} are read evenly on {cpus} cpus: the polling cpu hardly matters",
                    bytes_per_s(all)
                )
            }
            Distance::SameCpu => format!("same-cpu: {consumer} ({})", busy(reader)),
            Distance::Smt => {
                format!("{consumer} ({}); cpu {cpu} is the other thread of that core", busy(reader))
            }
            Distance::L2 => near("level 2 cache"),
            Distance::Llc => near("last-level cache"),
            Distance::Node if topology.near(reader).contains(cpu) => near("node"),
            Distance::Node | Distance::Remote => {
                format!("{consumer}, near which every cpu costs more; cpu {cpu} is {}", busy(cpu))
            }
        };
    }
    let place_of = |other: usize| match at[other] {
        None => String::new(),
        Some(there) => format!(" on cpu {there}, {}", topology.distance(cpu, there).label()),
    };
    let from_here = vector.completed_by.iter().filter(|it| it.is_from(Some(cpu)));
    let most = from_here.max_by(|a, b| a.packets_per_s.total_cmp(&b.packets_per_s));
    if let Some(Completion { to, queue, packets_per_s, senders }) = most {
        let there = place_of(*to);
        let chosen = if senders.is_some() { ", which XPS chooses on this cpu" } else { "" };
        return format!("forwarding: hands {packets_per_s:.0} packets/s to {queue}{there}{chosen}");
    }
    if let Some((from, rate)) = fed_by(vectors, at, index) {
        let there = place_of(from);
        let label = &vectors[from].label;
        return format!("forwarding: completes {rate:.0} packets/s of {label}{there}");
    }
    format!("least-loaded: its reader is not known; cpu {cpu} is {}", busy(cpu))
}

/// The vector that hands most packets to this one, and how many per second.
fn fed_by(vectors: &[Vector], at: &[Option<CpuId>], index: usize) -> Option<(usize, f64)> {
    let to_this = |(from, vector): (usize, &Vector)| {
        let here = vector.completed_by.iter().filter(|it| it.to == index && it.is_from(at[from]));
        let rate: f64 = here.map(|it| it.packets_per_s).sum();
        (rate > 0.0).then_some((from, rate))
    };
    vectors.iter().enumerate().filter_map(to_this).max_by(|a, b| a.1.total_cmp(&b.1))
}
