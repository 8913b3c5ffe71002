//! What a race records while it runs, and how it is resumed: the same records lead to the same
//! race.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::derive::signature::Signature;
use serde::{Deserialize, Serialize};

use crate::experiment::{MachineSummary, Setting};
use crate::race::rails::{Breach, Peek};
use crate::race::rules::RaceRules;
use crate::workload::WorkloadMeasure;

/// The file with the plan: a [`RacePlan`].
pub const RACE: &str = "race.json";

/// Maximum number of candidates of a plan, which may come from a stranger.
const MOST_CANDIDATES: usize = 1000;

/// The newest schema of [`RacePlan`] that this netsilo reads; the one that it writes.
pub const RACE_SCHEMA: u32 = 1;

/// The plan of a race.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RacePlan {
    /// [`RACE_SCHEMA`].
    pub schema: u32,
    /// Version of netsilo.
    pub netsilo: String,
    /// The command line.
    pub command: Vec<String>,
    /// Start time, in seconds since 1970.
    pub started_s: u64,
    /// The machine.
    pub machine: MachineSummary,
    /// Name of the objective (`cpu-per-megabyte`, `latency`).
    pub objective: String,
    /// The command that is measured; empty for the live workload.
    pub load: Vec<String>,
    /// Unit of the objective; `None` if unknown.
    pub unit: Option<String>,
    /// The longest time of the search.
    pub budget: Duration,
    /// Length of a window of the live workload.
    pub window: Duration,
    /// Time between two checks of the guard rails.
    pub peek: Duration,
    /// Time to wait after each switch before a window.
    pub settle: Duration,
    /// The rules.
    pub rules: RaceRules,
    /// The workload before the search; `None` if no packet was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Signature>,
    /// The candidates; the first is the current state and changes nothing.
    pub candidates: Vec<Setting>,
}

/// Counts per unit of work in a window, other than the objective.
pub type Counts = BTreeMap<WorkloadMeasure, f64>;

/// One line of `records.jsonl`: a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RaceRecord {
    /// Index of the candidate.
    pub candidate: usize,
    /// Start time, in milliseconds since 1970.
    pub started_ms: u64,
    /// The parts of the window, in order of time.
    pub peeks: Vec<Peek>,
    /// How the window ended.
    pub end: TurnEnd,
    /// What was counted in the same window.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: Counts,
}

/// How a window ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEnd {
    /// With a value of the objective.
    Value(f64),
    /// The candidate broke a guard rail and was reverted.
    Broke(Breach),
    /// The window has no value, through no fault of the candidate.
    Lost(String),
    /// The candidate could not be applied or measured.
    Failed(String),
}

impl RacePlan {
    /// Checks a plan, which may come from a stranger.
    pub fn check(&self) -> Result<(), String> {
        match self.candidates.as_slice() {
            [present, _, ..] if !present.changes.is_empty() => {
                Err("the first candidate must change nothing: it is the current state".into())
            }
            [_, _, ..] if self.candidates.len() <= MOST_CANDIDATES => {
                self.workload.iter().try_for_each(Signature::check)?;
                self.rules.check()
            }
            all => Err(format!("{} candidates; 2 to {MOST_CANDIDATES} are read", all.len())),
        }
    }
}
