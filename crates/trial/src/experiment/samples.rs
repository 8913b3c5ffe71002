//! An experiment and a latency record, for the tests of several files.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};

use super::plan::{Experiment, Load, MachineSummary, Setting};
use crate::traffic::{Latency, Spec, Test};

/// Four settings, three loads, three rounds.
pub(super) fn experiment() -> Experiment {
    let setting = |name: &str| Setting {
        name: name.into(),
        what: String::new(),
        changes: vec![],
        command: None,
    };
    let load = |name: &str| Load {
        name: name.into(),
        spec: Spec::default_for(Test::TcpRr, Duration::from_secs(1)),
        senders: 1,
        early_drop: false,
    };
    Experiment {
        schema: 1,
        kind: "matrix".into(),
        netsilo: "0".into(),
        command: vec![],
        started_s: 0,
        settings: ["none", "irq-affinity", "rps+rfs", "both"].map(setting).into(),
        loads: ["a", "b", "c"].map(load).into(),
        rounds: 3,
        pause: Duration::ZERO,
        seed: 7,
        machine: MachineSummary::default(),
    }
}

/// The latency record of a run with these response times.
pub(super) fn latency(values_ns: impl IntoIterator<Item = u64>) -> Latency {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
    values_ns.into_iter().for_each(|ns| histogram.record(ns).unwrap());
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(&histogram, &mut bytes).unwrap();
    let at = |percent: &str| {
        (percent.to_owned(), histogram.value_at_percentile(percent.parse().unwrap()))
    };
    Latency {
        count: histogram.len(),
        mean_ns: histogram.mean(),
        max_ns: histogram.max(),
        percentiles_ns: ["50", "99"].map(at).into(),
        histogram: STANDARD.encode(&bytes),
    }
}
