//! Compares settings, for a machine that was observed.

use netsilo_model::cost::weights::CostSource;
use netsilo_model::derive::seen_costs::seen_ipis;
use serde::Serialize;

pub use crate::limit::Limit;
pub use crate::live::expected::{AS_IT_IS, Expected};
use crate::live::judge::Judge;
use crate::live::proposal::Proposal;
use crate::live::work::{Queue, Work};
pub use crate::loads::Path;

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
