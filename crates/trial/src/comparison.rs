//! Compares A with B: turns pairs of numbers into a verdict and warnings. Measures and writes
//! nothing.

use crate::stats::bootstrap::{self, Draws};
use crate::stats::sequential::{Look, Rules, Stop};
use crate::stats::steadiness::{Steadiness, steadiness};
use crate::stats::{Estimate, median, signed_rank};
use serde::{Deserialize, Serialize};

/// Which direction of a number is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// For rates.
    Higher,
    /// For costs.
    Lower,
}

/// How two numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// By their ratio. Both must be above 0.
    Ratio,
    /// By their difference. This is for shares, which may be 0.
    Difference,
}

/// One number for each setting, measured directly after each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pair {
    /// The number under setting A.
    pub a: f64,
    /// The number under setting B.
    pub b: f64,
    /// Whether B ran first. This is decided at random.
    pub b_first: bool,
}

/// The parameters of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComparisonSpec {
    /// When to stop. `smallest_relevant` is relative on the ratio scale.
    pub rules: Rules,
    /// Ratio or difference.
    pub scale: Scale,
    /// Which direction is better.
    pub better: Better,
    /// Seed of the bootstrap's random numbers.
    pub seed: u64,
}

/// The result of B compared with A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// B is better.
    Better,
    /// B is worse.
    Worse,
    /// The interval contains zero, or there are too few pairs for an interval.
    NoDifferenceShown,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// B compared with A.
    pub verdict: Conclusion,
    /// Why to stop measuring; `None` if more pairs are needed.
    pub stop: Option<Stop>,
    /// Probability that the interval does not contain the true change, whenever the comparison
    /// stops.
    #[serde(rename = "doubt")]
    pub error_rate: f64,
    /// Number of pairs used for the interval.
    pub pairs_used: usize,
    /// B minus A, relative to A on the ratio scale. The verdict follows from its interval.
    pub change: Option<Estimate>,
    /// The bootstrap interval of the same change, as if the number of pairs had been fixed. It is
    /// informative only, and not used for the verdict.
    pub bootstrap: Option<Estimate>,
    /// The medians with A and with B.
    pub medians: Option<(f64, f64)>,
    /// Steadiness of A.
    pub a: Steadiness,
    /// Steadiness of B.
    pub b: Steadiness,
    /// Indices of pairs with outlying differences. They have little influence on the interval.
    #[serde(rename = "far_off")]
    pub outliers: Vec<usize>,
    /// All measured pairs.
    pub pairs: Vec<Pair>,
}

impl ComparisonSpec {
    /// The difference of a pair, on the scale used for the statistics.
    pub(crate) fn difference(&self, pair: &Pair) -> f64 {
        match self.scale {
            Scale::Ratio => (pair.b / pair.a).ln(),
            Scale::Difference => pair.b - pair.a,
        }
    }

    /// The estimate on the scale for display.
    fn for_display(&self, estimate: Estimate) -> Estimate {
        match self.scale {
            Scale::Ratio => estimate.map(f64::exp_m1),
            Scale::Difference => estimate,
        }
    }

    /// Compares the pairs. The interval is that of the last look that was due.
    pub fn compare(&self, pairs: &[Pair]) -> Comparison {
        let differences: Vec<f64> = pairs.iter().map(|pair| self.difference(pair)).collect();
        let each = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<_>>();
        let (a, b) = (each(|pair| pair.a), each(|pair| pair.b));
        let last = self.rules.last_look(&differences);
        let now = last.filter(|look| look.pairs == pairs.len());
        let draws =
            Draws { error_rate: self.rules.error_rate, seed: self.seed, ..Draws::default() };
        Comparison {
            verdict: self.verdict(last),
            stop: now.and_then(|look| look.stop),
            error_rate: self.rules.error_rate,
            pairs_used: last.map_or(0, |look| look.pairs),
            change: last.and_then(|look| look.estimate).map(|it| self.for_display(it)),
            bootstrap: bootstrap::interval(&differences, signed_rank::middle, draws)
                .map(|it| self.for_display(it)),
            medians: median(&a).zip(median(&b)),
            a: steadiness(&a),
            b: steadiness(&b),
            outliers: steadiness(&differences).outliers,
            pairs: pairs.to_vec(),
        }
    }

    /// Whether no more pairs are needed.
    pub fn is_answered(&self, pairs: &[Pair]) -> bool {
        let differences: Vec<f64> = pairs.iter().map(|pair| self.difference(pair)).collect();
        self.rules.look(&differences).is_some_and(|look| look.stop.is_some())
    }

    fn verdict(&self, look: Option<Look>) -> Conclusion {
        let Some(estimate) =
            look.and_then(|look| look.estimate).filter(|estimate| !estimate.contains(0.0))
        else {
            return Conclusion::NoDifferenceShown;
        };
        let higher = estimate.value > 0.0;
        if higher == (self.better == Better::Higher) {
            Conclusion::Better
        } else {
            Conclusion::Worse
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: ComparisonSpec = ComparisonSpec {
        rules: Rules { max_pairs: 60, error_rate: 0.05, smallest_relevant: 0.01 },
        scale: Scale::Ratio,
        better: Better::Higher,
        seed: 1,
    };

    fn pairs(n: usize, b: f64) -> Vec<Pair> {
        let wave = |n: usize| 1.0 + 0.004 * ((n * 7 % 5) as f64 - 2.0);
        (0..n)
            .map(|n| Pair { a: 100.0 * wave(n), b: b * wave(n + 3), b_first: n % 2 == 0 })
            .collect()
    }

    #[test]
    fn a_clear_difference_is_shown_with_its_size_and_its_direction() {
        assert!(!QUESTION.is_answered(&pairs(7, 110.0)));
        let comparison = QUESTION.compare(&pairs(8, 110.0));
        assert_eq!(
            (comparison.verdict, comparison.stop, comparison.pairs_used),
            (Conclusion::Better, Some(Stop::Clear), 8)
        );
        let change = comparison.change.unwrap();
        assert!(
            (change.value - 0.1).abs() < 0.01 && change.low > 0.05 && change.high < 0.15,
            "{change:?}"
        );
        assert!(comparison.bootstrap.unwrap().contains(change.value));
        let cost = ComparisonSpec { better: Better::Lower, ..QUESTION };
        assert_eq!(cost.compare(&pairs(8, 110.0)).verdict, Conclusion::Worse);
        assert_eq!(cost.compare(&pairs(8, 90.0)).verdict, Conclusion::Better);
    }

    #[test]
    fn between_two_looks_the_earlier_look_counts() {
        let comparison = QUESTION.compare(&pairs(10, 110.0));
        assert_eq!((comparison.stop, comparison.pairs_used, comparison.pairs.len()), (None, 8, 10));
        assert_eq!(comparison.verdict, Conclusion::Better);
        let few = QUESTION.compare(&pairs(3, 110.0));
        assert_eq!(
            (few.verdict, few.change, few.bootstrap),
            (Conclusion::NoDifferenceShown, None, None)
        );
        assert_eq!(QUESTION.compare(&[]).medians, None);
    }

    #[test]
    fn an_interval_containing_zero_shows_no_difference() {
        let comparison = QUESTION.compare(&pairs(60, 100.0));
        assert_eq!(comparison.verdict, Conclusion::NoDifferenceShown);
        assert!(comparison.change.unwrap().contains(0.0));
    }

    #[test]
    fn shares_are_compared_by_their_difference() {
        let question = ComparisonSpec { scale: Scale::Difference, ..QUESTION };
        let pairs: Vec<Pair> = (0..8)
            .map(|n| Pair { a: 0.0, b: 0.9 + 0.001 * f64::from(n), b_first: n % 2 == 0 })
            .collect();
        let comparison = question.compare(&pairs);
        assert_eq!(comparison.verdict, Conclusion::Better);
        assert!((comparison.change.unwrap().value - 0.9035).abs() < 0.001);
    }
}
