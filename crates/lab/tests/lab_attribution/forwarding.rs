//! Attribution of packets that arrive on `eth0` and leave by `eth1`, or the other way: bridged,
//! routed, and with translated addresses.
//!
//! All counts are compared with the counters of the two NICs, per queue if the driver has per-queue
//! counters.

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use std::collections::BTreeMap;

use netsilo_decide::report::Report;
use netsilo_lab::exact::Received;
use netsilo_lab::{Lab, NicModel};
use netsilo_model::derive::stages::{Stages, StagesLine};
use netsilo_model::snapshot::attribution::{Attribution, Forwarded};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::stage_samples::ReceiveStage;

use super::FEW;
use super::PATIENCE;
use super::Traffic;
use super::traced_with;

/// Packets that a NIC counts but nobody forwarded: address resolution, and multicast of the peers.
pub(super) const STRAY: u64 = 20;

/// Tests forwarding between the two NICs by a router, a NAT and a bridge. Runs last, because it
/// removes their addresses.
pub(super) fn is_attributed_in_every_way(lab: &Lab, model: NicModel) {
    is_attributed_on_a_router(lab, model);
    translated_packets_are_attributed(lab, model);
    packets_dropped_early_spend_no_time_in_later_stages(lab, model);
    bridged_packets_are_attributed(lab, model);
}

/// Makes the guest a router between the two NICs.
pub(super) fn is_attributed_on_a_router(lab: &Lab, model: NicModel) {
    if model == NicModel::Igb {
        lab.sh("for eth in eth0 eth1; do ethtool -N $eth rx-flow-hash udp4 sdfn; done").unwrap();
    }
    routed_packets_are_attributed_queue_to_queue(lab, model);
}

/// Reads the counters of a NIC from `ethtool -S` and `/sys/class/net/D/statistics`.
pub(super) fn counters(lab: &Lab, netdev: &str) -> BTreeMap<String, u64> {
    let read = format!("cd /sys/class/net/{netdev}/statistics; grep . *; ethtool -S {netdev}");
    let text = lab.sh(&read).unwrap();
    let pair = |line: &str| {
        let (name, value) = line.rsplit_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// An attribution, and the growth of both NICs' counters meanwhile.
struct Seen {
    attribution: Attribution,
    grown: [BTreeMap<String, u64>; 2],
}

impl Seen {
    fn while_it_happens(lab: &Lab, happens: impl FnOnce()) -> Self {
        Self::with_options(lab, "", happens)
    }

    fn with_options(lab: &Lab, options: &str, happens: impl FnOnce()) -> Self {
        let mut grown = Default::default();
        let attribution = traced_with(lab, options, || {
            let before = ["eth0", "eth1"].map(|netdev| counters(lab, netdev));
            happens();
            let after = ["eth0", "eth1"].map(|netdev| counters(lab, netdev));
            grown = [0, 1].map(|i: usize| {
                let growth = |(name, after): (&String, &u64)| {
                    (name.clone(), after - before[i].get(name).unwrap_or(&0))
                };
                after[i].iter().map(growth).collect()
            });
        });
        Self { attribution, grown }
    }

    fn to(&self, netdev: &str) -> Vec<&Forwarded> {
        self.attribution.forwarded.iter().filter(|row| row.egress == netdev).collect()
    }
}

fn packets<'a>(rows: impl IntoIterator<Item = &'a &'a Forwarded>) -> u64 {
    rows.into_iter().map(|row| row.packets).sum()
}

/// Sends through the guest to the peer of eth1, at `address`. Returns what arrived there.
///
/// The receiver ends with the last byte. If nothing arrives meanwhile it waits long, because on a
/// busy machine a guest may do nothing for seconds.
fn pass(lab: &Lab, proto: &str, address: &str, traffic: Traffic) -> Received {
    pass_or_lose(lab, proto, address, traffic, 30)
}

/// Sends through the guest. The receiver waits at most `idle` seconds, for packets that may be
/// dropped.
fn pass_or_lose(lab: &Lab, proto: &str, address: &str, traffic: Traffic, idle: u32) -> Received {
    let Traffic { flows, bytes } = traffic;
    let (mode, udp) = if proto == "udp" { ("udp-unconnected", "--udp") } else { ("recv", "") };
    let all = format!("--port 7000 --ports {flows} --flows {flows} --bytes {bytes}");
    let receive = format!("receive --mode {mode} {all} --idle {idle}");
    let receiver = lab.peer(1).unwrap().exact(&receive).unwrap();
    let send = format!("send {udp} --dest {address} {all} --rate 5000");
    lab.peer(0).unwrap().exact(&send).unwrap().wait(PATIENCE).unwrap().ok().unwrap();
    serde_json::from_str(&receiver.wait(PATIENCE).unwrap().ok().unwrap().text()).unwrap()
}

const DATAGRAMS: Traffic = Traffic { flows: 16, bytes: 40 * 1024 };

fn routed_packets_are_attributed_queue_to_queue(lab: &Lab, model: NicModel) {
    lab.route().unwrap();
    let send = || _ = pass(lab, "udp", "10.77.1.1", DATAGRAMS);
    let seen = Seen::with_options(lab, "--snapshot --sent", send);
    counted_as_the_nics_count(&seen, model);
    if model == NicModel::Igb {
        tx_queues_get_what_the_nics_send(&seen);
    }
    a_report_has_no_stray_napi(lab, &seen);
    a_stream_is_counted_in_packets_as_on_the_wire(lab);
}

/// Forwarded packets and the guest's own.
fn tx_queues_get_what_the_nics_send(Seen { attribution, grown }: &Seen) {
    for (at, netdev) in ["eth0", "eth1"].into_iter().enumerate() {
        let poll = attribution.polls.iter().find(|poll| poll.netdev == netdev).unwrap();
        let rows = attribution.sent.iter().filter(|row| row.ifindex == poll.ifindex);
        let mut by_queue = [0; 8];
        rows.for_each(|row| by_queue[row.tx_queue as usize] += row.packets);
        let by_nic: [u64; 8] =
            std::array::from_fn(|queue| grown[at][&format!("tx_queue_{queue}_packets")]);
        let off: u64 = by_queue.iter().zip(by_nic).map(|(sent, nic)| nic.abs_diff(*sent)).sum();
        assert!(off <= STRAY, "{netdev}: {by_queue:?} {by_nic:?}");
        println!("{netdev}: sent {by_queue:?}, by the NIC {by_nic:?}");
    }
}

/// Headers are counted for each packet on the wire, whether or not the kernel merges packets (GRO)
/// or the host sends large ones.
fn a_stream_is_counted_in_packets_as_on_the_wire(lab: &Lab) {
    let traffic = Traffic { flows: 2, bytes: 300_000 };
    let seen = Seen::while_it_happens(lab, || _ = pass(lab, "tcp", "10.77.1.1", traffic));
    let rows = seen.to("eth1");
    let (packets, bytes) = (packets(&rows), rows.iter().map(|row| row.bytes).sum::<u64>());
    // Ethernet, IPv4, TCP with a timestamp; SYNs have 8 bytes more, and retransmitted packets count
    // twice
    let payload = bytes - packets * (14 + 20 + 32);
    assert!(
        (600_000..700_000).contains(&payload),
        "{payload} bytes in {packets} packets: {rows:#?}"
    );
    assert!(packets > 600_000 / 1448, "{packets}");
}

/// A NAT rewrites addresses, but a packet is identified by its address in memory.
fn translated_packets_are_attributed(lab: &Lab, model: NicModel) {
    lab.nat().unwrap();
    let seen = Seen::while_it_happens(lab, || {
        let consumed = pass(lab, "udp", "10.77.1.1", DATAGRAMS);
        assert!(consumed.bytes > 0);
    });
    counted_as_the_nics_count(&seen, model);
    lab.end_nat().unwrap();
}

/// Raw PREROUTING drops all datagrams except the empty ones that open a flow.
fn packets_dropped_early_spend_no_time_in_later_stages(lab: &Lab, model: NicModel) {
    let stages = |bytes, idle| {
        let traffic = Traffic { flows: 16, bytes };
        let attribution = traced_with(lab, "--stages", || {
            _ = pass_or_lose(lab, "udp", "10.77.1.1", traffic, idle)
        });
        let samples = attribution.stages.unwrap();
        assert_eq!((samples.refused.clone(), samples.per_s > 0), (None, true), "{samples:#?}");
        let line = Stages::from_samples(&samples, 1.0).total;
        println!("{:?}, {} lost", line.stages, samples.lost);
        line
    };
    let of = |line: &StagesLine, stage| line.stages.get(&stage).copied().unwrap_or(0);
    let forwarded = stages(400 * 1024, 8);
    lab.sh("nft 'add table ip early; \
            add chain ip early in { type filter hook prerouting priority raw; }; \
            add rule ip early in udp length gt 100 drop'")
        .unwrap();
    // dropping takes little time, a tenth of it in netfilter
    let dropped = stages(4 * 400 * 1024, 2);
    lab.sh("nft delete table ip early").unwrap();
    let sent = |line| of(line, ReceiveStage::QdiscXmit) + of(line, ReceiveStage::TxCompletion);
    let both = format!("{forwarded:#?} {dropped:#?}");
    assert!(
        of(&forwarded, ReceiveStage::DriverGro) > 5 && of(&dropped, ReceiveStage::DriverGro) > 2,
        "{both}"
    );
    assert!(of(&forwarded, ReceiveStage::BridgeIp) > 5 && sent(&forwarded) > 10, "{both}");
    // igb's guests have an IOMMU.
    assert!(model != NicModel::Igb || of(&forwarded, ReceiveStage::DmaMapping) > 0, "{both}");
    assert!(
        of(&dropped, ReceiveStage::Netfilter) > 0 && sent(&dropped) * 3 < sent(&forwarded),
        "{both}"
    );
}

fn bridged_packets_are_attributed(lab: &Lab, model: NicModel) {
    lab.bridge().unwrap();
    let seen = Seen::while_it_happens(lab, || _ = pass(lab, "udp", "10.77.0.3", DATAGRAMS));
    counted_as_the_nics_count(&seen, model);
}

fn counted_as_the_nics_count(seen: &Seen, model: NicModel) {
    let Seen { attribution, grown } = seen;
    for (at, netdev) in ["eth0", "eth1"].into_iter().enumerate() {
        let rows = seen.to(netdev);
        let (sent, by_nic) = (packets(&rows), grown[at]["tx_packets"]);
        assert!(sent.abs_diff(by_nic) <= STRAY, "{netdev}: {sent} of {by_nic}: {rows:#?}");
        let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
        // igb's hardware counts the checksum of each frame
        let by_nic = grown[at]["tx_bytes"] - if model == NicModel::Igb { 4 * by_nic } else { 0 };
        // some of the stray packets are full frames
        assert!(bytes.abs_diff(by_nic) <= STRAY * 400, "{bytes} {by_nic}");
        let other = &grown[1 - at];
        assert!(
            sent.abs_diff(other["rx_packets"]) <= STRAY,
            "{sent} arrived on the other: {other:#?}"
        );
        // the first packet to a neighbour waits for address resolution
        let waited = packets(rows.iter().filter(|row| row.napi.is_none()));
        assert!(waited <= STRAY, "{rows:#?}");
        for row in rows.iter().filter(|row| row.napi.is_some()) {
            let polled: Vec<_> =
                attribution.polls.iter().filter(|poll| Some(poll.napi) == row.napi).collect();
            assert!(
                !polled.is_empty() && polled.iter().all(|poll| poll.netdev != netdev),
                "{row:#?} {polled:#?}"
            );
            assert!(
                row.rx_queue.is_some() && polled.iter().any(|poll| poll.cpu == row.poll_cpu),
                "{row:#?}"
            );
        }
        if model == NicModel::Igb {
            by_queue(&rows, |row| row.tx_queue, &grown[at], "tx_queue");
            by_queue(&rows, |row| row.rx_queue.unwrap_or(0), other, "rx_queue");
        }
    }
    assert!(packets(&seen.to("eth1")) >= 16 * 40, "{:#?}", attribution.forwarded);
    let queues: std::collections::BTreeSet<_> =
        seen.to("eth1").iter().map(|row| row.rx_queue).collect();
    assert!(queues.len() > 1, "several queues were used: {queues:?}");
    assert!(attribution.lost_events <= FEW, "{} events lost", attribution.lost_events);
}

/// Compares with igb's counters `tx_queue_0_packets` and so on.
fn by_queue(
    rows: &[&Forwarded],
    queue: impl Fn(&Forwarded) -> u32,
    grown: &BTreeMap<String, u64>,
    kind: &str,
) {
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for row in rows {
        *sums.entry(queue(row)).or_default() += row.packets;
    }
    let by_nic = (0..8).map(|i| (i, grown[&format!("{kind}_{i}_packets")]));
    let off: u64 = by_nic.map(|(i, nic)| nic.abs_diff(sums.get(&i).copied().unwrap_or(0))).sum();
    assert!(off <= STRAY, "{kind}: {sums:?} {grown:#?}");
}

/// On a router nobody reads the queues, so the report learns each queue's NAPI from forwarded
/// packets.
fn a_report_has_no_stray_napi(lab: &Lab, seen: &Seen) {
    let snapshot: Snapshot = serde_json::from_str(&lab.sh("cat /tmp/snapshot").unwrap()).unwrap();
    let attribution = seen.attribution.clone();
    let observation = Observation { before: snapshot.clone(), after: snapshot, attribution };
    let report = Report::of(&Analysis::new(&observation, &Costs::default()));
    for netdev in report.netdevs.iter().filter(|netdev| netdev.name.starts_with("eth")) {
        // a queue that received only address resolution may be unknown
        let busy =
            netdev.queues.iter().filter(|silo| silo.packets_per_s.is_some_and(|rate| rate > 20.0));
        for silo in busy {
            assert!(silo.queue.is_some() && !silo.forwards.is_empty(), "{silo:#?}");
        }
    }
    let forwarded = &report.totals.forwarded;
    let strays: f64 = forwarded.from_no_queue.iter().map(|share| share.share).sum();
    assert!(forwarded.packets_per_s > 0.0 && strays < 0.05, "{forwarded:#?}");
}
