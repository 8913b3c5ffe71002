//! FILEDOC

use netsilo_model::change::Change;
use serde::{Deserialize, Serialize};

/// A number behind a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was measured.
    pub what: String,
    /// How much.
    pub measure: Measure,
    /// Where it was read or counted (`/proc/net/softnet_stat`, `tp_btf/napi_poll`).
    pub source: String,
}

/// A quantity with its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// A part of one; of a CPU's time unless said otherwise.
    Share(f64),
    /// Events per second.
    PerSecond(f64),
    /// Things, or events in the interval.
    Count(u64),
    /// A time.
    Nanoseconds(f64),
    /// An amount of data.
    Bytes(u64),
    /// A rate of data.
    BytesPerSecond(f64),
    /// A setting, as the kernel prints it.
    Text(String),
}

/// What may be done about a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// What to do.
    pub what: String,
    /// What it is worth.
    pub gain: Gain,
    /// What it costs; `None` for nothing worth a word.
    pub cost: Option<String>,
    /// When not to; `None` where nothing is known to speak against it.
    pub not_when: Option<String>,
    /// What `plan --fix` writes; empty where it is nothing that netsilo can write.
    pub changes: Vec<Change>,
    /// Writing it stops traffic for a moment.
    pub interrupts_traffic: bool,
}

/// What a remedy is worth: a bound by what was measured, or not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gain {
    /// No more than this.
    AtMost {
        /// How much.
        measure: Measure,
        /// Of what (`cpu3's time`).
        of: String,
        /// How it was reckoned.
        basis: String,
    },
    /// Nothing that was measured bounds it: why.
    Unknown(String),
    /// None: why.
    Nothing(String),
}

impl Evidence {
    /// A number and where it comes from.
    pub fn new(what: impl Into<String>, measure: Measure, source: impl Into<String>) -> Self {
        Self { what: what.into(), measure, source: source.into() }
    }
}
