//! What one setting would do to an observed machine.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_trial::stats::Estimate;
use serde::Serialize;

use crate::limit::Limit;
use crate::live::claim::Claim;
use crate::loads::Path;
use crate::prediction::CpuTime;

/// What one setting would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// How many times this load fits before the limit is full.
    pub fits: Estimate,
    /// Relative change of `fits` against the machine as it is; absent for that one, and where the
    /// model knows none of the knobs that change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<Estimate>,
    /// What is claimed of the gain; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Knobs of the setting that the model does not know: their effect is not in here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_modeled: Vec<String>,
    /// CPU time of everything, in CPUs.
    pub cpu_time: Estimate,
    /// Inter-processor interrupts per second of RPS and of wakeups.
    pub ipis_per_s: f64,
    /// Interrupts per second of the queues; absent where they have none, or none was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupts_per_s: Option<f64>,
    /// What is full first.
    pub limit: Limit,
    /// Time of one packet at each stage (ns): poll and protocol as measured, the rest as priced.
    pub path: Path,
    /// How each CPU spends its time. Above 1 in sum: the load does not fit.
    pub cpus: BTreeMap<CpuId, CpuTime>,
}

/// The name of the machine as it is.
pub const AS_IT_IS: &str = "as it is";
