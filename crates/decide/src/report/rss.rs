//! What `netsilo rss` shows: each netdev's RSS, the flows that arrived beside those reckoned, and
//! the load of the table.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::rss::load::TableLoad;
use netsilo_model::rss::model::{Calibrated, Fit, KeySource, Predicted, flows_of};
use netsilo_model::snapshot::ethtool::{FlowType, HashFields};
use netsilo_model::snapshot::flow::{Asked, Flow};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use serde::Serialize;

/// RSS of one netdev.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NetdevRss {
    /// Its name.
    pub netdev: String,
    /// Its driver.
    pub driver: Option<String>,
    /// The hash function, where the driver tells.
    pub function: Option<String>,
    /// Where the hash key is known from; `None` when it is not.
    pub key: Option<KeySource>,
    /// Entries of the indirection table; 0 when it shows none.
    pub entries: usize,
    /// What is hashed of each type of flow, where the driver tells.
    pub fields: BTreeMap<FlowType, HashFields>,
    /// Why queues can't be reckoned; `None` when they can.
    pub no_model: Option<String>,
    /// How far reckoning agrees with the flows that arrived.
    pub fit: Fit,
    /// The table's load; `None` with a reason in `no_load`.
    pub load: Option<LoadOf>,
    /// Why there is no load.
    pub no_load: Option<String>,
    /// Each rx queue that took packets.
    pub queues: BTreeMap<u32, QueueLoad>,
    /// The flows that arrived, the heaviest first.
    pub flows: Vec<SeenFlow>,
}

/// The load of an indirection table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadOf {
    /// Packets that went by the table.
    pub packets: u64,
    /// Packets that another queue took than the table says, or whose entry is not known.
    pub outside: u64,
    /// Packets of flows that found no room to be counted one by one.
    pub missed: u64,
    /// Flows that went by the table.
    pub flows: usize,
    /// How many equally loaded entries would be as uneven.
    pub entries_in_effect: Option<f64>,
    /// The heaviest queue's load over the mean.
    pub skew: Option<f64>,
    /// Share of the heaviest flow.
    pub heaviest_flow: Option<f64>,
}

/// What one rx queue took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QueueLoad {
    /// Flows.
    pub flows: usize,
    /// Packets.
    pub packets: u64,
    /// Entries of the table that lead to it.
    pub entries: usize,
}

/// A flow, and where it should have arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeenFlow {
    /// The flow as it arrived.
    #[serde(flatten)]
    pub flow: Flow,
    /// Where the model has it; `None` when it can't tell.
    pub predicted: Option<Predicted>,
}

/// RSS of a netdev, by an observation.
pub fn netdev_rss(observation: &Observation, netdev: &Netdev) -> NetdevRss {
    let model = Calibrated::of(observation, netdev);
    let load = TableLoad::of(observation, netdev);
    let rss = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rss.value());
    let table = rss.map_or(&[][..], |rss| &rss.indirection);
    let predicted = |flow: &Flow| {
        let model = model.as_ref().ok()?;
        // a flow without addresses in a bundle is one of IP all the same
        let known = flow.ends.is_some() || flow.connection == 0;
        known.then(|| model.model.predict(flow.outer, flow.ends, flow.fragments).ok()).flatten()
    };
    let mut queues: BTreeMap<u32, QueueLoad> = BTreeMap::new();
    for queue in table {
        queues.entry(*queue).or_default().entries += 1;
    }
    for flow in flows_of(observation, netdev) {
        let Some(queue) = flow.queue else { continue };
        let taken = queues.entry(queue).or_default();
        taken.flows += 1;
        taken.packets = taken.packets.saturating_add(flow.packets);
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
        flows: flows_of(observation, netdev)
            .map(|flow| SeenFlow { flow: flow.clone(), predicted: predicted(flow) })
            .collect(),
        queues,
    }
}

fn load_of(load: &TableLoad) -> LoadOf {
    LoadOf {
        packets: load.packets,
        outside: load.outside,
        missed: load.missed,
        flows: load.flows,
        entries_in_effect: load.entries_in_effect(),
        skew: load.skew(),
        heaviest_flow: load
            .heaviest
            .map(|(packets, _)| packets as f64 / load.packets.max(1) as f64),
    }
}

/// Where a netdev would take a flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Where {
    /// The netdev.
    pub netdev: String,
    /// The flow asked about.
    pub flow: Asked,
    /// Its queue by reckoning; `None` with a reason in `refused`.
    pub predicted: Option<Predicted>,
    /// Why there is no telling.
    pub refused: Option<String>,
    /// How far reckoning agrees with flows of the same type that arrived.
    pub fit: Fit,
    /// The queue on which this very flow was seen.
    pub seen_on: Option<u32>,
    /// The CPUs that the queue's interrupt goes to now.
    pub cpus: Option<CpuSet>,
}

/// Where this netdev takes that flow.
pub fn where_is(observation: &Observation, netdev: &Netdev, flow: Asked) -> Where {
    let seen = flows_of(observation, netdev)
        .find(|seen| seen.ends == Some(flow.ends) && seen.outer == flow.outer);
    let seen_on = seen.and_then(|seen| seen.queue);
    let kind = flow.outer.flow_type(flow.ends.target.is_ipv6());
    let (fit, predicted) = match Calibrated::of(observation, netdev) {
        Ok(model) => (model.fit(kind), model.predict(flow.outer, flow.ends)),
        Err(why) => (Fit::default(), Err(why)),
    };
    let queue = seen_on.or_else(|| Some(predicted.as_ref().ok()?.queue));
    let rx = netdev.rx_queues.iter().find(|rx| Some(rx.index) == queue);
    let irq = rx.and_then(|rx| observation.after.irqs.get(&rx.irq.as_ref()?.to));
    Where {
        netdev: netdev.name.clone(),
        flow,
        refused: predicted.as_ref().err().cloned(),
        predicted: predicted.ok(),
        fit,
        seen_on,
        cpus: irq.and_then(|irq| irq.effective.clone().or_else(|| irq.requested.clone())),
    }
}
