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

    /// The ends of a relative change, as `+3% to +20%`.
    pub fn percent_range(self) -> String {
        format!("{} to {}", percent(self.low), percent(self.high))
    }

    /// The relative change with its interval, as `+12% (+3% to +20%)`.
    pub fn in_percent(self) -> String {
        format!("{} ({})", percent(self.value), self.percent_range())
    }

    /// Applies an increasing function to all three numbers; `exp` turns logarithms into ratios.
    pub fn map(self, growing: impl Fn(f64) -> f64) -> Self {
        Self { value: growing(self.value), low: growing(self.low), high: growing(self.high) }
    }
}

/// A relative change in whole percent, with its sign. Adding 0.0 turns -0.0 into 0.0: never "-0%".
fn percent(share: f64) -> String {
    format!("{:+}%", (100.0 * share).round() + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_nothing_has_no_minus() {
        let change = Estimate { value: 0.126, low: -0.001, high: 0.2 };
        assert_eq!(change.in_percent(), "+13% (+0% to +20%)");
    }
}
