//! The CPU where all consumers together read most: no wakeup crosses CPUs, and no cache line moves.
//!
//! This suits consumers that leave their CPU idle; a busy consumer loses the time that polling
//! takes.

use netsilo_model::derive::silo::heaviest;

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::suggestion::Suggestion;
use crate::place::thresholds::WORTH_MOVING;
use crate::place::vector::Vector;
use crate::place::words::{consumer_in_words, softirq_in_words};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    suggest,
    judged_by_counts: true,
    moves_for_estimated_gain: false,
    completions_follow: false,
    tried_by_tune: true,
};

fn suggest(_: &Capacity<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    vectors.iter().map(place).collect()
}

fn place(vector: &Vector) -> Suggestion {
    if let Some(reason) = vector.quiet() {
        return Suggestion::Leave(reason);
    }
    let words = consumer_in_words(vector);
    let allowed = vector.read_on.iter().filter(|(cpu, _)| vector.pool.contains(**cpu));
    let Some(best) = heaviest(allowed.map(|(cpu, bytes)| (*cpu, *bytes))) else {
        return Suggestion::Leave(if vector.read_on.is_empty() {
            vector.no_reader()
        } else {
            format!("{words}, outside the allowed cpus {}", vector.pool)
        });
    };
    let read = |cpu| vector.read_on.get(&cpu).copied().unwrap_or(0.0);
    let all: f64 = vector.read_on.values().sum();
    let here = |cpu| format!("{:.0}% of its data is read on cpu {cpu}", read(cpu) / all * 100.0);
    let enough = |cpu| vector.pool.contains(cpu) && read(cpu) >= read(best) * (1.0 - WORTH_MOVING);
    match vector.present.filter(|cpu| enough(*cpu)) {
        Some(cpu) => Suggestion::Keep(cpu, format!("already on its reader's cpu: {}", here(cpu))),
        None => {
            let softirq = softirq_in_words(vector);
            Suggestion::Move(best, format!("{}: {words}{softirq}", here(best)))
        }
    }
}
