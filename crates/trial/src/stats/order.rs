//! Bounds of quantiles by the ranks of values. They need no assumption about the distribution.

use statrs::distribution::{Binomial, DiscreteCDF as _};

/// The highest rank (1 is the smallest value) among `count` values whose value is above the
/// quantile at `share` with at most this probability. `None` if there are too few values.
///
/// The number of values up to the quantile is binomial. (David and Nagaraja, Order Statistics,
/// 2003, section 7.1.)
pub fn rank_below_quantile(count: u64, share: f64, error_rate: f64) -> Option<u64> {
    let up_to_quantile = Binomial::new(share, count).ok()?;
    let (mut rank, mut above) = (0, count + 1);
    while rank + 1 < above {
        let middle = rank.midpoint(above);
        if up_to_quantile.cdf(middle - 1) <= error_rate { rank = middle } else { above = middle }
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_the_99th_percentile_has_more_than_a_hundredth_above_it() {
        // five or more of 100 values are above it with 0.34%, four or more with 1.8%
        assert_eq!(rank_below_quantile(100, 0.99, 0.01), Some(96));
        assert_eq!(rank_below_quantile(1000, 0.99, 0.01), Some(982));
        assert_eq!(rank_below_quantile(1, 0.99, 0.01), None);
        assert_eq!(rank_below_quantile(0, 0.99, 0.01), None);
    }

    #[test]
    fn the_bound_is_above_the_quantile_as_rarely_as_stated() {
        let mut random = fastrand::Rng::with_seed(1);
        let is_above = |_: &u32| {
            let mut values: Vec<f64> = (0..300).map(|_| random.f64()).collect();
            values.sort_unstable_by(f64::total_cmp);
            let rank = rank_below_quantile(300, 0.99, 0.01).unwrap_or(1) as usize;
            values[rank - 1] > 0.99
        };
        let above = (0..10_000).filter(is_above).count();
        assert!((20..=130).contains(&above), "{above} of 10000");
    }
}
