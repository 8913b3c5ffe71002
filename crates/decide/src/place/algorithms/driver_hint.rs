//! Places each vector by the driver's `affinity_hint`: one queue per CPU, as the driver chose at
//! set-up.

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::suggestion::Suggestion;
use crate::place::vector::Vector;

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
    let Some(hint) = &vector.hint else {
        return Suggestion::Leave("its driver gives no affinity_hint".into());
    };
    let allowed = hint.and(&vector.pool);
    match (vector.present.filter(|cpu| allowed.contains(*cpu)), allowed.lowest()) {
        (Some(cpu), _) => Suggestion::Keep(cpu, format!("already where its driver hints: {hint}")),
        (None, Some(cpu)) => Suggestion::Move(cpu, format!("its driver hints at {hint}")),
        (None, None) => Suggestion::Leave(format!(
            "its driver hints at {hint}, outside the allowed cpus {}",
            vector.pool
        )),
    }
}
