//! The CPU where the heaviest consumer reads most of a queue's data, as a kernel proposal of 2011
//! chose it.

use netsilo_model::derive::silo::heaviest;

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::suggestion::Suggestion;
use crate::place::thresholds::WORTH_MOVING;
use crate::place::vector::Vector;
use crate::place::words::{consumer_in_words, softirq_in_words};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    suggest,
    judged_by_counts: false,
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
    let Some(consumer) = &vector.consumer else {
        return Suggestion::Leave(vector.no_reader());
    };
    let allowed = |(cpu, share): (&_, &f64)| vector.pool.contains(*cpu).then_some((*cpu, *share));
    let words = consumer_in_words(vector);
    let Some(best) = heaviest(consumer.cpus.iter().filter_map(allowed)) else {
        return Suggestion::Leave(format!("{words}, outside the allowed cpus {}", vector.pool));
    };
    // Two consumers of about the same weight would alternate as the heaviest; so the bytes read on
    // a CPU decide.
    let most = consumer.bytes_per_s * consumer.cpus.get(&best).copied().unwrap_or(0.0);
    let read = |cpu| vector.read_on.get(&cpu).copied().unwrap_or(0.0);
    let enough = |cpu: &_| vector.pool.contains(*cpu) && read(*cpu) >= most * (1.0 - WORTH_MOVING);
    match vector.present.filter(enough) {
        Some(cpu) if cpu != best && consumer.cpus.get(&cpu).is_none_or(|share| *share == 0.0) => {
            Suggestion::Keep(
                cpu,
                format!(
                    "already on cpu {cpu}, where other consumers read as much as its heaviest: \
                     {words}"
                ),
            )
        }
        Some(cpu) => {
            Suggestion::Keep(cpu, format!("already on cpu {cpu}: its heaviest consumer {words}"))
        }
        None => {
            let softirq = softirq_in_words(vector);
            Suggestion::Move(best, format!("its heaviest consumer {words}{softirq}"))
        }
    }
}
