//! Offloads against the traffic that would use them, and those that must be off.

use super::growth::{all_well, setting, sum};
use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::attribution::Protocol;
use crate::change::{Change, NetdevIdentity, knobs};
use crate::ethtool::Feature;
use crate::host::Netdev;
use crate::stages::Stage;

/// Packets per second from which on an offload is worth a word.
const WORTH_IT: f64 = 10_000.0;
/// Bytes from which on a packet is one of many of a larger piece of data.
const BULK: f64 = 1000.0;

pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for netdev in seen.running().filter(|netdev| netdev.ethtool.is_some() && netdev.device_path.is_some()) {
        found.extend(lro_forwarding(seen, netdev));
        found.extend(gro_off(seen, netdev));
        found.extend(segmentation_off(seen, netdev));
        found.extend(rx_checksum_off(seen, netdev));
        found.extend(tx_checksum_off(seen, netdev));
    }
    if found.is_empty() {
        found.extend(all_well(FindingId::OffloadsFit, "offloads are as the traffic wants them", looked_at(seen)));
    }
    found
}

fn feature<'a>(netdev: &'a Netdev, name: &str) -> Option<&'a Feature> {
    netdev.ethtool.as_ref()?.feature(name)
}

/// Off, and could be on.
fn could_be_on(netdev: &Netdev, name: &str) -> bool {
    feature(netdev, name).is_some_and(|feature| !feature.active && !feature.fixed())
}

fn is_on(netdev: &Netdev, name: &str) -> bool {
    feature(netdev, name).is_some_and(|feature| feature.active)
}

fn switch(seen: &Seen<'_>, netdev: &Netdev, feature: &str, on: bool, reason: &str) -> Vec<Change> {
    let knob = knobs::Offload { netdev: NetdevIdentity::of(netdev), feature: feature.to_owned() };
    seen.change(knob, on, reason)
}

fn state(feature: &str, on: bool) -> Evidence {
    setting(feature, if on { "on" } else { "off" }, "ethtool -k")
}

/// Packets per second and their mean size.
fn stream(seen: &Seen<'_>, netdev: &Netdev, direction: &str) -> Option<(f64, f64)> {
    let packets = seen.rate(netdev, &format!("{direction}_packets")).filter(|rate| *rate >= WORTH_IT)?;
    Some((packets, seen.rate(netdev, &format!("{direction}_bytes"))? / packets))
}

/// Merged packets cannot be sent on: their size is above the next device's MTU, and the headers'
/// order is lost.
fn lro_forwarding(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    const LRO: &str = "rx-lro";
    if !is_on(netdev, LRO) {
        return None;
    }
    let audit = seen.audit_of(netdev)?;
    let uses = [
        ("a port of a bridge", audit.bridge_port, "brport"),
        ("IPv4 forwarding", audit.ipv4_forwarding == Some(true), "net.ipv4.conf"),
        ("IPv6 forwarding", audit.ipv6_forwarding == Some(true), "net.ipv6.conf"),
    ];
    let mut evidence = vec![state(LRO, true)];
    let of = uses.iter().filter(|(_, so, _)| *so);
    evidence.extend(of.map(|(what, _, source)| setting(*what, "yes", *source)));
    if evidence.len() == 1 {
        return None;
    }
    let reason = "merged packets cannot be forwarded";
    Some(Finding {
        id: FindingId::LroForwarding,
        severity: Severity::Critical,
        subject: netdev.name.clone(),
        title: "LRO is on while it forwards or bridges: merged packets are dropped or altered".into(),
        evidence,
        remedies: vec![
            Remedy::new(
                "switch LRO off; GRO, also in hardware (rx-gro-hw), can stay: what it merges can be taken apart again",
                Gain::Unknown("it is about packets that arrive whole, not about time".into()),
            )
            .by(switch(seen, netdev, LRO, false, reason)),
        ],
    })
}

/// GRO off, while TCP arrives in bulk.
fn gro_off(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    const GRO: &str = "rx-gro";
    let merges = ["rx-gro-hw", "rx-lro"].iter().any(|name| is_on(netdev, name));
    if merges || !could_be_on(netdev, GRO) {
        return None;
    }
    let (packets, size) = stream(seen, netdev, "rx").filter(|(_, size)| *size >= BULK)?;
    let (tcp, source) = tcp_share(seen, netdev).filter(|(share, _)| *share >= 0.5)?;
    let (cpu, softirq) = seen.polling(netdev).into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let after_merging = [Stage::BridgeIp, Stage::Netfilter, Stage::LocalDelivery];
    let gain = match seen.stages(&after_merging) {
        Some(share) => Gain::AtMost {
            measure: Measure::Share(softirq * share * tcp),
            of: format!("cpu{cpu}'s time"),
            basis: "what comes after merging (IP, netfilter, TCP), all of it, for the TCP part".into(),
        },
        None => Gain::Unknown("the time after merging was not sampled".into()),
    };
    Some(Finding {
        id: FindingId::GroOff,
        severity: Severity::Warning,
        subject: netdev.name.clone(),
        title: "GRO is off, and each TCP segment goes up the stack by itself".into(),
        evidence: vec![
            state(GRO, false),
            Evidence::new("packets", Measure::PerSecond(packets), "statistics/rx_packets"),
            Evidence::new("bytes in one", Measure::Bytes(size as u64), "statistics/rx_bytes"),
            Evidence::new("bytes that are TCP", Measure::Share(tcp), source),
            Evidence::new(format!("softirq of cpu{cpu}"), Measure::Share(softirq), "eBPF or /proc/stat"),
        ],
        remedies: vec![
            Remedy::new("switch GRO on", gain)
                .not_when("a program that taps packets wants them as they came, or latency of single segments counts")
                .by(switch(seen, netdev, GRO, true, "TCP arrives in bulk")),
        ],
    })
}

/// The part of what arrived on a netdev and was read here that is TCP; where it is known from.
fn tcp_share(seen: &Seen<'_>, netdev: &Netdev) -> Option<(f64, &'static str)> {
    let silos = seen.silos.queues.iter().filter(|silo| silo.netdev.is(netdev));
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
    let own = seen.connections().into_iter().filter(|(_, new)| new.netdev.as_deref() == Some(&netdev.name));
    let bytes = sum(own.map(|(old, new)| new.bytes_received.saturating_sub(old.bytes_received)));
    let arrived = seen.rate(netdev, "rx_bytes").filter(|rate| *rate > 0.0)?;
    Some(((seen.per_s(bytes) / arrived).min(1.0), "tcp_info"))
}

/// TSO, or the scatter-gather that it needs, off while large packets leave.
fn segmentation_off(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    const TSO: &str = "tx-tcp-segmentation";
    const SG: &str = "tx-scatter-gather";
    let lacking: Vec<&str> = [SG, TSO].into_iter().filter(|name| could_be_on(netdev, name)).collect();
    let (packets, size) = stream(seen, netdev, "tx").filter(|(_, size)| *size >= BULK)?;
    if lacking.is_empty() {
        return None;
    }
    let mut changes = Vec::new();
    for name in &lacking {
        changes.extend(switch(seen, netdev, name, true, "large data is sent"));
    }
    let mut evidence: Vec<Evidence> = lacking.iter().map(|name| state(name, false)).collect();
    evidence.push(Evidence::new("packets sent", Measure::PerSecond(packets), "statistics/tx_packets"));
    evidence.push(Evidence::new("bytes in one", Measure::Bytes(size as u64), "statistics/tx_bytes"));
    let why = "sending is done in the senders' time too, which is not sampled by stage";
    Some(Finding {
        id: FindingId::SegmentationOff,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: "large data is cut into packets by the CPU, which the device could do".into(),
        evidence,
        remedies: vec![
            Remedy::new(format!("switch {} on", lacking.join(" and ")), Gain::Unknown(why.into()))
                .not_when("it was switched off for a fault of the device or its driver")
                .by(changes),
        ],
    })
}

fn rx_checksum_off(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    const CHECKSUM: &str = "rx-checksum";
    let (packets, size) = stream(seen, netdev, "rx").filter(|_| could_be_on(netdev, CHECKSUM))?;
    Some(checksum(seen, netdev, &[CHECKSUM], "received", [packets, size]))
}

/// No checksum of any kind is made by the device.
fn tx_checksum_off(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    const CHECKSUMS: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
    let (packets, size) = stream(seen, netdev, "tx")?;
    let could: Vec<&str> = CHECKSUMS.into_iter().filter(|name| could_be_on(netdev, name)).collect();
    let none_on = CHECKSUMS.iter().all(|name| !is_on(netdev, name));
    (none_on && !could.is_empty()).then(|| checksum(seen, netdev, &could, "sent", [packets, size]))
}

fn checksum(seen: &Seen<'_>, netdev: &Netdev, off: &[&str], which: &str, [packets, size]: [f64; 2]) -> Finding {
    let mut evidence: Vec<Evidence> = off.iter().map(|name| state(name, false)).collect();
    evidence.push(Evidence::new(format!("packets {which}"), Measure::PerSecond(packets), "statistics"));
    evidence.push(Evidence::new("bytes in one", Measure::Bytes(size as u64), "statistics"));
    let mut changes = Vec::new();
    for name in off {
        changes.extend(switch(seen, netdev, name, true, "the device can do it"));
    }
    Finding {
        id: FindingId::ChecksumOff,
        severity: Severity::Info,
        subject: format!("{} {}", netdev.name, if which == "sent" { "tx" } else { "rx" }),
        title: format!("the CPU sums up each packet {which}, which the device could do"),
        evidence,
        remedies: vec![
            Remedy::new(
                format!("switch {} on", off.join(" and ")),
                Gain::Unknown("checksums are made while copying; that time is not told apart".into()),
            )
            .not_when("it was switched off for a fault of the device or its driver")
            .by(changes),
        ],
    }
}

/// Netdevs with traffic whose offloads were read, and what merges on them.
fn looked_at(seen: &Seen<'_>) -> Vec<Evidence> {
    let netdevs = seen.running().filter(|netdev| netdev.device_path.is_some());
    let merging = |netdev: &Netdev| {
        netdev.ethtool.as_ref()?.features.value()?;
        let on: Vec<&str> = ["rx-gro", "rx-gro-hw", "rx-lro", "tx-tcp-segmentation", "tx-scatter-gather", "rx-checksum"]
            .into_iter()
            .filter(|name| is_on(netdev, name))
            .collect();
        Some(setting(netdev.name.clone(), if on.is_empty() { "none on".into() } else { on.join(", ") }, "ethtool -k"))
    };
    netdevs.filter_map(merging).collect()
}
