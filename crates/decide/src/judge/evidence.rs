//! Evidence and remedies: a measurement with its source, and an action with its gain, cost and
//! exceptions. Findings and verdicts share them.

use netsilo_model::change::Change;
use netsilo_trial::stats::Estimate;
use serde::{Deserialize, Serialize};

/// One measurement that supports a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    /// The measured quantity.
    #[serde(rename = "what")]
    pub quantity: String,
    /// The value.
    pub measure: Measure,
    /// Where it was read or counted (`/proc/net/softnet_stat`, `tp_btf/napi_poll`).
    pub source: String,
}

/// A quantity with its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// A fraction of 1. It is a fraction of a CPU's time, unless the evidence names another whole.
    Share(f64),
    /// Events per second.
    PerSecond(f64),
    /// A number of objects, or of events in the interval.
    Count(u64),
    /// A duration in nanoseconds.
    Nanoseconds(f64),
    /// An amount of data in bytes.
    Bytes(u64),
    /// A data rate in bytes per second.
    BytesPerSecond(f64),
    /// A text, such as a setting as the kernel prints it.
    Text(String),
}

/// One action that addresses a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Remedy {
    /// The action.
    pub what: String,
    /// Its expected benefit.
    pub gain: Gain,
    /// Its cost; `None` if the cost is negligible.
    pub cost: Option<String>,
    /// When not to use it; `None` if no exception is known.
    pub not_when: Option<String>,
    /// What `plan --fix` writes. Empty if netsilo cannot write the remedy.
    pub changes: Vec<Change>,
    /// Whether writing it interrupts traffic for a moment.
    pub interrupts_traffic: bool,
}

/// The benefit of a remedy: a forecast, an upper bound from measurements, unknown, or none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Gain {
    /// The forecast of what it writes (docs/judging.md).
    Forecast {
        /// Relative change of the load that fits, with a 90% interval.
        load_that_fits: Estimate,
        /// What is full then.
        limit: String,
    },
    /// An upper bound.
    AtMost {
        /// The bound.
        measure: Measure,
        /// The quantity it is a part of (`cpu3's time`).
        of: String,
        /// How the bound was derived.
        basis: String,
    },
    /// No measurement limits the gain. The text says why.
    Unknown(String),
    /// There is no gain. The text says why.
    Nothing(String),
}

impl Gain {
    /// The forecast change of the load that fits; `None` without a forecast.
    pub fn forecast(&self) -> Option<f64> {
        match self {
            Self::Forecast { load_that_fits, .. } => Some(load_that_fits.value),
            _ => None,
        }
    }
}

impl Evidence {
    /// Creates an evidence from a quantity, its value and its source.
    pub fn new(quantity: impl Into<String>, measure: Measure, source: impl Into<String>) -> Self {
        Self { quantity: quantity.into(), measure, source: source.into() }
    }
}
