//! Findings on offloads from which the traffic would benefit, and on LRO where it must be off.

use netsilo_model::change::{Change, knobs};
use netsilo_model::derive::analysis::{Analysis, Poller};
use netsilo_model::snapshot::attribution::Protocol;
use netsilo_model::snapshot::ethtool::Feature;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::stage_samples::ReceiveStage;
use netsilo_model::snapshot::subject::{Direction, Subject};

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::{no_problem, setting, softirq_time, sum};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;

/// Minimum packets per second for which an offload is judged.
const WORTH_IT: f64 = 10_000.0;
/// From this mean packet size in bytes, traffic counts as bulk data.
const BULK: f64 = 1000.0;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut found = Vec::new();
    for netdev in
        analysis.running().filter(|netdev| netdev.ethtool.is_some() && netdev.device_path.is_some())
    {
        found.extend(lro_forwarding(analysis, netdev));
        found.extend(gro_off(analysis, netdev));
        found.extend(segmentation_off(analysis, netdev));
        found.extend(rx_checksum_off(analysis, netdev));
        found.extend(tx_checksum_off(analysis, netdev));
    }
    if found.is_empty() {
        found.extend(no_problem(
            FindingId::OffloadsFit,
            "the offloads suit the traffic",
            looked_at(analysis),
        ));
    }
    found
}

fn feature<'a>(netdev: &'a Netdev, name: &str) -> Option<&'a Feature> {
    netdev.ethtool.as_ref()?.feature(name)
}

/// Whether a feature is off and can be switched on.
fn could_be_on(netdev: &Netdev, name: &str) -> bool {
    feature(netdev, name).is_some_and(|feature| !feature.active && !feature.fixed())
}

fn is_on(netdev: &Netdev, name: &str) -> bool {
    feature(netdev, name).is_some_and(|feature| feature.active)
}

fn switch(
    analysis: &Analysis<'_>,
    netdev: &Netdev,
    feature: &str,
    on: bool,
    reason: &str,
) -> Vec<Change> {
    let knob =
        knobs::Offload { netdev: NetdevIdentity::from_netdev(netdev), feature: feature.to_owned() };
    analysis.change(knob, on, reason)
}

fn state(feature: &str, on: bool) -> Evidence {
    setting(feature, if on { "on" } else { "off" }, "ethtool -k")
}

/// Packets per second and their mean size in bytes; `None` below [`WORTH_IT`].
fn stream(analysis: &Analysis<'_>, netdev: &Netdev, direction: &str) -> Option<(f64, f64)> {
    let packets =
        analysis.rate(netdev, &format!("{direction}_packets")).filter(|rate| *rate >= WORTH_IT)?;
    Some((packets, analysis.rate(netdev, &format!("{direction}_bytes"))? / packets))
}

/// LRO on a netdev that forwards or bridges. Merged packets exceed the next device's MTU, and the
/// original headers are lost.
fn lro_forwarding(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    const LRO: &str = "rx-lro";
    if !is_on(netdev, LRO) {
        return None;
    }
    let audit = analysis.audit_of(netdev)?;
    let uses = [
        ("a port of a bridge", audit.bridge_port, "brport"),
        ("IPv4 forwarding", audit.ipv4_forwarding == Some(true), "net.ipv4.conf"),
        ("IPv6 forwarding", audit.ipv6_forwarding == Some(true), "net.ipv6.conf"),
    ];
    let mut evidence = vec![state(LRO, true)];
    let in_use = uses.iter().filter(|(_, in_use, _)| *in_use);
    evidence.extend(in_use.map(|(what, _, source)| setting(*what, "yes", *source)));
    if evidence.len() == 1 {
        return None;
    }
    let reason = "merged packets cannot be forwarded";
    Some(Finding {
        id: FindingId::LroForwarding,
        severity: Severity::Critical,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "LRO is on while the netdev forwards or bridges: merged packets are dropped or \
                altered"
            .into(),
        evidence,
        remedies: vec![
            Remedy::new(
                "switch LRO off; keep GRO, including hardware GRO (rx-gro-hw): its merged packets \
                 can be split again",
                Gain::Unknown(
                    "this remedy makes packets correct; it does not save CPU time".into(),
                ),
            )
            .by(switch(analysis, netdev, LRO, false, reason)),
        ],
    })
}

/// GRO is off while TCP arrives in large segments.
fn gro_off(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    const GRO: &str = "rx-gro";
    let merges = ["rx-gro-hw", "rx-lro"].iter().any(|name| is_on(netdev, name));
    if merges || !could_be_on(netdev, GRO) {
        return None;
    }
    let (packets, size) = stream(analysis, netdev, "rx").filter(|(_, size)| *size >= BULK)?;
    let (tcp, source) = tcp_share(analysis, netdev).filter(|(share, _)| *share >= 0.5)?;
    let poller = analysis.busiest_poller(netdev)?;
    let Poller { cpu, softirq, .. } = poller;
    let after_merging =
        [ReceiveStage::BridgeIp, ReceiveStage::Netfilter, ReceiveStage::LocalDelivery];
    let gain = match analysis.stage_share(&after_merging) {
        Some(share) => Gain::AtMost {
            measure: Measure::Share(softirq * share * tcp),
            of: format!("cpu{cpu}'s time"),
            basis: "all time after merging (IP, netfilter, TCP), for the TCP share of the bytes"
                .into(),
        },
        None => Gain::Unknown("the time of the stages after merging was not sampled".into()),
    };
    Some(Finding {
        id: FindingId::GroOff,
        severity: Severity::Warning,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "GRO is off: each TCP segment passes through the stack separately".into(),
        evidence: vec![
            state(GRO, false),
            Evidence::new("packets", Measure::PerSecond(packets), "statistics/rx_packets"),
            Evidence::new("bytes per packet", Measure::Bytes(size as u64), "statistics/rx_bytes"),
            Evidence::new("TCP share of the bytes", Measure::Share(tcp), source),
            softirq_time(poller),
        ],
        remedies: vec![
            Remedy::new("switch GRO on", gain)
                .not_when(
                    "a packet capture needs unmerged packets, or the latency of single segments \
                     matters",
                )
                .by(switch(analysis, netdev, GRO, true, "TCP arrives in large segments")),
        ],
    })
}

/// TCP's share of the bytes that arrived on a netdev, and its source: eBPF by what was read, else
/// `tcp_info`.
fn tcp_share(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<(f64, &'static str)> {
    let silos = analysis.silos_of(&netdev.name);
    let (mut tcp, mut all) = (0.0, 0.0);
    for consumer in silos.flat_map(|silo| &silo.consumers) {
        all += consumer.bytes_per_s;
        if consumer.protocols == [Protocol::Tcp] {
            tcp += consumer.bytes_per_s;
        }
    }
    if all > 0.0 {
        return Some((tcp / all, "eBPF"));
    }
    let own = analysis
        .connections()
        .into_iter()
        .filter(|(_, new)| new.netdev.as_deref() == Some(&netdev.name));
    let bytes = sum(own.map(|(old, new)| new.bytes_received.saturating_sub(old.bytes_received)));
    let arrived = analysis.rate(netdev, "rx_bytes").filter(|rate| *rate > 0.0)?;
    Some(((analysis.per_s(bytes) / arrived).min(1.0), "tcp_info"))
}

/// TSO, or the scatter-gather that it needs, is off while large packets are sent.
fn segmentation_off(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    const TSO: &str = "tx-tcp-segmentation";
    const SG: &str = "tx-scatter-gather";
    let lacking: Vec<&str> =
        [SG, TSO].into_iter().filter(|name| could_be_on(netdev, name)).collect();
    let (packets, size) = stream(analysis, netdev, "tx").filter(|(_, size)| *size >= BULK)?;
    if lacking.is_empty() {
        return None;
    }
    let mut changes = Vec::new();
    for name in &lacking {
        changes.extend(switch(analysis, netdev, name, true, "large packets are sent"));
    }
    let mut evidence: Vec<Evidence> = lacking.iter().map(|name| state(name, false)).collect();
    evidence.push(Evidence::new(
        "packets sent",
        Measure::PerSecond(packets),
        "statistics/tx_packets",
    ));
    evidence.push(Evidence::new(
        "bytes per packet",
        Measure::Bytes(size as u64),
        "statistics/tx_bytes",
    ));
    let why = "part of sending counts as CPU time of the senders, which is not sampled by stage";
    Some(Finding {
        id: FindingId::SegmentationOff,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "the cpu segments large data into packets, which the device could do".into(),
        evidence,
        remedies: vec![
            Remedy::new(format!("switch {} on", lacking.join(" and ")), Gain::Unknown(why.into()))
                .not_when(
                    "it was switched off on purpose, because the device or its driver is faulty",
                )
                .by(changes),
        ],
    })
}

fn rx_checksum_off(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    const CHECKSUM: &str = "rx-checksum";
    let (packets, size) =
        stream(analysis, netdev, "rx").filter(|_| could_be_on(netdev, CHECKSUM))?;
    Some(checksum(analysis, netdev, &[CHECKSUM], Direction::Rx, [packets, size]))
}

/// The device computes no transmit checksum, although it could.
fn tx_checksum_off(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    const CHECKSUMS: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
    let (packets, size) = stream(analysis, netdev, "tx")?;
    let could: Vec<&str> = CHECKSUMS.into_iter().filter(|name| could_be_on(netdev, name)).collect();
    let none_on = CHECKSUMS.iter().all(|name| !is_on(netdev, name));
    (none_on && !could.is_empty())
        .then(|| checksum(analysis, netdev, &could, Direction::Tx, [packets, size]))
}

fn checksum(
    analysis: &Analysis<'_>,
    netdev: &Netdev,
    off: &[&str],
    direction: Direction,
    [packets, size]: [f64; 2],
) -> Finding {
    let which = match direction {
        Direction::Rx => "received",
        Direction::Tx => "sent",
    };
    let mut evidence: Vec<Evidence> = off.iter().map(|name| state(name, false)).collect();
    evidence.push(Evidence::new(
        format!("packets {which}"),
        Measure::PerSecond(packets),
        "statistics",
    ));
    evidence.push(Evidence::new("bytes per packet", Measure::Bytes(size as u64), "statistics"));
    let mut changes = Vec::new();
    for name in off {
        changes.extend(switch(analysis, netdev, name, true, "the device can do it"));
    }
    Finding {
        id: FindingId::ChecksumOff,
        severity: Severity::Info,
        subject: Subject::Direction(netdev.name.clone(), direction),
        title: format!(
            "the cpu computes the checksum of each packet {which}, which the device could do"
        ),
        evidence,
        remedies: vec![
            Remedy::new(
                format!("switch {} on", off.join(" and ")),
                Gain::Unknown(
                    "checksums are computed while copying; their time cannot be separated".into(),
                ),
            )
            .not_when("it was switched off on purpose, because the device or its driver is faulty")
            .by(changes),
        ],
    }
}

/// Evidence for "all well": the offloads that are on, for each device.
fn looked_at(analysis: &Analysis<'_>) -> Vec<Evidence> {
    let netdevs = analysis.running().filter(|netdev| netdev.device_path.is_some());
    let merging = |netdev: &Netdev| {
        netdev.ethtool.as_ref()?.features.value()?;
        let on: Vec<&str> = [
            "rx-gro",
            "rx-gro-hw",
            "rx-lro",
            "tx-tcp-segmentation",
            "tx-scatter-gather",
            "rx-checksum",
        ]
        .into_iter()
        .filter(|name| is_on(netdev, name))
        .collect();
        Some(setting(
            netdev.name.clone(),
            if on.is_empty() { "none on".into() } else { on.join(", ") },
            "ethtool -k",
        ))
    };
    netdevs.filter_map(merging).collect()
}
