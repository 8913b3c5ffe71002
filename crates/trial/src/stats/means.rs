//! Student's interval of the difference between two means.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::stats::estimate::Estimate;
use crate::stats::summary::mean;

/// The difference between the means of two unpaired samples, by Student's interval.
///
/// Uses a common variance, so two samples against one are enough. Assumes a standard deviation of
/// at least `least_deviation`. `error_rate` is the probability of both tails together.
pub fn difference_of_means(
    before: &[f64],
    after: &[f64],
    least_deviation: f64,
    error_rate: f64,
) -> Option<Estimate> {
    let (mean_before, mean_after) = (mean(before)?, mean(after)?);
    let squares = |samples: &[f64], mean: f64| {
        samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>()
    };
    let (n, m) = (before.len() as f64, after.len() as f64);
    let freedom = n + m - 2.0;
    let deviation = ((squares(before, mean_before) + squares(after, mean_after)) / freedom).sqrt();
    let quantile = StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(1.0 - error_rate / 2.0);
    let half = quantile * deviation.max(least_deviation) * (1.0 / n + 1.0 / m).sqrt();
    let value = mean_after - mean_before;
    Some(Estimate { value, low: value - half, high: value + half })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_on_each_side_has_no_interval() {
        assert_eq!(difference_of_means(&[1.0], &[], 0.0, 0.05), None);
        assert_eq!(difference_of_means(&[1.0], &[2.0], 0.0, 0.05), None);
    }
}
