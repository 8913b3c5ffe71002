//! Checks of a series of measurements: drift, outliers, correlated neighbours.

use serde::{Deserialize, Serialize};

use crate::stats::normal::{normal_cdf, normal_quantile};
use crate::stats::summary::{mean, median};

/// A value that is more than this many deviations from the median is an outlier.
const FAR: f64 = 5.0;

/// Factor from the median absolute deviation to the standard deviation of a normal distribution.
const TO_DEVIATION: f64 = 1.4826;

/// A drift or correlation is reported if its probability by chance is less than this.
const ERROR_RATE: f64 = 0.01;

/// Minimum number of values that can show a drift or an outlier.
const MIN_VALUES: usize = 8;

/// Steadiness of values in the order of measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Steadiness {
    /// Rise from first to last value (Theil-Sen line), relative to their median; `None` if chance
    /// may explain it (Mann-Kendall test at 1 %).
    pub drift: Option<f64>,
    /// Indices of outliers: more than 5 deviations (from the median absolute deviation) from the
    /// median.
    pub outliers: Vec<usize>,
    /// Correlation of neighbours, 1 if they are equal; `None` if chance may explain it.
    #[serde(rename = "autocorrelation")]
    pub autocorrelation: Option<f64>,
}

/// Computes the steadiness of values.
pub fn steadiness(values: &[f64]) -> Steadiness {
    Steadiness {
        drift: drift(values),
        outliers: outliers(values),
        autocorrelation: autocorrelation(values),
    }
}

fn drift(values: &[f64]) -> Option<f64> {
    if values.len() < MIN_VALUES {
        return None;
    }
    let pairs = || (0..values.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let rises = pairs().map(|(a, b)| (values[b] - values[a]) / (b - a) as f64).collect::<Vec<_>>();
    let balance: f64 =
        rises.iter().map(|rise| if *rise == 0.0 { 0.0 } else { rise.signum() }).sum();
    let n = values.len() as f64;
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let z = (balance.abs() - 1.0).max(0.0) / deviation;
    let chance = 2.0 * (1.0 - normal_cdf(z));
    let over_all = median(&rises)? * (n - 1.0) / median(values)?.abs();
    (chance < ERROR_RATE && over_all.is_finite()).then_some(over_all)
}

fn outliers(values: &[f64]) -> Vec<usize> {
    let Some(middle) = median(values) else { return Vec::new() };
    let off: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let deviation = median(&off).unwrap_or(0.0) * TO_DEVIATION;
    if values.len() < MIN_VALUES || deviation == 0.0 {
        return Vec::new();
    }
    (0..values.len()).filter(|at| off[*at] > FAR * deviation).collect()
}

fn autocorrelation(values: &[f64]) -> Option<f64> {
    let middle = mean(values)?;
    let off: Vec<f64> = values.iter().map(|value| value - middle).collect();
    let squares: f64 = off.iter().map(|off| off * off).sum();
    let alike = off.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / squares;
    let chance = normal_quantile(1.0 - ERROR_RATE / 2.0) / (values.len() as f64).sqrt();
    (values.len() >= MIN_VALUES && alike > chance).then_some(alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_has_a_size_and_too_few_values_have_none() {
        let rising: Vec<f64> = (0..20).map(|n| 100.0 + f64::from(n)).collect();
        let drift = steadiness(&rising).drift.unwrap();
        assert!((drift - 19.0 / 109.5).abs() < 1e-9, "{drift}");
        assert_eq!(steadiness(&rising[..7]).drift, None);
    }

    #[test]
    fn an_outlier_is_found_and_equal_values_have_none() {
        let mut values = vec![10.0, 10.1, 9.9, 10.2, 9.8, 10.0, 10.1, 9.9];
        assert_eq!(steadiness(&values).outliers, [0; 0]);
        values[2] = 14.0;
        assert_eq!(steadiness(&values).outliers, [2]);
        assert_eq!(steadiness(&[1.0; 9]), Steadiness::default());
        assert_eq!(steadiness(&[]), Steadiness::default());
    }

    #[test]
    fn correlated_neighbours_are_reported() {
        let waves: Vec<f64> = (0..40).map(|n| (f64::from(n) / 5.0).sin()).collect();
        assert!(steadiness(&waves).autocorrelation.unwrap() > 0.8);
        let to_and_fro: Vec<f64> = (0..40).map(|n| f64::from(n % 2)).collect();
        assert_eq!(steadiness(&to_and_fro).autocorrelation, None);
    }
}
