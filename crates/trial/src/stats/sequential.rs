//! Stopping rules of a comparison: stop early if the result is clear or hopeless, with the promised
//! error rate.
//!
//! Looks happen at a few numbers of pairs that are fixed beforehand. Each look has its share of the
//! error rate and an exact interval ([`signed_rank`]). All intervals together contain the true
//! difference with the promised confidence, whichever look is the last. A confidence sequence would
//! allow a look after each pair, but needs two to four times as many pairs. Here a pair costs
//! seconds and a look costs nothing.

use serde::{Deserialize, Serialize};

use crate::stats::estimate::Estimate;
use crate::stats::normal::normal_quantile;
use crate::stats::signed_rank;

/// Growth factor of the number of pairs between two looks.
const GROWTH: f64 = 1.45;

/// No comparison counts as hopeless before this share of the pairs.
const HOPE: f64 = 0.25;

/// The rules of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rules {
    /// Maximum number of pairs.
    #[serde(rename = "most")]
    pub max_pairs: usize,
    /// Probability that the interval does not contain the true difference.
    #[serde(rename = "doubt")]
    pub error_rate: f64,
    /// The smallest difference that matters; 0 if every difference matters.
    #[serde(rename = "matters")]
    pub smallest_relevant: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { max_pairs: 60, error_rate: 0.05, smallest_relevant: 0.01 }
    }
}

/// Why a comparison stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The interval excludes zero.
    Clear,
    /// The whole interval is smaller than `smallest_relevant`.
    Alike,
    /// The interval would still contain zero after all remaining pairs.
    Hopeless,
    /// All pairs have been measured.
    #[serde(rename = "used")]
    Exhausted,
}

/// The result of one look at the differences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Number of differences.
    pub pairs: usize,
    /// The estimated difference; `None` with too few differences.
    pub estimate: Option<Estimate>,
    /// Why to stop now; `None` means continue.
    pub stop: Option<Stop>,
}

impl Rules {
    /// The numbers of pairs at which to look. They are few, so that few looks share the error rate.
    pub fn looks(&self) -> Vec<usize> {
        // The first look with an interval depends on the number of looks, and vice versa.
        let numbers_from = |first: usize| {
            let grown = std::iter::successors(Some(first as f64), |n| Some(n * GROWTH))
                .map(|n| n.round() as usize);
            grown
                .take_while(|n| (*n as f64) < self.max_pairs as f64 / GROWTH.sqrt())
                .chain([self.max_pairs])
                .collect::<Vec<_>>()
        };
        let has_interval = |looks: &Vec<usize>| {
            looks[0] >= signed_rank::fewest(self.error_rate / looks.len() as f64)
        };
        (1..=self.max_pairs)
            .map(numbers_from)
            .find(has_interval)
            .unwrap_or_else(|| vec![self.max_pairs])
    }

    /// Whether a look at this many pairs has an interval.
    pub fn has_interval(&self, pairs: usize) -> bool {
        pairs >= signed_rank::fewest(self.error_rate / self.looks().len() as f64)
    }

    /// Looks at the differences so far; `None` if no look is due at their number.
    pub fn look(&self, differences: &[f64]) -> Option<Look> {
        let looks = self.looks();
        let pairs = differences.len();
        if !looks.contains(&pairs) {
            return None;
        }
        let error_rate = self.error_rate / looks.len() as f64;
        let estimate = signed_rank::interval(differences, error_rate);
        Some(Look { pairs, estimate, stop: self.stop(pairs, estimate, error_rate) })
    }

    /// The last look that was due for these differences.
    pub fn last_look(&self, differences: &[f64]) -> Option<Look> {
        let pairs = self.looks().into_iter().rfind(|pairs| *pairs <= differences.len())?;
        self.look(&differences[..pairs])
    }

    fn stop(&self, pairs: usize, estimate: Option<Estimate>, error_rate: f64) -> Option<Stop> {
        let used = (pairs >= self.max_pairs).then_some(Stop::Exhausted);
        let Some(estimate) = estimate else { return used };
        if !estimate.contains(0.0) {
            Some(Stop::Clear)
        } else if estimate.low > -self.smallest_relevant && estimate.high < self.smallest_relevant {
            Some(Stop::Alike)
        } else {
            used.or_else(|| {
                self.is_hopeless(pairs, &estimate, error_rate).then_some(Stop::Hopeless)
            })
        }
    }

    /// Whether more pairs cannot change the result.
    ///
    /// True if an estimate larger by two deviations would still lie within the interval expected
    /// from all pairs, and that interval would not be below `smallest_relevant`. This can only make
    /// the comparison show a difference less often.
    fn is_hopeless(&self, pairs: usize, estimate: &Estimate, error_rate: f64) -> bool {
        let used = pairs as f64 / self.max_pairs as f64;
        let half = (estimate.high - estimate.low) / 2.0;
        let at_the_end = half * used.sqrt();
        let deviation = half / normal_quantile(1.0 - error_rate / 2.0) * (1.0 - used).sqrt();
        let (least, most) =
            (estimate.value.abs() - 2.0 * deviation, estimate.value.abs() + 2.0 * deviation);
        used >= HOPE && most < at_the_end && least.max(0.0) + at_the_end > self.smallest_relevant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_few_and_the_first_has_an_interval() {
        let looks = |max_pairs| Rules { max_pairs, ..Rules::default() }.looks();
        assert_eq!(looks(60), [8, 12, 17, 24, 35, 60]);
        assert_eq!((looks(10), looks(6), looks(1)), (vec![7, 10], vec![6], vec![1]));
        assert_eq!(looks(1000).last(), Some(&1000));
    }

    #[test]
    fn equal_settings_are_alike_and_too_few_pairs_have_no_estimate() {
        let rules = Rules { smallest_relevant: 0.05, ..Rules::default() };
        let same = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01, -0.01, 0.005];
        assert_eq!(rules.look(&same).unwrap().stop, Some(Stop::Alike));
        assert_eq!(rules.look(&same[..7]), None);
        assert_eq!(rules.last_look(&same[..7]), None);
        let few = Rules { max_pairs: 3, ..rules };
        assert_eq!(
            few.look(&same[..3]).unwrap(),
            Look { pairs: 3, estimate: None, stop: Some(Stop::Exhausted) }
        );
    }
}
