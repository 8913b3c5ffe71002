//! The standard normal distribution.

use statrs::distribution::{ContinuousCDF, Normal};

/// The quantile of the standard normal distribution.
pub(crate) fn normal_quantile(share: f64) -> f64 {
    Normal::standard().inverse_cdf(share)
}

/// The cumulative probability of the standard normal distribution.
pub(crate) fn normal_cdf(z: f64) -> f64 {
    Normal::standard().cdf(z)
}
