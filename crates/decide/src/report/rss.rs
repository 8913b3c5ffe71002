//! The report of `netsilo rss`: each netdev's RSS, the observed and predicted queue of each flow,
//! and the load of the table.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::rss::load::{TableLoad, has_received};
use netsilo_model::rss::model::{CheckedModel, Fit, KeySource, PredictedQueue, flows_on};
use netsilo_model::snapshot::ethtool::{FlowType, HashFields};
use netsilo_model::snapshot::flow::{Flow, FlowSpec};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use serde::Serialize;

/// RSS of one netdev.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetdevRss {
    /// Netdev name.
    pub netdev: String,
    /// Driver name.
    pub driver: Option<String>,
    /// The hash function, if the driver reports it.
    pub function: Option<String>,
    /// Source of the hash key; `None` if unknown.
    pub key: Option<KeySource>,
    /// Number of entries of the indirection table; 0 if the driver shows none.
    pub entries: usize,
    /// Hashed fields per flow type, if the driver reports them.
    pub fields: BTreeMap<FlowType, HashFields>,
    /// Why queues cannot be predicted; `None` if they can.
    pub no_model: Option<String>,
    /// How well the predictions agree with the flows that arrived.
    pub fit: Fit,
    /// The table's load; `None` if unknown, with the reason in `no_load`.
    pub load: Option<TableLoadReport>,
    /// Reason why there is no load.
    pub no_load: Option<String>,
    /// Load of each rx queue that received packets.
    pub queues: BTreeMap<u32, QueueLoad>,
    /// The flows that arrived, heaviest first.
    pub flows: Vec<FlowReport>,
}

/// The load of an indirection table.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TableLoadReport {
    /// Packets that followed the table.
    pub packets: u64,
    /// Packets that arrived on a different queue than the table's, or whose entry is unknown.
    pub outside: u64,
    /// Packets of flows for which the flow table had no room.
    pub missed: u64,
    /// Flows that followed the table.
    pub flows: usize,
    /// Number of equally loaded entries that would have the same unevenness.
    #[serde(rename = "effective_entries")]
    pub effective_entries: Option<f64>,
    /// Ratio of the heaviest queue's load to the mean.
    pub skew: Option<f64>,
    /// Share of the heaviest flow in the packets that followed the table.
    pub heaviest_flow: Option<f64>,
}

/// Flows and packets received by one rx queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueLoad {
    /// Flows; `None` if those of the netdev were not counted.
    pub flows: Option<usize>,
    /// Their packets.
    pub packets: Option<u64>,
    /// Number of table entries that lead to it.
    pub entries: usize,
}

/// An observed flow and its predicted queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowReport {
    /// The flow as observed.
    #[serde(flatten)]
    pub flow: Flow,
    /// The model's prediction; `None` if there is none.
    pub predicted: Option<PredictedQueue>,
}

/// Builds the RSS report of a netdev from an observation.
pub fn netdev_rss(observation: &Observation, netdev: &Netdev) -> NetdevRss {
    let model = CheckedModel::from_observation(observation, netdev);
    let load = TableLoad::from_observation(observation, netdev);
    let rss = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rss.value());
    let table = rss.map_or(&[][..], |rss| &rss.indirection);
    let predicted = |flow: &Flow| {
        let model = model.as_ref().ok()?;
        // A flow whose addresses a bundle omits is still an IP flow.
        let known = flow.ends.is_some() || flow.connection == 0;
        known.then(|| model.model.predict(flow.outer, flow.ends, flow.fragments).ok()).flatten()
    };
    let mut queues: BTreeMap<u32, QueueLoad> = BTreeMap::new();
    for queue in table {
        queues.entry(*queue).or_default().entries += 1;
    }
    for flow in flows_on(observation, netdev) {
        let Some(queue) = flow.queue else { continue };
        let taken = queues.entry(queue).or_default();
        taken.flows = Some(taken.flows.unwrap_or(0) + 1);
        taken.packets = Some(taken.packets.unwrap_or(0).saturating_add(flow.packets));
    }
    if flows_on(observation, netdev).next().is_some() || !has_received(observation, netdev) {
        for taken in queues.values_mut() {
            (taken.flows, taken.packets) = (taken.flows.or(Some(0)), taken.packets.or(Some(0)));
        }
    }
    let fields = netdev.ethtool.iter().flat_map(|ethtool| &ethtool.flow_hash);
    NetdevRss {
        netdev: netdev.name.clone(),
        driver: netdev.driver.clone(),
        function: rss.and_then(|rss| rss.function).map(|function| function.as_word()),
        key: model.as_ref().ok().map(|it| it.model.key_source()),
        entries: table.len(),
        fields: fields.filter_map(|(flow, fields)| Some((*flow, *fields.value()?))).collect(),
        no_model: model.as_ref().err().cloned(),
        fit: model.as_ref().map(|it| it.fit(None)).unwrap_or_default(),
        load: load.as_ref().ok().map(load_of),
        no_load: load.as_ref().err().cloned(),
        flows: flows_on(observation, netdev)
            .map(|flow| FlowReport { flow: flow.clone(), predicted: predicted(flow) })
            .collect(),
        queues,
    }
}

fn load_of(load: &TableLoad) -> TableLoadReport {
    TableLoadReport {
        packets: load.packets,
        outside: load.off_table,
        missed: load.missed,
        flows: load.flows,
        effective_entries: load.effective_entries(),
        skew: load.skew(),
        heaviest_flow: load
            .heaviest
            .map(|(packets, _)| packets as f64 / load.packets.max(1) as f64),
    }
}

/// The queue that a netdev assigns to a flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowQueue {
    /// The netdev.
    pub netdev: String,
    /// The requested flow.
    pub flow: FlowSpec,
    /// Its predicted queue; `None` if there is none, with the reason in `refused`.
    pub predicted: Option<PredictedQueue>,
    /// Reason why there is no prediction.
    pub refused: Option<String>,
    /// How well the predictions agree with arrived flows of the same type.
    pub fit: Fit,
    /// The queue on which this flow was observed.
    pub seen_on: Option<u32>,
    /// CPUs of the queue's interrupt now.
    pub cpus: Option<CpuSet>,
}

/// Finds the queue that this netdev assigns to a flow.
pub fn find_queue(observation: &Observation, netdev: &Netdev, flow: FlowSpec) -> FlowQueue {
    let seen = flows_on(observation, netdev)
        .find(|seen| seen.ends == Some(flow.ends) && seen.outer == flow.outer);
    let seen_on = seen.and_then(|seen| seen.queue);
    let kind = flow.outer.flow_type(flow.ends.target.is_ipv6());
    let (fit, predicted) = match CheckedModel::from_observation(observation, netdev) {
        Ok(model) => (model.fit(kind), model.predict(flow.outer, flow.ends)),
        Err(why) => (Fit::default(), Err(why)),
    };
    let queue = seen_on.or_else(|| Some(predicted.as_ref().ok()?.queue));
    let rx = netdev.rx_queues.iter().find(|rx| Some(rx.index) == queue);
    let irq = rx.and_then(|rx| observation.after.irqs.get(&rx.irq.as_ref()?.to));
    FlowQueue {
        netdev: netdev.name.clone(),
        flow,
        refused: predicted.as_ref().err().cloned(),
        predicted: predicted.ok(),
        fit,
        seen_on,
        cpus: irq.and_then(|irq| irq.effective.clone().or_else(|| irq.requested.clone())),
    }
}
