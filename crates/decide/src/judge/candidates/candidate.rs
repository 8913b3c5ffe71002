//! A state to try, and the model's prediction for it.

use serde::{Deserialize, Serialize};

use crate::judge::verdict::Claim;
use crate::plan::{PlacementCost, Plan};

/// A placement is left out if the model predicts this many times the current cost. Distances differ
/// between machines by a factor of two (`docs/judging.md`), so a smaller factor proves nothing.
const HOPELESS_COST: u64 = 2;

/// A state to try.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Candidate {
    /// Name (`auto`, `rps`, `auto+rps`, `nic-drops:eth0`).
    pub name: String,
    /// What it writes.
    pub plan: Plan,
    /// The model's prediction.
    pub expected: CandidateEstimate,
}

/// The model's prediction for a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CandidateEstimate {
    /// The cost of the placement.
    Cost(PlacementCost),
    /// The verdict on the remedy, with its reason.
    Verdict(Claim, String),
    /// The model says nothing.
    NotEstimated,
}

/// The predicted gain of each candidate, if there is one. Higher is better.
pub type Ranking<'a> = &'a dyn Fn(&[Candidate]) -> Vec<Option<f64>>;

/// The rank of a claim among others. The best one is first.
pub(super) fn rank(claim: Claim) -> u8 {
    match claim {
        Claim::Help => 0,
        Claim::NoClearChange => 1,
        Claim::Unknown => 2,
        Claim::Hurt => 3,
    }
}

impl CandidateEstimate {
    /// The rank of a candidate by its verdict. Without a verdict it ranks like one with no clear
    /// change.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Verdict(outcome, _) => rank(*outcome),
            Self::Cost(_) | Self::NotEstimated => rank(Claim::NoClearChange),
        }
    }

    /// Why the model excludes a candidate.
    pub(super) fn excluded(&self) -> Option<String> {
        match self {
            Self::Cost(PlacementCost {
                before_ns_per_s: before, after_ns_per_s: after, ..
            }) if *after > before.saturating_mul(HOPELESS_COST) => {
                let percent = |ns: u64| ns as f64 / 1e7;
                Some(format!(
                    "the model predicts a cost of {:.1}% of a cpu instead of {:.1}%",
                    percent(*after),
                    percent(*before)
                ))
            }
            Self::Verdict(Claim::Hurt, reason) => {
                Some(format!("the model predicts that it hurts: {reason}"))
            }
            _ => None,
        }
    }
}
