//! The rules of a race, fixed before it starts.

use crate::stats::sequential::Rules;
use crate::stats::signed_rank::fewest;
use serde::{Deserialize, Serialize};

use crate::comparison::{Better, ComparisonSpec, Pair, Scale};

/// Number of windows of the current state before the first round. The first limits come from them.
pub(super) const REFERENCE_TURNS: usize = 2;

/// The finals that there may be: the share of the error rate that each one has.
pub(super) const FINALS: [f64; 2] = [0.8, 0.2];

/// The share of the windows in which all candidates that are left are measured, of those that are
/// not needed for the shortest final.
const SCREENING: f64 = 0.6;

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
    /// The rules of the intervals of the n-th final, which has at most this many pairs.
    pub(super) fn of_final(&self, nth: usize, max_pairs: usize) -> Rules {
        Rules {
            max_pairs: max_pairs.max(1),
            error_rate: self.error_rate * FINALS[nth],
            smallest_relevant: self.smallest_relevant,
        }
    }

    /// Number of windows of the shortest n-th final that has an interval.
    pub(super) fn least_final(&self, nth: usize) -> usize {
        2 * fewest(self.error_rate * FINALS[nth])
    }

    /// In how many rounds this many candidates are measured before the worse half is dropped, if
    /// this many windows are left.
    pub(super) fn rounds(&self, left: usize, candidates: usize) -> usize {
        let free = left.saturating_sub(self.least_final(0)) as f64 * SCREENING;
        let stages = (candidates as f64).log2().ceil();
        ((free / stages) as usize / (candidates + 1)).max(1)
    }

    /// Number of windows of the final, if all candidates are still measured.
    pub(super) fn windows_of_final(&self, left: usize) -> usize {
        let least = self.least_final(0).min(left);
        least + ((left - least) as f64 * (1.0 - SCREENING)) as usize
    }

    /// Minimum number of windows for a race between this many candidates, including the current
    /// state: a round of all, in which one in four breaks a guard rail, and a final.
    pub fn least_turns(&self, candidates: usize) -> usize {
        let round = if candidates > 2 { candidates + candidates / 4 } else { 0 };
        REFERENCE_TURNS + round + self.least_final(0)
    }

    /// How much worse `b` is than `a`, on the scale used for the statistics. Negative if better.
    pub(super) fn loss(&self, a: f64, b: f64) -> f64 {
        let spec = ComparisonSpec {
            rules: Rules::default(),
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
