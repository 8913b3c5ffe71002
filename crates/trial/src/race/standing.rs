//! The standings of a race: each candidate, why it is out, and the winner.

use crate::stats::Estimate;
use serde::{Deserialize, Serialize};

use crate::race::rails::Breach;
use crate::workload::WorkloadMeasure;

/// Whether a candidate is still measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is still measured.
    In,
    /// It is not measured any more.
    Out {
        /// Number of complete rounds before.
        round: u32,
        /// The reason.
        why: OutReason,
    },
}

/// Why a candidate is not measured any more. A change is the change of the objective from the other
/// setting to this one, relative on the ratio scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutReason {
    /// It broke a guard rail, and the current state measured directly after it did not.
    Rail(Breach),
    /// It is worse than the current state.
    WorseThanPresent(Estimate),
    /// Others were better in the rounds so far.
    Outranked {
        /// The estimated change from the current state.
        change: f64,
    },
    /// It cannot gain enough to matter, or a gain could not be shown even with the whole budget.
    NothingToGain(Estimate),
    /// It could not be applied or measured.
    Failed(String),
}

/// One candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Standing {
    /// Index of the candidate; 0 is the current state.
    pub candidate: usize,
    /// Whether it is still measured.
    pub status: Status,
    /// Number of windows with a value.
    pub windows: usize,
    /// Median of the objective; `None` without a window.
    pub median: Option<f64>,
    /// The change of the objective from the current state, at the error rate that all candidates
    /// share. `None` for the current state, and before the first look.
    pub change: Option<Estimate>,
    /// Whether that interval shows a gain.
    pub is_better: bool,
}

/// A count per unit of work that differs from the current state's, in the windows of a candidate's
/// final. It never decides who wins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountChange {
    /// Index of the candidate.
    pub candidate: usize,
    /// What was counted.
    pub measure: WorkloadMeasure,
    /// The change from the current state, relative for CPU time. Its interval is clear of 0.
    pub change: Estimate,
    /// Whether the change is better.
    pub is_better: bool,
}

/// What the rest of a race can show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// Windows that are left.
    pub windows: usize,
    /// The least gain that the final will probably show, on the scale of the statistics; `None`
    /// before it is known how much windows differ.
    pub least_gain: Option<f64>,
}

/// How a race ended, or stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RaceResult {
    /// This candidate is better than the current state, by this change of the objective.
    Won {
        /// Index of the candidate.
        candidate: usize,
        /// The change from the current state.
        change: Estimate,
    },
    /// No candidate was shown to be better.
    NoDifferenceShown,
}
