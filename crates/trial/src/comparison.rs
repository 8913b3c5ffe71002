//! A against B: pairs of measured numbers to a verdict, and what speaks against it. Nothing is
//! measured or written here.

use netsilo_stats::bootstrap::{self, Draws};
use netsilo_stats::sequential::{Look, Rules, Stop};
use netsilo_stats::steadiness::{Steadiness, steadiness};
use netsilo_stats::{Estimate, median, signed_rank};
use serde::{Deserialize, Serialize};

/// Which way a number is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// A rate.
    Higher,
    /// A cost.
    Lower,
}

/// How two numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// By their ratio: both are above 0.
    Ratio,
    /// By their difference: shares, which may be 0.
    Difference,
}

/// One number of each, measured one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// With A in force.
    pub a: f64,
    /// With B in force.
    pub b: f64,
    /// B came first; a coin decides.
    pub b_first: bool,
}

/// What is to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// When to stop; `matters` is relative where the scale is.
    pub rules: Rules,
    /// Ratio or difference.
    pub scale: Scale,
    /// Which way is better.
    pub better: Better,
    /// Where the bootstrap's random numbers begin.
    pub seed: u64,
}

/// B against A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is better.
    Better,
    /// B is worse.
    Worse,
    /// The interval holds zero, or there are too few pairs for one.
    NoDifferenceShown,
}

/// What the pairs say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// B against A.
    pub verdict: Verdict,
    /// Why no more pairs are wanted; `None` while more are.
    pub stop: Option<Stop>,
    /// How often the interval may miss the truth, whenever it stops.
    pub doubt: f64,
    /// Pairs that the interval is of.
    pub pairs_used: usize,
    /// B less A, relative to A where the scale is, with the interval that the verdict is from.
    pub change: Option<Estimate>,
    /// The bootstrap's interval of the same, of these pairs as if their number had been fixed: to
    /// be read, not decided by.
    pub bootstrap: Option<Estimate>,
    /// The middle value with A, and with B.
    pub medians: Option<(f64, f64)>,
    /// How steady A was.
    pub a: Steadiness,
    /// How steady B was.
    pub b: Steadiness,
    /// Which pairs' differences are far off; they move the interval little.
    pub far_off: Vec<usize>,
    /// All that was measured.
    pub pairs: Vec<Pair>,
}

impl Question {
    /// The difference that a pair shows, on the scale that is reckoned with.
    fn difference(&self, pair: &Pair) -> f64 {
        match self.scale {
            Scale::Ratio => (pair.b / pair.a).ln(),
            Scale::Difference => pair.b - pair.a,
        }
    }

    /// As people read it.
    fn told(&self, estimate: Estimate) -> Estimate {
        match self.scale {
            Scale::Ratio => estimate.map(f64::exp_m1),
            Scale::Difference => estimate,
        }
    }

    /// What these pairs say; the interval is that of the last look that they allow.
    pub fn compare(&self, pairs: &[Pair]) -> Comparison {
        let differences: Vec<f64> = pairs.iter().map(|pair| self.difference(pair)).collect();
        let each = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<_>>();
        let (a, b) = (each(|pair| pair.a), each(|pair| pair.b));
        let last = self.rules.last_look(&differences);
        let now = last.filter(|look| look.pairs == pairs.len());
        let draws = Draws { doubt: self.rules.doubt, seed: self.seed, ..Draws::default() };
        Comparison {
            verdict: self.verdict(last),
            stop: now.and_then(|look| look.stop),
            doubt: self.rules.doubt,
            pairs_used: last.map_or(0, |look| look.pairs),
            change: last.and_then(|look| look.estimate).map(|it| self.told(it)),
            bootstrap: bootstrap::interval(&differences, signed_rank::middle, draws)
                .map(|it| self.told(it)),
            medians: median(&a).zip(median(&b)),
            a: steadiness(&a),
            b: steadiness(&b),
            far_off: steadiness(&differences).outliers,
            pairs: pairs.to_vec(),
        }
    }

    /// Whether no more pairs are wanted.
    pub fn is_answered(&self, pairs: &[Pair]) -> bool {
        let differences: Vec<f64> = pairs.iter().map(|pair| self.difference(pair)).collect();
        self.rules.look(&differences).is_some_and(|look| look.stop.is_some())
    }

    fn verdict(&self, look: Option<Look>) -> Verdict {
        let Some(estimate) =
            look.and_then(|look| look.estimate).filter(|estimate| !estimate.holds(0.0))
        else {
            return Verdict::NoDifferenceShown;
        };
        let higher = estimate.value > 0.0;
        if higher == (self.better == Better::Higher) { Verdict::Better } else { Verdict::Worse }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        rules: Rules { most: 60, doubt: 0.05, matters: 0.01 },
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
        let told = QUESTION.compare(&pairs(8, 110.0));
        assert_eq!(
            (told.verdict, told.stop, told.pairs_used),
            (Verdict::Better, Some(Stop::Clear), 8)
        );
        let change = told.change.unwrap();
        assert!(
            (change.value - 0.1).abs() < 0.01 && change.low > 0.05 && change.high < 0.15,
            "{change:?}"
        );
        assert!(told.bootstrap.unwrap().holds(change.value));
        let cost = Question { better: Better::Lower, ..QUESTION };
        assert_eq!(cost.compare(&pairs(8, 110.0)).verdict, Verdict::Worse);
        assert_eq!(cost.compare(&pairs(8, 90.0)).verdict, Verdict::Better);
    }

    #[test]
    fn between_two_looks_the_last_one_counts() {
        let told = QUESTION.compare(&pairs(10, 110.0));
        assert_eq!((told.stop, told.pairs_used, told.pairs.len()), (None, 8, 10));
        assert_eq!(told.verdict, Verdict::Better);
        let few = QUESTION.compare(&pairs(3, 110.0));
        assert_eq!(
            (few.verdict, few.change, few.bootstrap),
            (Verdict::NoDifferenceShown, None, None)
        );
        assert_eq!(QUESTION.compare(&[]).medians, None);
    }

    #[test]
    fn an_interval_that_holds_zero_shows_no_difference() {
        let told = QUESTION.compare(&pairs(60, 100.0));
        assert_eq!(told.verdict, Verdict::NoDifferenceShown);
        assert!(told.change.unwrap().holds(0.0));
    }

    #[test]
    fn shares_are_compared_by_their_difference() {
        let question = Question { scale: Scale::Difference, ..QUESTION };
        let pairs: Vec<Pair> = (0..8)
            .map(|n| Pair { a: 0.0, b: 0.9 + 0.001 * f64::from(n), b_first: n % 2 == 0 })
            .collect();
        let told = question.compare(&pairs);
        assert_eq!(told.verdict, Verdict::Better);
        assert!((told.change.unwrap().value - 0.9035).abs() < 0.001);
    }
}
