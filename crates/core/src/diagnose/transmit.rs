//! The way out: queueing disciplines, byte queue limits, full rings, XPS, completion interrupts.

use std::collections::BTreeSet;

use super::growth::{all_well, setting, sum};
use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::audit::Qdisc;
use crate::change::{NetdevIdentity, Settings, knobs};
use crate::cpuset::CpuSet;
use crate::drivers::{Drivers, Knob};
use crate::host::{Netdev, TxQueue};

/// Drivers' counters of a ring that was full, and what they count. `#` stands for a queue's number.
const RING_STOPS: &[(&str, &str)] = &[
    ("e1000e", "tx_restart_queue"),
    ("ena", "queue_#_tx_queue_stop"),
    ("gve", "tx_stop[#]"),
    ("hns3", "txq#_wake"),
    ("hv_netvsc", "stop_queue"),
    ("i40e", "tx_stopped"),
    ("ice", "tx_restart"),
    ("igb", "tx_queue_#_restart"),
    ("igc", "tx_queue_#_restart"),
    ("ixgbe", "tx_restart_queue"),
    ("mana", "stop_queue"),
    ("mlx4_en", "queue_stopped"),
    ("mlx5_core", "tx_queue_stopped"),
    ("vmxnet3", "ring full"),
];
/// Disciplines that drop on purpose: to keep queues short, or to a rate that somebody set.
const DROP_ON_PURPOSE: &[&str] =
    &["cake", "choke", "codel", "fq_codel", "fq_pie", "hhf", "htb", "ingress", "clsact", "netem", "pie", "red", "sfq", "tbf"];
/// Disciplines that give each tx queue a lock of its own, or have none.
const WITHOUT_ONE_LOCK: &[&str] = &["mq", "mqprio", "taprio", "noqueue", "clsact", "ingress"];
/// Loss from which on it is grave.
const GRAVE_LOSS: f64 = 0.001;
/// Packets per second from which on a shared lock, or a CPU without a queue, is worth a word.
const BUSY: f64 = 50_000.0;

pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let drivers = Drivers::shipped();
    for netdev in seen.running() {
        found.extend(drops(seen, netdev));
        found.extend(requeues(seen, netdev));
        found.extend(one_lock(seen, netdev));
        found.extend(timeouts(seen, netdev));
        found.extend(ring_stops(seen, netdev, &drivers));
        found.extend(xps_gaps(seen, netdev));
        found.extend(completions_far(seen, netdev));
    }
    if found.is_empty() {
        found.extend(all_well(FindingId::TransmitFlows, "nothing is held up on the way out", looked_at(seen)));
    }
    found
}

/// Packets that a discipline took in the interval, and those that it dropped or took back.
fn grown(old: &Qdisc, new: &Qdisc) -> (u64, u32, u32) {
    // Counters of 32 bits wrap.
    let packets = new.packets.saturating_sub(old.packets);
    (packets, new.drops.wrapping_sub(old.drops), new.requeues.wrapping_sub(old.requeues))
}

/// The sums of a netdev: of its root discipline, which counts its children's too (`mq`, classful
/// ones).
fn root<'a>(seen: &Seen<'a>, netdev: &Netdev) -> Option<(&'a Qdisc, &'a Qdisc)> {
    seen.qdiscs(netdev).into_iter().find(|(_, new)| new.is_root())
}

fn drops(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    let mut dropped = 0;
    let mut kinds = BTreeSet::new();
    let (_, root) = root(seen, netdev)?;
    let on_purpose = |qdisc: &Qdisc| DROP_ON_PURPOSE.contains(&qdisc.kind.as_str());
    if on_purpose(root) {
        return None;
    }
    let (mut packets, mut limit) = (0, None);
    let all = seen.qdiscs(netdev);
    // Those above others count what these drop once more.
    let above = |one: &Qdisc| all.iter().any(|(_, other)| one.handle != 0 && other.parent >> 16 == one.handle >> 16);
    for (old, new) in &all {
        let (took, lost, _) = grown(old, new);
        if new.kind.starts_with("mq") || above(new) || on_purpose(new) {
            continue;
        }
        packets = sum([packets, took]);
        if lost > 0 {
            dropped += u64::from(lost);
            kinds.insert(new.kind.as_str());
            // the only ones whose limit it is
            if new.kind.starts_with("pfifo") {
                limit = limit.or(seen.audit_of(netdev).and_then(|audit| audit.tx_queue_len));
            }
        }
    }
    if dropped == 0 {
        return None;
    }
    let share = dropped as f64 / sum([packets, dropped]) as f64;
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let mut evidence = vec![
        Evidence::new("packets dropped", Measure::PerSecond(seen.per_s(dropped)), "tc -s qdisc"),
        Evidence::new("of all that it was given", Measure::Share(share), "tc -s qdisc"),
        setting("discipline on the device", root.kind.clone(), "tc qdisc"),
    ];
    evidence.extend(limit.map(|limit| Evidence::new("its limit, packets", Measure::Count(limit.into()), "tx_queue_len")));
    Some(Finding {
        id: FindingId::QdiscDrops,
        severity: if share >= GRAVE_LOSS { Severity::Critical } else { Severity::Warning },
        subject: netdev.name.clone(),
        title: format!("{} drops what it is given to send", kinds.join(" and ")),
        evidence,
        remedies: vec![
            Remedy::new(
                "send no faster than the link: fq or fq_codel hold senders back by flow, instead of a queue that overflows",
                Gain::AtMost {
                    measure: Measure::PerSecond(seen.per_s(dropped)),
                    of: "packets that are not sent again".into(),
                    basis: "all that is dropped now".into(),
                },
            )
            .not_when("the drops are UDP that nobody paces: then the sender, or the link, is what has to change"),
            Remedy::new(
                "a longer queue (ip link set txqueuelen) for bursts",
                Gain::Unknown("whether it is bursts or a link that is too slow is not seen".into()),
            )
            .costs("every packet waits behind a longer queue"),
        ],
    })
}

fn requeues(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    let (old, new) = root(seen, netdev)?;
    let (packets, _, again) = grown(old, new);
    let share = f64::from(again) / packets.max(1) as f64;
    if share < 0.05 || seen.per_s(again.into()) < 1000.0 {
        return None;
    }
    Some(Finding {
        id: FindingId::QdiscRequeues,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: "packets are put back because the device's ring is full or its queue locked".into(),
        evidence: vec![
            Evidence::new("packets put back", Measure::PerSecond(seen.per_s(again.into())), "tc -s qdisc, requeues"),
            Evidence::new("of all that are sent", Measure::Share(share), "tc -s qdisc"),
            setting("discipline", new.kind.clone(), "tc qdisc"),
        ],
        remedies: vec![
            Remedy::new(
                "give each sending CPU a tx queue of its own (XPS), and look at tx-ring-stops",
                Gain::Unknown("what putting back a packet costs is not measured".into()),
            )
            .not_when("the link is full: then the queue is where packets should wait"),
        ],
    })
}

/// One lock for all tx queues.
fn one_lock(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    let (old, new) = root(seen, netdev)?;
    let queues = netdev.tx_queues.len();
    let packets = seen.per_s(grown(old, new).0);
    if queues < 2 || WITHOUT_ONE_LOCK.contains(&new.kind.as_str()) || packets < BUSY {
        return None;
    }
    let shaping = ["htb", "hfsc", "tbf", "cake", "netem"].contains(&new.kind.as_str());
    let why = "time spent waiting for the lock is not measured (perf lock contention tells it)";
    Some(Finding {
        id: FindingId::QdiscOneLock,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: format!("all {queues} tx queues go through one {} and its lock", new.kind),
        evidence: vec![
            setting("discipline on the device", new.kind.clone(), "tc qdisc"),
            Evidence::new("tx queues", Measure::Count(queues as u64), "queues/tx-*"),
            Evidence::new("packets through it", Measure::PerSecond(packets), "tc -s qdisc"),
        ],
        remedies: vec![
            Remedy::new(format!("tc qdisc replace dev {} root mq: one discipline per queue", netdev.name), Gain::Unknown(why.into()))
                .not_when(if shaping { "one rate for the whole device is wanted: it needs one place" } else { "one order of all packets is wanted" }),
        ],
    })
}

fn timeouts(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    let (before, after) = seen.audits()?;
    let (old, new) = (before.netdevs.get(&netdev.name)?, after.netdevs.get(&netdev.name)?);
    let grew = |(queue, now): (&u32, &crate::audit::TxLimits)| {
        let count = now.tx_timeouts?.checked_sub(old.tx_queues.get(queue)?.tx_timeouts?)?;
        (count > 0).then_some((*queue, count))
    };
    let stuck: Vec<(u32, u64)> = new.tx_queues.iter().filter_map(grew).collect();
    let all = sum(stuck.iter().map(|(_, count)| *count));
    let queues: CpuSet = stuck.iter().map(|(queue, _)| crate::cpuset::CpuId(*queue)).collect();
    (all > 0).then(|| Finding {
        id: FindingId::TxTimeouts,
        severity: Severity::Critical,
        subject: netdev.name.clone(),
        title: format!("tx queue {queues} stood still until the watchdog came"),
        evidence: vec![Evidence::new("timeouts", Measure::Count(all), "queues/tx-*/tx_timeout")],
        remedies: vec![Remedy::new(
            "look at the kernel's log for the driver's words; firmware and driver first, then interrupts that do not arrive",
            Gain::Unknown("what stops the device is not known from here".into()),
        )],
    })
}

/// Times that a full ring stopped a queue.
fn ring_stops(seen: &Seen<'_>, netdev: &Netdev, drivers: &Drivers) -> Option<Finding> {
    let driver = netdev.driver.as_deref()?;
    let (_, pattern) = RING_STOPS.iter().find(|(name, _)| *name == driver)?;
    let grown = seen.driver_counters(netdev, |name| fits(pattern, name.trim()));
    let stops = seen.per_s(sum(grown.into_values()));
    let packets = seen.rate(netdev, "tx_packets").unwrap_or(0.0);
    if stops < 10.0 || packets <= 0.0 {
        return None;
    }
    let ethtool = netdev.ethtool.as_ref()?;
    let ring = ethtool.rings.value().and_then(|rings| rings.tx);
    let larger = ring.filter(|ring| ring.current < ring.max);
    let release = &seen.after().machine.release;
    let limits = seen.audit_of(netdev).into_iter().flat_map(|audit| audit.tx_queues.values());
    let limit = limits.filter_map(|tx| tx.limit_bytes).max().filter(|limit| *limit > 0);
    let mut evidence = vec![
        Evidence::new("times that a ring was full", Measure::PerSecond(stops), format!("ethtool -S, {pattern}")),
        Evidence::new("packets sent", Measure::PerSecond(packets), "statistics/tx_packets"),
    ];
    evidence.extend(ring.map(|ring| Evidence::new("descriptors in it", Measure::Count(ring.current.into()), "ethtool -g")));
    match limit {
        Some(limit) => evidence.push(Evidence::new("largest byte queue limit", Measure::Bytes(limit), "byte_queue_limits")),
        None if drivers.lacks(driver, release, Knob::Bql) => {
            let none = format!("{driver} has none: the ring is the queue");
            evidence.push(setting("byte queue limits", none, "docs/drivers.md"));
        }
        None => {}
    }
    let mut remedies = Vec::new();
    if let (Some(ring), Some(rings)) = (larger, ethtool.rings.value()) {
        let size = ring.current.saturating_mul(2).min(ring.max);
        let knob = knobs::Rings { netdev: NetdevIdentity::of(netdev) };
        let new: Settings = rings.settings().with("tx", size);
        let gain = Gain::Unknown("whether it is bursts that a larger ring takes is not seen".into());
        let mut remedy = Remedy::new(format!("a tx ring of {size}"), gain)
            .costs("the driver sets its rings up anew; more waits in the ring, where no discipline sees it")
            .not_when("the link is full: a larger ring only makes packets wait longer")
            .by(seen.change(knob, new, "the ring was full"));
        remedy.interrupts_traffic = true;
        remedies.push(remedy);
    }
    remedies.push(Remedy::new(
        "let completions come sooner (tx-usecs, tx-frames), so that the ring empties",
        Gain::Unknown("how long a descriptor waits for its completion is not measured".into()),
    ));
    Some(Finding {
        id: FindingId::TxRingStops,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: "its tx ring fills up and stops the queue".into(),
        evidence,
        remedies,
    })
}

/// Whether a name is the pattern, with a number in the place of `#`.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('#') else { return pattern == name };
    let number = name.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// CPUs that no tx queue is for, while XPS is on.
fn xps_gaps(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    let sets = netdev.tx_queues.iter().filter_map(|queue| queue.xps_cpus.as_ref());
    let covered = sets.fold(CpuSet::default(), |all, cpus| all.or(cpus));
    let missing = seen.after().topology.online.minus(&covered);
    let packets = seen.rate(netdev, "tx_packets").unwrap_or(0.0);
    if covered.is_empty() || missing.is_empty() || packets < BUSY {
        return None;
    }
    Some(Finding {
        id: FindingId::XpsGaps,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: format!("XPS gives cpus {missing} no tx queue of their own"),
        evidence: vec![
            setting("CPUs that have one", covered.to_string(), "queues/tx-*/xps_cpus"),
            setting("CPUs that have none", missing.to_string(), "queues/tx-*/xps_cpus"),
            Evidence::new("packets sent", Measure::PerSecond(packets), "statistics/tx_packets"),
        ],
        remedies: vec![
            Remedy::new(
                "netsilo plan --xps near gives each CPU the queue that is near it",
                Gain::Unknown("which CPU sends how much is not counted".into()),
            )
            .not_when("those CPUs never send: then nothing is lost by the gap"),
        ],
    })
}

/// Completion interrupts of their own, on another node than the CPUs that send through the queue.
fn completions_far(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    let topology = &seen.after().topology;
    let far = |queue: &TxQueue| {
        let irq = queue.irq.as_ref()?.to;
        let apart = netdev.rx_queues.iter().all(|rx| rx.irq.as_ref().is_none_or(|edge| edge.to != irq));
        let on = seen.after().irqs.get(&irq)?.effective.as_ref()?.single()?;
        let senders = queue.xps_cpus.as_ref().filter(|cpus| !cpus.is_empty())?;
        let near = topology.llc_of(on);
        let rate = seen.rates.irqs.get(&irq)?.total_per_s;
        (apart && near.and(senders).is_empty() && rate >= 1000.0).then_some((queue.index, irq, on, senders.clone(), rate))
    };
    let mut queues: Vec<_> = netdev.tx_queues.iter().filter_map(far).collect();
    queues.sort_by(|a, b| b.4.total_cmp(&a.4));
    let (index, irq, on, senders, rate) = queues.first()?.clone();
    let mut changes = Vec::new();
    for (queue, irq, _, senders, _) in &queues {
        let state = seen.after().irqs.get(irq)?;
        let knob = knobs::IrqAffinity { irq: *irq, action: state.actions.join(","), netdev: Some(NetdevIdentity::of(netdev)) };
        let online = senders.and(&topology.online);
        if let Some(cpu) = online.lowest().filter(|_| state.writable == crate::host::Writable::Yes) {
            let reason = format!("tx-{queue} is sent through by cpus {senders}");
            changes.extend(seen.change(knob, CpuSet::of(cpu), &reason));
        }
    }
    Some(Finding {
        id: FindingId::CompletionsFar,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: format!("{} of its tx queues complete far from the CPUs that send", queues.len()),
        evidence: vec![
            setting(format!("tx-{index} completes on"), format!("cpu{on} (irq {irq})"), "effective_affinity"),
            setting("it is for", format!("cpus {senders}"), "xps_cpus"),
            Evidence::new("its interrupts", Measure::PerSecond(rate), "/proc/interrupts"),
        ],
        remedies: vec![
            Remedy::new(
                "put their interrupts next to the CPUs that send",
                Gain::Unknown("what freeing a buffer from another cache costs is not measured here".into()),
            )
            .not_when("those CPUs have no time left for completions")
            .by(changes),
        ],
    })
}

/// Netdevs with their disciplines.
fn looked_at(seen: &Seen<'_>) -> Vec<Evidence> {
    let netdevs = seen.running().filter(|netdev| netdev.device_path.is_some());
    let kinds = |netdev: &Netdev| {
        let all = seen.qdiscs(netdev);
        let kinds: BTreeSet<&str> = all.iter().map(|(_, new)| new.kind.as_str()).collect();
        let text = kinds.into_iter().collect::<Vec<_>>().join(", ");
        (!text.is_empty()).then(|| setting(format!("disciplines of {}", netdev.name), text, "tc qdisc"))
    };
    netdevs.filter_map(kinds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queues_number_stands_for_the_sign() {
        assert!(fits("queue_#_tx_queue_stop", "queue_12_tx_queue_stop"));
        assert!(fits("tx_stop[#]", "tx_stop[0]") && fits("stop_queue", "stop_queue"));
        assert!(!fits("tx_stop[#]", "tx_stop[]") && !fits("txq#_wake", "txq1_wakeup") && !fits("tx_restart", "rx_tx_restart"));
    }
}
