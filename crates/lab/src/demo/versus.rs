//! Whether netsilo's placement differs from another one, in words.

use std::fmt;

use netsilo_trial::stats::sequential::{Rules, Stop};
use netsilo_trial::stats::{Estimate, median};

/// Rounds are measured until each row is clear, alike or hopeless, but no more than these.
pub(super) const RULES: Rules = Rules { max_pairs: 10, error_rate: 0.05, smallest_relevant: 0.03 };

/// The change of a figure from another placement to netsilo's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Versus {
    /// Relative to the other's median; `None` before the first look, and where that is 0.
    change: Option<Estimate>,
    stop: Option<Stop>,
    more_is_better: bool,
}

impl Versus {
    /// Compares rounds that were measured in turn.
    pub(super) fn of(other: &[f64], ours: &[f64], more_is_better: bool) -> Self {
        let scale = median(other).filter(|it| *it > 0.0);
        let differences: Vec<f64> = ours.iter().zip(other).map(|(ours, it)| ours - it).collect();
        let relative = scale.map(|scale| differences.iter().map(|it| it / scale).collect());
        let look = RULES.last_look(&relative.unwrap_or(differences));
        Self {
            change: scale.and(look.and_then(|look| look.estimate)),
            stop: look.and_then(|look| look.stop),
            more_is_better,
        }
    }

    /// Whether more rounds would not change the words.
    pub(super) fn is_settled(&self) -> bool {
        self.stop.is_some()
    }
}

impl fmt::Display for Versus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.change, self.stop) {
            (Some(change), Some(Stop::Clear)) => {
                let is_better = (change.value > 0.0) == self.more_is_better;
                let word = if is_better { "better" } else { "worse" };
                write!(f, "{word}: {}", change.in_percent())
            }
            (Some(_), Some(Stop::Alike)) => f.write_str("same"),
            (Some(change), _) => write!(f, "no difference shown ({})", change.percent_range()),
            (None, _) => f.write_str("no difference shown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_of_five_rounds_show_nothing_and_clear_rounds_are_told_with_an_interval() {
        let mixed =
            Versus::of(&[10.0, 10.0, 10.0, 10.0, 10.0], &[12.0, 13.0, 12.0, 8.0, 7.0], true);
        assert_eq!(mixed.to_string(), "no difference shown");
        assert!(!mixed.is_settled());
        let rounds = |middle: f64| -> Vec<f64> {
            (0..RULES.max_pairs).map(|n| middle + 0.01 * (n % 3) as f64).collect()
        };
        let [slow, fast] = [rounds(10.0), rounds(15.0)];
        assert_eq!(Versus::of(&slow, &fast, true).to_string(), "better: +50% (+50% to +50%)");
        assert_eq!(Versus::of(&slow, &fast, false).to_string(), "worse: +50% (+50% to +50%)");
        assert!(Versus::of(&slow, &fast, true).is_settled());
        assert_eq!(Versus::of(&slow, &slow, true).to_string(), "same");
        let nothing = vec![0.0; RULES.max_pairs];
        assert_eq!(Versus::of(&nothing, &nothing, true).to_string(), "no difference shown");
    }
}
