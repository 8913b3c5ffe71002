//! Statistics of measured differences: intervals, stopping rules, checks of the measurement.
//!
//! Pure: the caller gives the seed of random numbers. Tests simulate the coverage of each interval.
//! `docs/ab.md` explains the choice of methods.
//! simulated in the tests. `docs/ab.md` says in plain words why these methods.

pub mod bootstrap;
pub mod sequential;
pub mod signed_rank;
#[cfg(any(test, feature = "simulate"))]
pub mod simulate;
pub mod steadiness;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// An estimate and its confidence interval; the caller knows the confidence level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The point estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// Whether the interval, ends included, contains a value.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Applies an increasing function to all three numbers; `exp` turns logarithms into ratios.
    pub fn map(self, growing: impl Fn(f64) -> f64) -> Self {
        Self { value: growing(self.value), low: growing(self.low), high: growing(self.high) }
    }
}

/// The quantile of sorted samples at `share`, interpolated between neighbours; `None` without
/// samples.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = share * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (*sorted.get(at.floor() as usize)?, *sorted.get(at.ceil() as usize)?);
    Some(low + (high - low) * at.fract())
}

/// The median of samples in any order; `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(&sorted(samples), 0.5)
}

/// The mean; `None` without samples.
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The quantile of the standard normal distribution.
fn normal_quantile(share: f64) -> f64 {
    Normal::standard().inverse_cdf(share)
}

/// The difference between the means of two unpaired samples, by Student's interval.
///
/// Uses a common variance, so two samples against one are enough. Assumes a standard deviation of
/// at least `least_deviation`. `doubt` is the probability of both tails together.
pub fn difference_of_means(
    before: &[f64],
    after: &[f64],
    least_deviation: f64,
    doubt: f64,
) -> Option<Estimate> {
    let (mean_before, mean_after) = (mean(before)?, mean(after)?);
    let squares = |samples: &[f64], mean: f64| {
        samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>()
    };
    let (n, m) = (before.len() as f64, after.len() as f64);
    let freedom = n + m - 2.0;
    let deviation = ((squares(before, mean_before) + squares(after, mean_after)) / freedom).sqrt();
    let quantile = StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(1.0 - doubt / 2.0);
    let half = quantile * deviation.max(least_deviation) * (1.0 / n + 1.0 / m).sqrt();
    let value = mean_after - mean_before;
    Some(Estimate { value, low: value - half, high: value + half })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{normal, share};

    #[test]
    fn quantiles_are_interpolated_and_none_without_samples() {
        assert_eq!(quantile(&[1.0, 2.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[1.0, 2.0, 9.0], 1.0), Some(9.0));
        assert_eq!((median(&[9.0, 1.0, 2.0]), median(&[]), mean(&[])), (Some(2.0), None, None));
    }

    #[test]
    fn difference_of_means_has_the_promised_coverage() {
        let covered = share(2000, |rng| {
            let mut around =
                |mean: f64, n: usize| (0..n).map(|_| mean + normal(rng)).collect::<Vec<_>>();
            let (before, after) = (around(10.0, 3), around(11.0, 5));
            difference_of_means(&before, &after, 0.0, 0.05).unwrap().holds(1.0)
        });
        assert!((0.935..=0.965).contains(&covered), "{covered}");
        assert_eq!(difference_of_means(&[1.0], &[], 0.0, 0.05), None);
        assert_eq!(difference_of_means(&[1.0], &[2.0], 0.0, 0.05), None);
    }
}
