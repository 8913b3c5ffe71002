//! Whether the UDP packets that arrived are accounted for: read, passed on or dropped.

use std::cmp::Reverse;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::drop_judge::DropJudge;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::attribution::{Examined, Hook, Sampling};
use netsilo_model::snapshot::datagrams::Datagrams;
use netsilo_model::snapshot::drops::DroppedPackets;
use serde::{Deserialize, Serialize};

/// A gap of a smaller share is the skew between the counters, and what waits in buffers.
const NOTICEABLE: f64 = 0.02;

/// So many packets may wait in buffers at the end.
const FEW: f64 = 100.0;

/// At most this many namespaces are kept.
const MOST_ROWS: usize = 64;

/// UDP (`IPPROTO_UDP`).
const UDP: u8 = 17;

/// The UDP packets of one network namespace, as on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Balance {
    /// Inode number of the network namespace, if it is another than netsilo's.
    pub netns: Option<u32>,
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets read from sockets.
    pub read: u64,
    /// Relative error of `read`, where reads were sampled.
    pub read_error: f64,
    /// Packets that left again.
    pub forwarded: u64,
    /// Packets that a tunnel in the kernel consumed (VXLAN, Geneve, WireGuard).
    pub tunnelled: u64,
    /// Packets that the kernel dropped before they left, for any reason.
    pub dropped: u64,
    /// Relative error of `dropped`, where drops were sampled.
    #[serde(default)]
    pub dropped_error: f64,
    /// What is left, at least: neither read, passed on nor dropped. 0 if more was taken than
    /// arrived, because copies were made (multicast, bridges).
    pub not_accounted: u64,
}

impl Balance {
    fn taken(&self) -> u64 {
        let parts = [self.read, self.forwarded, self.tunnelled, self.dropped];
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
    // Of the hooks that count reads, the first that the kernel allows is used.
    let reads = |it: &Hook| it.quantity == "udp bytes" && it.refused.is_none();
    let is_whole = attribution.counts_datagrams() && attribution.counts_drops();
    if !is_whole || !attribution.hooks.iter().any(reads) {
        return None;
    }
    let judge = DropJudge::new(analysis.observation);
    let of_namespace = |it: &Datagrams| of_namespace(analysis, &judge, *it);
    let mut all: Vec<Balance> = attribution.datagrams.iter().map(of_namespace).collect();
    // What a macvlan or ipvlan hands to another namespace arrives in one and is read in the other.
    // The namespace of some drops is not known, and events that found no room may have been reads.
    let excess = all.iter().map(|it| it.taken().saturating_sub(it.arrived));
    let unknown = dropped_within(analysis, &judge, 0).saturating_add(attribution.lost_events);
    let excess = excess.fold(unknown, u64::saturating_add);
    for it in &mut all {
        it.not_accounted = it.arrived.saturating_sub(it.taken()).saturating_sub(excess);
    }
    all.sort_by_key(|it| (Reverse(it.not_accounted), Reverse(it.arrived), it.netns));
    all.truncate(MOST_ROWS);
    Some(all)
}

/// The UDP packets that were dropped in a namespace (0: not known) before they left it. Full queues
/// of netdevs drop what has left, and some NICs' drivers free it as if it was dropped.
fn dropped_within(analysis: &Analysis<'_>, judge: &DropJudge, netns: u32) -> u64 {
    let within = |drop: &&DroppedPackets| {
        let is_udp = drop.netns == netns && drop.protocol == UDP && !drop.sent;
        let has_left = judge.was_sent(drop)
            || matches!(judge.lost_at(drop), Some(LossStage::Qdisc | LossStage::VirtualDevice));
        is_udp && !has_left
    };
    let drops = analysis.observation.attribution.drops.iter().filter(within);
    drops.fold(0, |sum: u64, drop| sum.saturating_add(drop.packets))
}

fn of_namespace(analysis: &Analysis<'_>, judge: &DropJudge, counted: Datagrams) -> Balance {
    let netns = counted.netns;
    let Sampling { reads, drops, .. } = analysis.observation.attribution.sampling;
    let error_of = |count: u64, all: Examined| {
        let is_exact = count == 0 || all.is_complete();
        if is_exact { 0.0 } else { all.error((count as f64 / all.events as f64).min(1.0)) }
    };
    let dropped = dropped_within(analysis, judge, netns);
    Balance {
        netns: (!analysis.after().machine.is_own_netns(netns)).then_some(netns),
        arrived: counted.entered,
        read: counted.read,
        read_error: error_of(counted.read, reads),
        forwarded: counted.left,
        tunnelled: counted.tunnelled,
        dropped,
        dropped_error: error_of(dropped, drops),
        not_accounted: 0,
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::snapshot::attribution::Attribution;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::snapshot::{datagrams, drops};
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    fn balances(counted: &[Datagrams], dropped: &[DroppedPackets]) -> Vec<Balance> {
        let mut host = Scene::default().observation();
        host.after.machine.netns = 1;
        let hook = |quantity: &str| Hook {
            quantity: quantity.into(),
            hook: "netif_receive_skb".into(),
            refused: None,
        };
        host.attribution = Attribution {
            datagrams: counted.to_vec(),
            drops: dropped.to_vec(),
            hooks: vec![hook(datagrams::QUANTITY)],
            ..host.attribution
        };
        let balanced = |host: &Observation| balance(&Analysis::new(host, &Costs::default()));
        assert_eq!(balanced(&host), None, "drops were not counted");
        host.attribution.hooks.push(hook(drops::QUANTITY));
        assert_eq!(balanced(&host), None, "reads were not counted");
        let refused = Hook { refused: Some("no fentry".into()), ..hook("udp bytes") };
        host.attribution.hooks.extend([refused, hook("udp bytes")]);
        balanced(&host).unwrap()
    }

    fn udp(netns: u32, entered: u64, read: u64) -> Datagrams {
        Datagrams { netns, entered, read, ..Datagrams::default() }
    }

    fn dropped(reason: &str, netns: u32, packets: u64) -> DroppedPackets {
        let reason = reason.into();
        DroppedPackets { reason, netns, protocol: UDP, packets, ..DroppedPackets::default() }
    }

    #[test]
    fn what_is_neither_read_nor_passed_on_nor_dropped_is_the_gap() {
        let router = Datagrams { left: 300, tunnelled: 50, ..udp(1, 1000, 400) };
        let lost =
            [dropped("SOCKET_RCVBUFF", 1, 100), dropped("QDISC_DROP", 1, 70), dropped("", 2, 9)];
        let [own] = &balances(&[router], &lost)[..] else { panic!() };
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
}
