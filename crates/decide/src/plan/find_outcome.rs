//! [`FoundOutcome`]: which of the kept outcomes of this machine says something of a workload.

use std::time::Duration;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;

use crate::plan::matching_outcome::MatchingOutcome;
use crate::plan::measured_outcome::MeasuredOutcome;

/// An outcome and its id.
#[derive(Debug, Clone)]
pub struct KeptOutcome {
    /// The id; later ones are greater.
    pub id: String,
    /// What was measured.
    pub outcome: MeasuredOutcome,
}

/// What the kept outcomes of this machine say of a workload.
#[derive(Debug, Clone)]
pub enum FoundOutcome<'a> {
    /// This one was measured on it.
    Matches(MatchingOutcome<'a>),
    /// All were measured on other workloads; this is the newest.
    Differs {
        /// Its id.
        id: &'a str,
        /// How the workload differs.
        why: String,
    },
    /// Nothing was measured on this machine.
    Nothing,
}

/// Says what the kept outcomes say of an observation.
pub type FindOutcome<'a> = dyn Fn(&Analysis<'_>) -> FoundOutcome<'a> + 'a;

impl<'a> FoundOutcome<'a> {
    /// The newest outcome of this workload; else the newest one. `kept` has those of this machine,
    /// the newest first; `since_1970` is the time now.
    pub fn newest(kept: &'a [KeptOutcome], now: Option<&Signature>, since_1970: Duration) -> Self {
        let mut other = None;
        for KeptOutcome { id, outcome } in kept {
            let differs = match now {
                Some(now) => outcome.differs_in_workload(now),
                None => Some("no packet was counted, so the workload is not known".into()),
            };
            let Some(why) = differs else {
                return Self::Matches(MatchingOutcome::new(id, outcome, outcome.age(since_1970)));
            };
            other.get_or_insert(Self::Differs { id, why });
        }
        other.unwrap_or(Self::Nothing)
    }
}
