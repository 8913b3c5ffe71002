//! Wilcoxon's signed-rank test: an exact interval for the centre of paired differences, for any
//! distribution.
//!
//! If a coin decides which side of a pair runs first, each difference is equally likely to lie
//! above or below the true one. The interval then has the promised coverage under drift, skew and
//! tails of any kind (a finite variance is not needed).

use crate::stats::estimate::Estimate;
use crate::stats::normal::normal_quantile;
use crate::stats::summary::{quantile, sorted};

/// Up to this number of differences the distribution of the rank sum is exact. Above, it is
/// approximated as normal.
const EXACT: usize = 200;

/// The Hodges-Lehmann estimate: the median of the means of all pairs of samples, including each
/// sample with itself.
pub fn middle(differences: &[f64]) -> Option<f64> {
    quantile(&walsh(differences), 0.5)
}

/// The Hodges-Lehmann estimate and its interval. `error_rate` limits the probability of both tails
/// together.
///
/// `None` with too few differences: even with equal signs they would be too probable by chance.
pub fn interval(differences: &[f64], error_rate: f64) -> Option<Estimate> {
    let outside = outside(differences.len(), error_rate)?;
    let means = walsh(differences);
    let last = means.len().checked_sub(1 + outside)?;
    Some(Estimate {
        value: quantile(&means, 0.5)?,
        low: *means.get(outside)?,
        high: *means.get(last)?,
    })
}

/// Minimum number of differences for an interval.
pub fn fewest(error_rate: f64) -> usize {
    (1..).find(|n| outside(*n, error_rate).is_some()).unwrap_or(usize::MAX)
}

/// The means of all pairs of samples, in ascending order.
fn walsh(samples: &[f64]) -> Vec<f64> {
    let pairs = samples
        .iter()
        .enumerate()
        .flat_map(|(n, a)| samples[..=n].iter().map(move |b| (a + b) / 2.0));
    sorted(&pairs.collect::<Vec<_>>())
}

/// The number of sorted means outside the interval on each side: the largest rank sum whose
/// cumulative probability is at most half the error rate.
fn outside(n: usize, error_rate: f64) -> Option<usize> {
    let half = error_rate / 2.0;
    if n > EXACT {
        let n = n as f64;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        let at = n * (n + 1.0) / 4.0 + normal_quantile(half) * deviation - 0.5;
        return (at >= 0.0).then_some(at as usize);
    }
    let mut below = 0.0;
    let fits = rank_sums(n).into_iter().take_while(|probability| {
        below += probability;
        below <= half
    });
    fits.count().checked_sub(1)
}

/// The probability of each sum of the positive ranks among 1 to n, with random signs.
fn rank_sums(n: usize) -> Vec<f64> {
    let mut probability = vec![0.0; n * (n + 1) / 2 + 1];
    probability[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..=rank * (rank + 1) / 2).rev() {
            let without = probability[sum];
            let with = sum.checked_sub(rank).map_or(0.0, |before| probability[before]);
            probability[sum] = (without + with) / 2.0;
        }
    }
    probability
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_values_match_published_tables() {
        // Wilcoxon's critical values for two tails of 0.05 and 0.01.
        let critical = |n, error_rate| outside(n, error_rate);
        assert_eq!(
            [6, 8, 10, 20, 30].map(|n| critical(n, 0.05)),
            [Some(0), Some(3), Some(8), Some(52), Some(137)]
        );
        assert_eq!(
            [8, 10, 20, 30].map(|n| critical(n, 0.01)),
            [Some(0), Some(3), Some(37), Some(109)]
        );
        assert_eq!((critical(5, 0.05), fewest(0.05), fewest(0.01)), (None, 6, 8));
        let (exact, normal) = (outside(200, 0.05).unwrap(), outside(201, 0.05).unwrap());
        assert!(normal > exact && normal - exact < 120, "{exact} {normal}");
    }

    #[test]
    fn one_outlier_does_not_move_the_middle() {
        let quiet = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0];
        let mut one_off = quiet;
        one_off[3] = 1e9;
        let (quiet, one_off) = (interval(&quiet, 0.05).unwrap(), interval(&one_off, 0.05).unwrap());
        assert!(
            (quiet.value - 1.0).abs() < 0.02 && (one_off.value - 1.0).abs() < 0.03,
            "{quiet:?} {one_off:?}"
        );
    }
}
