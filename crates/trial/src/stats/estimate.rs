//! An estimate and its interval: the result of every method here.

use serde::{Deserialize, Serialize};

/// An estimate and its confidence interval. The caller knows the confidence level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Applies an increasing function to all three numbers; `exp` turns logarithms into ratios.
    pub fn map(self, growing: impl Fn(f64) -> f64) -> Self {
        Self { value: growing(self.value), low: growing(self.low), high: growing(self.high) }
    }
}
