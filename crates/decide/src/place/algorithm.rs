//! [`Algorithm`]: what an affinity algorithm is, besides its name.

use crate::place::capacity::Capacity;
use crate::place::suggestion::Suggestion;
use crate::place::vector::Vector;

/// An affinity algorithm.
#[derive(Debug, Clone, Copy)]
pub struct Algorithm {
    /// Suggests a CPU for each vector, in the same order.
    pub suggest: fn(&Capacity<'_>, &[Vector]) -> Vec<Suggestion>,
    /// Whether the distances and wakeups that are counted after a move judge it: true of algorithms
    /// that move a queue for these alone. The others accept more of both for another aim.
    pub judged_by_counts: bool,
    /// Whether it moves a queue for a gain by the cost model, so that the gain says whether the
    /// move is worth a write.
    pub moves_for_estimated_gain: bool,
    /// Whether the interrupts of transmit completions follow the queues that it places.
    pub completions_follow: bool,
    /// Whether `tune` tries its placement.
    pub tried_by_tune: bool,
}
