//! The rules of a race, fixed before it starts.

use crate::stats::sequential::Rules;
use serde::{Deserialize, Serialize};

use crate::comparison::{Better, ComparisonSpec, Pair, Scale};

/// Number of windows of the current state before the first round. The first limits come from them.
pub(super) const REFERENCE_TURNS: usize = 2;

/// Probability that the interval that drops a candidate does not contain the true difference.
const DROP_ERROR_RATE: f64 = 0.05;

/// The rules of a race.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RaceRules {
    /// Number of windows that the budget allows.
    pub turns: usize,
    /// Maximum probability that a candidate wins although it is no better than the current state,
    /// for all candidates together.
    pub error_rate: f64,
    /// The smallest difference that matters. On the ratio scale it is relative.
    pub smallest_relevant: f64,
    /// How much worse than the current state a candidate may be, as a share of the current value.
    pub never_worse: f64,
    /// How many consecutive parts of a window must exceed the limit of the objective to break it.
    /// The other rails need two.
    pub streak: usize,
    /// Ratio or difference.
    pub scale: Scale,
    /// Which direction of the objective is better.
    pub better: Better,
    /// Seed of the random order.
    pub seed: u64,
}

impl Default for RaceRules {
    fn default() -> Self {
        Self {
            turns: 200,
            error_rate: 0.05,
            smallest_relevant: 0.01,
            never_worse: 0.05,
            streak: 2,
            scale: Scale::Ratio,
            better: Better::Lower,
            seed: 1,
        }
    }
}

impl RaceRules {
    /// Maximum number of rounds. It is reached if two candidates are left, so that each round takes
    /// two windows.
    fn most_rounds(&self) -> usize {
        (self.turns.saturating_sub(REFERENCE_TURNS) / 2).max(1)
    }

    /// The rules of the intervals that show that a candidate is better than the current state. All
    /// candidates share the error rate (Bonferroni).
    pub(super) fn claims(&self, candidates: usize) -> Rules {
        let challengers = candidates.saturating_sub(1).max(1);
        let error_rate = self.error_rate / challengers as f64;
        Rules {
            max_pairs: self.most_rounds(),
            error_rate,
            smallest_relevant: self.smallest_relevant,
        }
    }

    /// The rules of the intervals that drop a candidate.
    pub(super) fn drops(&self) -> Rules {
        Rules {
            max_pairs: self.most_rounds(),
            error_rate: DROP_ERROR_RATE,
            smallest_relevant: self.smallest_relevant,
        }
    }

    /// Minimum number of windows to distinguish this many candidates, including the current state,
    /// even if none is dropped early.
    pub fn least_turns(&self, candidates: usize) -> usize {
        let enough = |turns: usize| {
            let rules = Self { turns, ..*self }.claims(candidates);
            let first = rules.looks()[0];
            rules.has_interval(first) && turns >= REFERENCE_TURNS + first * candidates
        };
        (1..).find(|turns| enough(*turns)).unwrap_or(usize::MAX)
    }

    /// How much worse `b` is than `a`, on the scale used for the statistics. Negative if better.
    pub(super) fn loss(&self, a: f64, b: f64) -> f64 {
        let spec = ComparisonSpec {
            rules: self.drops(),
            scale: self.scale,
            better: self.better,
            seed: self.seed,
        };
        let higher = spec.difference(&Pair { a, b, b_first: false });
        if self.better == Better::Higher { -higher } else { higher }
    }

    /// Whether a value can be compared. On the ratio scale it must be above 0.
    pub fn accepts(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Difference || value > 0.0)
    }

    /// Checks rules that may come from a stranger's file.
    pub(super) fn check(&self) -> Result<(), String> {
        let shares = [
            ("error_rate", self.error_rate),
            ("smallest_relevant", self.smallest_relevant),
            ("never_worse", self.never_worse),
        ];
        if let Some((name, value)) = shares.iter().find(|(_, it)| !(0.0..1.0).contains(it)) {
            return Err(format!("{name} is {value}; it must be from 0 to below 1"));
        }
        match (self.error_rate > 0.0, self.streak, self.turns) {
            (false, ..) => Err("error_rate is 0; it must be above".into()),
            (_, 0, _) => Err("streak is 0; it must be at least 1".into()),
            (_, _, 0 | 1_000_001..) => Err("turns must be from 1 to 1000000".into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_candidates_need_more_windows() {
        let least = |candidates| RaceRules::default().least_turns(candidates);
        assert!(least(2) >= REFERENCE_TURNS + 2 * 6, "{}", least(2));
        assert!(least(2) < least(4) && least(4) < least(9) && least(9) < 200, "{}", least(9));
    }

    #[test]
    fn a_loss_is_positive_whichever_direction_is_better() {
        let cost = RaceRules::default();
        assert!((cost.loss(100.0, 110.0) - 1.1_f64.ln()).abs() < 1e-12);
        let rate = RaceRules { better: Better::Higher, ..cost };
        assert!(rate.loss(100.0, 90.0) > 0.1);
        let share = RaceRules { scale: Scale::Difference, better: Better::Higher, ..cost };
        assert!((share.loss(0.9, 0.5) - 0.4).abs() < 1e-12);
    }
}
