//! Whether the packets that arrived are accounted for: read, passed on or dropped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::drop_judge::DropJudge;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::attribution::{Examined, OTHER_SOCKETS, Protocol, Sampling};
use netsilo_model::snapshot::drops::DroppedPackets;
use netsilo_model::snapshot::ip_packets::{IpClass, IpPackets};
use netsilo_model::snapshot::packet_sockets::CaptureKind;
use serde::{Deserialize, Serialize};

/// A gap of a smaller share is the skew between the counters, and what waits in buffers.
const NOTICEABLE: f64 = 0.02;

/// So many packets may wait in buffers at the end.
const FEW: f64 = 100.0;

/// At most this many rows are kept.
const MOST_ROWS: usize = 64;

/// What is balanced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Balanced {
    /// UDP packets, as on the wire.
    #[default]
    Udp,
    /// Packets of protocols that only tunnels and raw sockets take.
    Raw,
    /// Packets that packet sockets took, as far as programs read them by calls of recv. Each socket
    /// takes its own copies.
    PacketSockets,
}

/// The packets of one kind in one network namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Balance {
    /// Inode number of the network namespace, if it is another than netsilo's.
    pub netns: Option<u32>,
    /// Which packets.
    #[serde(default)]
    pub of: Balanced,
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets read from sockets.
    pub read: u64,
    /// Relative error of `read`, where reads were sampled.
    pub read_error: f64,
    /// Packets that left again.
    pub forwarded: u64,
    /// Packets that a tunnel in the kernel consumed (VXLAN, Geneve, WireGuard, GRE).
    pub tunnelled: u64,
    /// Packets that the kernel dropped before they left, for any reason.
    pub dropped: u64,
    /// Relative error of `dropped`, where drops were sampled.
    #[serde(default)]
    pub dropped_error: f64,
    /// Packets that waited to be read at the end, less those of the beginning; `null` where that is
    /// not known.
    #[serde(default)]
    pub waiting: Option<u64>,
    /// What is left, at least: neither read, passed on nor dropped. 0 if more was taken than
    /// arrived, because copies were made (multicast, bridges, several raw sockets).
    pub not_accounted: u64,
}

impl Balance {
    fn taken(&self) -> u64 {
        let waiting = self.waiting.unwrap_or(0);
        let parts = [self.read, self.forwarded, self.tunnelled, self.dropped, waiting];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Whether so much is not accounted for that a reader or a loss was missed.
    pub fn has_gap(&self) -> bool {
        let error = self.read as f64 * self.read_error + self.dropped as f64 * self.dropped_error;
        self.not_accounted as f64 > NOTICEABLE * self.arrived as f64 + error + FEW
    }
}

/// The balance of each network namespace, the largest gap first. `None` if not all its terms were
/// counted during the whole window.
pub(crate) fn balance(analysis: &Analysis<'_>) -> Option<Vec<Balance>> {
    let attribution = &analysis.observation.attribution;
    let is_whole = attribution.counts_ip_packets() && attribution.counts_drops();
    if !is_whole || !attribution.counts("udp bytes") {
        return None;
    }
    let judge = DropJudge::new(analysis.observation);
    let mut all = of_class(analysis, &judge, Balanced::Udp, IpClass::Udp);
    if attribution.counts(OTHER_SOCKETS) {
        all.extend(of_class(analysis, &judge, Balanced::Raw, IpClass::Other));
        all.extend(of_packet_sockets(analysis));
    }
    all.sort_by_key(|it| (Reverse(it.not_accounted), Reverse(it.arrived), it.netns, it.of));
    all.truncate(MOST_ROWS);
    Some(all)
}

/// The rows of one class of IP packets.
fn of_class(
    analysis: &Analysis<'_>,
    judge: &DropJudge,
    of: Balanced,
    class: IpClass,
) -> Vec<Balance> {
    let attribution = &analysis.observation.attribution;
    let mut sums: BTreeMap<u32, IpPackets> = BTreeMap::new();
    for row in attribution.ip_packets.iter().filter(|it| it.class == class) {
        let sum = sums.entry(row.netns).or_default();
        sum.entered = sum.entered.saturating_add(row.entered);
        sum.read = sum.read.saturating_add(row.read);
        sum.left = sum.left.saturating_add(row.left);
        sum.tunnelled = sum.tunnelled.saturating_add(row.tunnelled);
    }
    sums.retain(|_, sum| sum.entered > 0 || sum.read > 0);
    let dropped = |netns| dropped_within(analysis, judge, class, netns);
    let row = |(netns, sum): (u32, IpPackets)| {
        let Sampling { reads, drops, .. } = attribution.sampling;
        Balance {
            netns: elsewhere(analysis, netns),
            of,
            arrived: sum.entered,
            read: sum.read,
            read_error: error_of(sum.read, reads),
            forwarded: sum.left,
            tunnelled: sum.tunnelled,
            dropped: dropped(netns),
            dropped_error: error_of(dropped(netns), drops),
            waiting: None,
            not_accounted: 0,
        }
    };
    let mut all: Vec<Balance> = sums.into_iter().map(row).collect();
    // What a macvlan or ipvlan hands to another namespace arrives in one and is read in the other.
    // The namespace of some drops is not known, and events that found no room may have been reads.
    let excess = all.iter().map(|it| it.taken().saturating_sub(it.arrived));
    let excess =
        excess.fold(dropped(0).saturating_add(attribution.lost_events), u64::saturating_add);
    for it in &mut all {
        it.not_accounted = it.arrived.saturating_sub(it.taken()).saturating_sub(excess);
    }
    all
}

/// What the packet sockets of each namespace took, and what programs read from them.
fn of_packet_sockets(analysis: &Analysis<'_>) -> Vec<Balance> {
    let attribution = &analysis.observation.attribution;
    if !attribution.counts_packet_sockets() {
        return Vec::new();
    }
    let sockets = attribution.packet_sockets.iter().filter(|it| it.kind == CaptureKind::Recv);
    let places: BTreeSet<u32> = sockets.clone().map(|it| it.netns).collect();
    let row = |netns: u32| {
        let sockets = sockets.clone().filter(|it| it.netns == netns);
        let arrived = sockets.clone().map(|it| it.packets).fold(0, u64::saturating_add);
        let waiting = sockets.map(|it| it.waiting).fold(0, i64::saturating_add);
        let rows = attribution.consumption.iter();
        let rows = rows.filter(|it| it.protocol == Protocol::Packet && it.consumer.netns == netns);
        let read = rows.map(|it| it.events).fold(0, u64::saturating_add);
        let mut row = Balance {
            netns: elsewhere(analysis, netns),
            of: Balanced::PacketSockets,
            arrived,
            read,
            read_error: error_of(read, attribution.sampling.reads),
            waiting: Some(u64::try_from(waiting).unwrap_or(0)),
            ..Balance::default()
        };
        let excess = attribution.lost_events;
        row.not_accounted = arrived.saturating_sub(row.taken()).saturating_sub(excess);
        row
    };
    places.into_iter().map(row).filter(|it| it.arrived > 0).collect()
}

fn elsewhere(analysis: &Analysis<'_>, netns: u32) -> Option<u32> {
    (!analysis.after().machine.is_own_netns(netns)).then_some(netns)
}

fn error_of(count: u64, all: Examined) -> f64 {
    let is_exact = count == 0 || all.is_complete();
    if is_exact { 0.0 } else { all.error((count as f64 / all.events as f64).min(1.0)) }
}

/// The packets of a class that were dropped in a namespace (0: not known) before they left it. Full
/// queues of netdevs drop what has left, and some NICs' drivers free it as if it was dropped.
fn dropped_within(analysis: &Analysis<'_>, judge: &DropJudge, class: IpClass, netns: u32) -> u64 {
    let within = |drop: &&DroppedPackets| {
        let is_of = drop.netns == netns && IpClass::of(drop.protocol) == Some(class) && !drop.sent;
        let has_left = judge.was_sent(drop)
            || matches!(judge.lost_at(drop), Some(LossStage::Qdisc | LossStage::VirtualDevice));
        is_of && !has_left
    };
    let drops = analysis.observation.attribution.drops.iter().filter(within);
    drops.fold(0, |sum: u64, drop| sum.saturating_add(drop.packets))
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::attribution::{
        Attribution, Consumer, Consumption, Hook, QueueResolution,
    };
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::snapshot::packet_sockets::PacketSocket;
    use netsilo_model::snapshot::{drops, ip_packets, packet_sockets};
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    fn hook(quantity: &str) -> Hook {
        Hook { quantity: quantity.into(), hook: "netif_receive_skb".into(), refused: None }
    }

    fn balances(counted: &[IpPackets], dropped: &[DroppedPackets]) -> Vec<Balance> {
        let mut host = Scene::default().observation();
        host.after.machine.netns = 1;
        host.attribution = Attribution {
            ip_packets: counted.to_vec(),
            drops: dropped.to_vec(),
            hooks: vec![hook(ip_packets::QUANTITY)],
            ..host.attribution
        };
        let balanced = |host: &Observation| balance(&Analysis::new(host, &Costs::default()));
        assert_eq!(balanced(&host), None, "drops were not counted");
        host.attribution.hooks.push(hook(drops::QUANTITY));
        assert_eq!(balanced(&host), None, "reads were not counted");
        let refused = Hook { refused: Some("no fentry".into()), ..hook("udp bytes") };
        host.attribution.hooks.extend([refused, hook("udp bytes"), hook(OTHER_SOCKETS)]);
        balanced(&host).unwrap()
    }

    fn udp(netns: u32, entered: u64, read: u64) -> IpPackets {
        IpPackets { netns, class: IpClass::Udp, entered, read, ..IpPackets::default() }
    }

    fn dropped(reason: &str, netns: u32, packets: u64) -> DroppedPackets {
        let reason = reason.into();
        DroppedPackets { reason, netns, protocol: 17, packets, ..DroppedPackets::default() }
    }

    #[test]
    fn what_is_neither_read_nor_passed_on_nor_dropped_is_the_gap() {
        let router = IpPackets { left: 300, tunnelled: 50, ..udp(1, 1000, 400) };
        let lost =
            [dropped("SOCKET_RCVBUFF", 1, 100), dropped("QDISC_DROP", 1, 70), dropped("", 2, 9)];
        let [own] = &balances(std::slice::from_ref(&router), &lost)[..] else { panic!() };
        assert_eq!((own.netns, own.dropped, own.not_accounted), (None, 100, 150));
        assert!(own.has_gap());
        let sent = DroppedPackets { sent: true, ..dropped("QUEUE_PURGE", 1, 500) };
        assert_eq!(balances(&[router], &[sent])[0].not_accounted, 250);
    }

    #[test]
    fn what_another_namespace_read_beyond_its_own_is_no_gap() {
        let all = balances(&[udp(1, 5000, 1000), udp(2, 0, 4000), udp(3, 900, 100)], &[]);
        assert_eq!(all.iter().map(|it| it.not_accounted).collect::<Vec<_>>(), [0, 0, 0]);
        let all = balances(&[udp(1, 5000, 1000), udp(2, 0, 500)], &[]);
        assert_eq!((all[0].netns, all[0].not_accounted), (None, 3500));
        assert_eq!((all[1].netns, all[1].not_accounted), (Some(2), 0));
    }

    #[test]
    fn a_few_packets_between_two_readings_are_no_gap() {
        assert!(!balances(&[udp(1, 10_000, 9_801)], &[])[0].has_gap());
        assert!(!balances(&[udp(1, 30, 0)], &[])[0].has_gap());
        assert!(balances(&[udp(1, 10_000, 9_000)], &[])[0].has_gap());
    }

    #[test]
    fn protocols_of_raw_sockets_are_balanced_apart() {
        let ospf = IpPackets { class: IpClass::Other, ..udp(1, 1000, 300) };
        let lost = DroppedPackets { protocol: 89, ..dropped("SOCKET_RCVBUFF", 1, 200) };
        let all = balances(&[ospf, udp(1, 50, 50)], &[lost]);
        let [raw, udp] = &all[..] else { panic!("{all:?}") };
        assert_eq!((raw.of, raw.dropped, raw.not_accounted), (Balanced::Raw, 200, 500));
        assert_eq!((udp.of, udp.dropped, udp.not_accounted), (Balanced::Udp, 0, 0));
    }

    #[test]
    fn what_packet_sockets_took_was_read_or_waits() {
        let mut host = Scene::default().observation();
        host.after.machine.netns = 1;
        let took = |kind, packets, waiting| PacketSocket {
            netns: 1,
            kind,
            packets,
            waiting,
            ..PacketSocket::default()
        };
        host.attribution.consumption = vec![Consumption {
            napi: None,
            rx_queue: None,
            resolved: QueueResolution::Direct,
            poll_cpu: None,
            protocol_cpu: None,
            consumer_cpu: CpuId(0),
            consumer: Consumer { tgid: 7, comm: "ids".into(), work: false, cgroup: None, netns: 1 },
            protocol: Protocol::Packet,
            bytes: 60_000,
            events: 600,
            first_reads: 0,
            approximate: false,
            connected: None,
        }];
        host.attribution.hooks.push(hook(packet_sockets::QUANTITY));
        host.attribution.packet_sockets =
            vec![took(CaptureKind::Recv, 1000, 150), took(CaptureKind::Ring, 9000, 0)];
        let costs = Costs::default();
        let rows = of_packet_sockets(&Analysis::new(&host, &costs));
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(
            (row.arrived, row.read, row.waiting, row.not_accounted),
            (1000, 600, Some(150), 250)
        );
    }
}
