//! Runs an algorithm by its name.

use crate::place::algorithm::AlgorithmName;
use crate::place::capacity::Capacity;
use crate::place::suggestion::Suggestion;
use crate::place::vector::Vector;
use crate::place::{
    auto, dedicated, driver_hint, least_loaded, near_consumer, rfs_max_weight, same_cpu, spread,
};

/// Asks an algorithm for a suggestion for each vector, in the same order.
pub fn suggest(
    algorithm: AlgorithmName,
    capacity: &Capacity<'_>,
    vectors: &[Vector],
) -> Vec<Suggestion> {
    let suggest = match algorithm {
        AlgorithmName::Auto => auto::suggest,
        AlgorithmName::NearConsumer => near_consumer::suggest,
        AlgorithmName::RfsMaxWeight => rfs_max_weight::suggest,
        AlgorithmName::SameCpu => same_cpu::suggest,
        AlgorithmName::Dedicated => dedicated::suggest,
        AlgorithmName::Spread => spread::suggest,
        AlgorithmName::LeastLoaded => least_loaded::suggest,
        AlgorithmName::DriverHint => driver_hint::suggest,
    };
    suggest(capacity, vectors)
}
