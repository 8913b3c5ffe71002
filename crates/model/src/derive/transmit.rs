//! What each tx queue of a netdev sends: its packets, the CPUs that send them, and what its
//! queueing discipline drops.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::derive::analysis::Analysis;
use crate::derive::counted::agree;
use crate::drivers::queue_packets::sent_by;
use crate::machine::cpuset::CpuId;
use crate::snapshot::audit::Qdisc;
use crate::snapshot::netdev::Netdev;

/// The tx queues of a netdev that sent something.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transmit {
    /// What counted the packets.
    pub source: TxSource,
    /// Number of its tx queues.
    pub of: usize,
    /// Those that sent something, that with the most packets first.
    pub queues: Vec<TxLoad>,
}

/// What counted the packets of tx queues, the best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TxSource {
    /// eBPF, where packets are queued, with the CPU. Includes what the discipline then drops.
    #[default]
    Bpf,
    /// The discipline of each queue.
    Qdisc,
    /// The driver's counters, whose sum is what the netdev counted.
    Driver,
}

/// What a tx queue sends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TxLoad {
    /// Number of the queue.
    pub queue: u32,
    /// Packets per second, as on the wire.
    pub packets_per_s: f64,
    /// Its share of the netdev's packets.
    pub share: f64,
    /// The CPUs that sent, with the share of each. Empty if that was not counted.
    pub cpus: BTreeMap<CpuId, f64>,
    /// The discipline of this queue alone; `None` if it was not read, or the queues share one.
    pub discipline: Option<String>,
    /// Packets per second that this discipline dropped.
    pub drops_per_s: Option<f64>,
    /// Packets that wait in it now.
    pub waiting: Option<u32>,
}

impl TxSource {
    /// Where a user can read the same.
    pub fn command(self) -> &'static str {
        match self {
            Self::Bpf => "net:net_dev_queue",
            Self::Qdisc => "tc -s qdisc",
            Self::Driver => "ethtool -S",
        }
    }
}

/// What the tx queues of a netdev sent in the interval; `None` if nothing counted that, or it sent
/// nothing.
pub fn transmit(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Transmit> {
    let disciplines = analysis.qdiscs(netdev);
    let (source, mut queues) = by_events(analysis, netdev)
        .map(|queues| (TxSource::Bpf, queues))
        .or_else(|| Some((TxSource::Qdisc, by_disciplines(analysis, netdev, &disciplines)?)))
        .or_else(|| Some((TxSource::Driver, by_driver(analysis, netdev)?)))?;
    for load in &mut queues {
        let Some((old, new)) = discipline_of(&disciplines, netdev, load.queue) else { continue };
        let (_, drops, _) = grown(old, new);
        load.discipline = Some(new.kind.clone());
        load.drops_per_s = Some(analysis.per_s(drops.into()));
        load.waiting = Some(new.qlen);
    }
    let all: f64 = queues.iter().map(|load| load.packets_per_s).sum();
    queues.retain(|load| load.packets_per_s > 0.0);
    queues.iter_mut().for_each(|load| load.share = load.packets_per_s / all);
    queues.sort_by(|a, b| b.packets_per_s.total_cmp(&a.packets_per_s));
    (!queues.is_empty()).then_some(Transmit { source, of: netdev.tx_queues.len(), queues })
}

fn by_events(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Vec<TxLoad>> {
    let attribution = &analysis.observation.attribution;
    let seconds = attribution.elapsed.as_secs_f64();
    if !attribution.counts_ip_packets() || netdev.device_path.is_none() || seconds <= 0.0 {
        return None;
    }
    let machine = &analysis.after().machine;
    let is_own = |ifindex, netns| ifindex == netdev.ifindex && machine.is_own_netns(netns);
    let mut queues: BTreeMap<u32, TxLoad> = BTreeMap::new();
    for row in attribution.sent.iter().filter(|row| is_own(row.ifindex, row.netns)) {
        let load = queues.entry(row.tx_queue).or_default();
        load.queue = row.tx_queue;
        load.packets_per_s += row.packets as f64 / seconds;
        *load.cpus.entry(row.cpu).or_default() += row.packets as f64 / seconds;
    }
    for load in queues.values_mut() {
        load.cpus.values_mut().for_each(|rate| *rate /= load.packets_per_s);
    }
    (!queues.is_empty()).then(|| queues.into_values().collect())
}

fn by_disciplines(
    analysis: &Analysis<'_>,
    netdev: &Netdev,
    disciplines: &[(&Qdisc, &Qdisc)],
) -> Option<Vec<TxLoad>> {
    let of = |queue: u32| {
        let (old, new) = discipline_of(disciplines, netdev, queue)?;
        let packets_per_s = analysis.per_s(grown(old, new).0);
        Some(TxLoad { queue, packets_per_s, ..TxLoad::default() })
    };
    let queues: Vec<TxLoad> = netdev.tx_queues.iter().filter_map(|queue| of(queue.index)).collect();
    (!queues.is_empty()).then_some(queues)
}

fn by_driver(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Vec<TxLoad>> {
    let mut queues: BTreeMap<u32, f64> = BTreeMap::new();
    for (name, grown) in analysis.driver_counter_growth(netdev, |name| sent_by(name).is_some()) {
        *queues.entry(sent_by(name)?).or_default() += analysis.per_s(grown);
    }
    let sent = analysis.rate(netdev, "tx_packets")?;
    let load = |(queue, packets_per_s)| TxLoad { queue, packets_per_s, ..TxLoad::default() };
    agree(queues.values().sum(), sent).then(|| queues.into_iter().map(load).collect())
}

/// The discipline of one tx queue, before and after, of all those of its netdev. `None` if the
/// queues share one.
pub fn discipline_of<'a>(
    all: &[(&'a Qdisc, &'a Qdisc)],
    netdev: &Netdev,
    queue: u32,
) -> Option<(&'a Qdisc, &'a Qdisc)> {
    let (_, root) = all.iter().find(|(_, new)| new.is_root())?;
    // Class `N + 1` is tx queue N (`net/sched/sch_mq.c:mq_leaf`; the same in sch_mqprio, taprio).
    let class = (root.handle & 0xffff_0000) | queue.saturating_add(1);
    let parent = match root.kind.as_str() {
        "mq" | "mqprio" | "taprio" => class,
        _ if netdev.tx_queues.len() == 1 => Qdisc::ROOT,
        _ => return None,
    };
    all.iter().find(|(_, new)| new.parent == parent).copied()
}

/// Packets that a discipline sent in the interval, with its drops and its requeues.
pub fn grown(old: &Qdisc, new: &Qdisc) -> (u64, u32, u32) {
    // Drops and requeues are 32-bit counters, which wrap.
    let packets = new.packets.saturating_sub(old.packets);
    (packets, new.drops.wrapping_sub(old.drops), new.requeues.wrapping_sub(old.requeues))
}
