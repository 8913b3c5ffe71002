//! The bootstrap: the interval of any statistic, by resampling.
//!
//! BCa (bias-corrected and accelerated) instead of percentiles: measured times are skewed, and
//! percentile intervals are off-centre for a biased statistic or one whose spread grows with it.
//! BCa gives the same interval for a ratio and for its logarithm. Its coverage is wrong for a
//! sample that was stopped by looking at the data; use [`crate::stats::sequential`] for that.

use fastrand::Rng;

use crate::stats::estimate::Estimate;
use crate::stats::normal::{normal_cdf, normal_quantile};
use crate::stats::summary::{mean, quantile, sorted};

/// Minimum number of values that show a spread.
pub const MIN_VALUES: usize = 5;

/// Parameters of the resampling.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    /// Number of resamples.
    pub resamples: usize,
    /// Probability of both tails together.
    pub error_rate: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Draws {
    fn default() -> Self {
        Self { resamples: 2000, error_rate: 0.05, seed: 1 }
    }
}

/// A statistic of a sample (for pairs: of their differences) and its BCa interval.
///
/// `None` for fewer than [`MIN_VALUES`] values, or if the statistic of a resample is not a number.
pub fn interval(
    sample: &[f64],
    figure: impl Fn(&[f64]) -> Option<f64>,
    draws: Draws,
) -> Option<Estimate> {
    if sample.len() < MIN_VALUES {
        return None;
    }
    let value = figure(sample).filter(|value| value.is_finite())?;
    let drawn = draw(sample, &figure, draws)?;
    let below = drawn.iter().filter(|drawn| **drawn < value).count();
    let ties = drawn.iter().filter(|drawn| **drawn == value).count();
    let share = (below as f64 + ties as f64 / 2.0) / drawn.len() as f64;
    let edge = 0.5 / drawn.len() as f64;
    let bias = normal_quantile(share.clamp(edge, 1.0 - edge));
    let acceleration = acceleration(sample, &figure)?;
    let at = |tail: f64| {
        let z = bias + normal_quantile(tail);
        let corrected = normal_cdf(bias + z / (1.0 - acceleration * z));
        quantile(&drawn, corrected)
    };
    let (low, high) = (at(draws.error_rate / 2.0)?, at(1.0 - draws.error_rate / 2.0)?);
    Some(Estimate { value, low: low.min(value), high: high.max(value) })
}

/// The statistic of each resample, in ascending order.
fn draw(sample: &[f64], figure: &impl Fn(&[f64]) -> Option<f64>, draws: Draws) -> Option<Vec<f64>> {
    let mut rng = Rng::with_seed(draws.seed);
    let mut again = sample.to_vec();
    let mut drawn = Vec::with_capacity(draws.resamples);
    for _ in 0..draws.resamples {
        again.fill_with(|| sample[rng.usize(..sample.len())]);
        drawn.push(figure(&again).filter(|value| value.is_finite())?);
    }
    Some(sorted(&drawn))
}

/// The acceleration: how the spread of the statistic grows with it, from the jackknife.
fn acceleration(sample: &[f64], figure: &impl Fn(&[f64]) -> Option<f64>) -> Option<f64> {
    let without = |n: usize| {
        let rest: Vec<f64> =
            sample.iter().enumerate().filter(|(at, _)| *at != n).map(|(_, value)| *value).collect();
        figure(&rest)
    };
    let figures: Vec<f64> = (0..sample.len()).map(without).collect::<Option<_>>()?;
    let mean = mean(&figures)?;
    let sum = |power: i32| figures.iter().map(|figure| (mean - figure).powi(power)).sum::<f64>();
    let squares = sum(2);
    Some(if squares > 0.0 { sum(3) / (6.0 * squares.powf(1.5)) } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_interval_and_too_few_values_none() {
        let sample = [1.0, 2.0, 4.0, 8.0, 16.0, 3.0];
        let one = interval(&sample, mean, Draws::default()).unwrap();
        assert_eq!(Some(one), interval(&sample, mean, Draws::default()));
        assert!(one.low < one.value && one.value < one.high);
        assert_ne!(Some(one), interval(&sample, mean, Draws { seed: 2, ..Draws::default() }));
        assert_eq!(interval(&sample[..4], mean, Draws::default()), None);
        assert_eq!(interval(&[1.0, f64::NAN, 1.0, 1.0, 1.0], mean, Draws::default()), None);
        let same = interval(&[2.0; 6], mean, Draws::default()).unwrap();
        assert_eq!((same.low, same.value, same.high), (2.0, 2.0, 2.0));
    }
}
