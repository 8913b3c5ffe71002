//! Compares settings, for a machine that was observed.

use std::collections::BTreeMap;
use std::fmt;

use netsilo_model::cost::weights::CostSource;
use netsilo_model::derive::seen_costs::seen_ipis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_trial::stats::Estimate;
use serde::{Serialize, Serializer};

use crate::live::claim::Claim;
use crate::live::judge::Judge;
pub use crate::live::loads::Path;
use crate::live::proposal::Proposal;
use crate::live::work::{Queue, Work};
use crate::prediction::CpuTime;

/// What settings would do to the load that was observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Forecast {
    /// Packets per second of all queues, at the load that is asked for.
    pub packets_per_s: f64,
    /// The load, as a multiple of the observed one.
    pub load: f64,
    /// What was not measured, in words.
    pub assumed: Vec<String>,
    /// The machine as it is, then each setting.
    pub settings: Vec<Expected>,
}

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

/// What is full first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum Limit {
    /// The interrupts, softirqs and NAPI kthreads of one CPU.
    Cpu(CpuId),
    /// All CPUs together.
    Cpus,
    /// The CPUs to which readers are pinned.
    Pinned(CpuSet),
    /// The link of a netdev.
    Link(String),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "softirq of cpu {cpu}"),
            Self::Cpus => f.write_str("the CPUs"),
            Self::Pinned(cpus) => write!(f, "pinned readers on {cpus}"),
            Self::Link(netdev) => write!(f, "the link of {netdev}"),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The name of the machine as it is.
pub const AS_IT_IS: &str = "as it is";

/// Predicts what each setting would do to the observed work, at `load` times the observed load.
pub fn forecast(observed: &Work<'_>, load: f64, settings: &[Proposal]) -> Forecast {
    let judge = Judge::new(observed.clone(), load);
    let mut assumed = assumed(judge.work());
    let mut all = vec![judge.as_it_is()];
    for proposal in settings {
        let (expected, more) = judge.judge(proposal);
        add_new(&mut assumed, more.into_iter());
        all.extend(expected);
    }
    Forecast { packets_per_s: judge.work().packets_per_s(), load, assumed, settings: all }
}

/// Adds what is not in the list.
fn add_new(list: &mut Vec<String>, more: impl Iterator<Item = String>) {
    for one in more {
        if !list.contains(&one) {
            list.push(one);
        }
    }
}

/// What was not measured.
fn assumed(work: &Work<'_>) -> Vec<String> {
    let mut assumed = Vec::new();
    let is_unknown = |queue: &Queue<'_>| queue.steered_ns.is_none();
    if work.protocol_share.is_none() && work.queues.iter().any(is_unknown) {
        assumed.push(
            "the division of softirq time into poll and protocol (netsilo show --stages samples \
             it)"
            .to_owned(),
        );
    }
    if work.queues.iter().any(|queue| queue.silo.packets_per_s.is_none()) {
        assumed.push(
            "the packets of each queue (by the time of its polls or its interrupts; eBPF counts \
             them)"
                .to_owned(),
        );
    }
    if work.analysis.costs.source == CostSource::Default {
        let what = match seen_ipis(work.analysis) {
            Some(_) => "cache lines",
            None => "IPIs and cache lines",
        };
        assumed.push(format!("the cost of {what} (netsilo calibrate measures it)"));
    }
    let unknown = work.queues.iter().filter(|queue| queue.ns.is_none()).count();
    if unknown > 0 {
        assumed.push(format!("that {unknown} queues without measured time cost nothing"));
    }
    assumed
}
