//! Findings on the transmit path: queueing disciplines, full rings, XPS, completion interrupts.

use std::collections::BTreeSet;

use netsilo_model::change::{Settings, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::transmit::{discipline_of, grown};
use netsilo_model::drivers::name::DriverName;
use netsilo_model::drivers::table::{DriverKnob, Drivers};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::audit::{Qdisc, TxLimits};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity, TxQueue};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::{no_problem, setting, sum};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::tx_one_queue::{BUSY, CRITICAL_LOSS, one_queue, xps_near};

/// For each driver, its counter of full tx rings. `#` stands for the number of a queue.
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
/// Disciplines with one lock per tx queue, or without a lock.
const WITHOUT_ONE_LOCK: &[&str] = &["mq", "mqprio", "taprio", "noqueue", "clsact", "ingress"];

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut found = Vec::new();
    let drivers = Drivers::shipped();
    for netdev in analysis.running() {
        found.extend(one_queue(analysis, netdev));
        found.extend(drops(analysis, netdev));
        found.extend(requeues(analysis, netdev));
        found.extend(one_lock(analysis, netdev));
        found.extend(stalled(analysis, netdev));
        found.extend(timeouts(analysis, netdev));
        found.extend(ring_stops(analysis, netdev, drivers));
        found.extend(xps_gaps(analysis, netdev));
        found.extend(completions_far(analysis, netdev));
    }
    if found.is_empty() {
        let on_purpose = analysis.running().flat_map(|netdev| analysis.leaf_qdiscs(netdev));
        let title = if on_purpose.map(|(old, new)| grown(old, new).1).any(|drops| drops > 0) {
            "only disciplines that keep to a rate or their queue short drop packets to be sent"
        } else {
            "nothing delays or drops packets on the transmit path"
        };
        found.extend(no_problem(FindingId::TransmitFlows, title, looked_at(analysis)));
    }
    found
}

/// The root discipline of a netdev, before and after. Its counters include those of its children
/// (`mq` and classful disciplines).
fn root<'a>(analysis: &Analysis<'a>, netdev: &Netdev) -> Option<(&'a Qdisc, &'a Qdisc)> {
    analysis.qdiscs(netdev).into_iter().find(|(_, new)| new.is_root())
}

fn drops(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let mut dropped = 0;
    let mut kinds = BTreeSet::new();
    let (_, root) = root(analysis, netdev)?;
    if root.drops_on_purpose() {
        return None;
    }
    let (mut packets, mut limit) = (0, None);
    let leaves = analysis.leaf_qdiscs(netdev).into_iter();
    for (old, new) in leaves.filter(|(_, new)| !new.drops_on_purpose()) {
        let (took, lost, _) = grown(old, new);
        packets = sum([packets, took]);
        if lost > 0 {
            dropped += u64::from(lost);
            kinds.insert(new.kind.as_str());
            // `tx_queue_len` is the limit only for pfifo disciplines.
            if new.kind.starts_with("pfifo") {
                limit = limit.or(analysis.audit_of(netdev).and_then(|audit| audit.tx_queue_len));
            }
        }
    }
    if dropped == 0 {
        return None;
    }
    let share = dropped as f64 / sum([packets, dropped]) as f64;
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let mut evidence = vec![
        Evidence::new(
            "packets dropped",
            Measure::PerSecond(analysis.per_s(dropped)),
            "tc -s qdisc",
        ),
        Evidence::new("share of all packets queued", Measure::Share(share), "tc -s qdisc"),
        setting("discipline on the device", root.kind.clone(), "tc qdisc"),
    ];
    evidence.extend(limit.map(|limit| {
        Evidence::new("queue limit in packets", Measure::Count(limit.into()), "tx_queue_len")
    }));
    Some(Finding {
        id: FindingId::QdiscDrops,
        severity: if share >= CRITICAL_LOSS { Severity::Critical } else { Severity::Warning },
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("{} drops packets", kinds.join(" and ")),
        evidence,
        remedies: vec![
            Remedy::new(
                "send no faster than the link: fq or fq_codel slow each flow down before the queue \
                 overflows",
                Gain::AtMost {
                    measure: Measure::PerSecond(analysis.per_s(dropped)),
                    of: "packets that need no retransmission".into(),
                    basis: "all packets that are dropped at present".into(),
                },
            )
            .not_when(
                "the dropped packets are UDP without pacing: then change the sender or the link",
            ),
            Remedy::new(
                "a longer queue (ip link set txqueuelen) for bursts",
                Gain::Unknown(
                    "netsilo cannot distinguish bursts from a link that is too slow".into(),
                ),
            )
            .costs("each packet may wait longer in the queue"),
        ],
    })
}

fn requeues(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let (old, new) = root(analysis, netdev)?;
    let (packets, _, again) = grown(old, new);
    let share = f64::from(again) / packets.max(1) as f64;
    if share < 0.05 || analysis.per_s(again.into()) < 1000.0 {
        return None;
    }
    Some(Finding {
        id: FindingId::QdiscRequeues,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "packets are requeued because the tx ring is full or the tx queue is locked".into(),
        evidence: vec![
            Evidence::new(
                "packets requeued",
                Measure::PerSecond(analysis.per_s(again.into())),
                "tc -s qdisc, requeues",
            ),
            Evidence::new("share of all packets sent", Measure::Share(share), "tc -s qdisc"),
            setting("discipline", new.kind.clone(), "tc qdisc"),
        ],
        remedies: vec![
            Remedy::new(
                "give each sending cpu its own tx queue (XPS), and check the finding tx-ring-stops",
                Gain::Unknown("the cost of a requeue was not measured".into()),
            )
            .not_when("the link is full: packets should wait in the queue then"),
        ],
    })
}

/// All tx queues share one discipline and its lock.
fn one_lock(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let (old, new) = root(analysis, netdev)?;
    let queues = netdev.tx_queues.len();
    let packets = analysis.per_s(grown(old, new).0);
    if queues < 2 || WITHOUT_ONE_LOCK.contains(&new.kind.as_str()) || packets < BUSY {
        return None;
    }
    let shaping = ["htb", "hfsc", "tbf", "cake", "netem"].contains(&new.kind.as_str());
    let why =
        "the time spent waiting for the lock was not measured (perf lock contention measures it)";
    Some(Finding {
        id: FindingId::QdiscOneLock,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("all {queues} tx queues share one {} and its lock", new.kind),
        evidence: vec![
            setting("discipline on the device", new.kind.clone(), "tc qdisc"),
            Evidence::new("tx queues", Measure::Count(queues as u64), "queues/tx-*"),
            Evidence::new("packets through it", Measure::PerSecond(packets), "tc -s qdisc"),
        ],
        remedies: vec![
            Remedy::new(
                format!("tc qdisc replace dev {} root mq: one discipline per queue", netdev.name),
                Gain::Unknown(why.into()),
            )
            .not_when(if shaping {
                "one rate limit for the whole device is wanted: it needs one discipline"
            } else {
                "one order for all packets is wanted"
            }),
        ],
    })
}

/// Tx queues whose bytes the device holds but of which it completed none in the interval.
fn stalled(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let (before, after) = analysis.audits()?;
    let (old, new) = (before.netdevs.get(&netdev.name)?, after.netdevs.get(&netdev.name)?);
    let held = |(queue, now): (&u32, &TxLimits)| {
        let bytes = now.inflight_bytes.filter(|bytes| *bytes > 0)?;
        let unchanged = old.tx_queues.get(queue)?.inflight_bytes == Some(bytes);
        let (sent, waiting) = sent_and_waiting(analysis, netdev, *queue)?;
        (unchanged && sent == 0).then_some((CpuId(*queue), bytes, waiting))
    };
    let stuck: Vec<(CpuId, u64, u64)> = new.tx_queues.iter().filter_map(held).collect();
    let queues: CpuSet = stuck.iter().map(|(queue, ..)| *queue).collect();
    let waiting = sum(stuck.iter().map(|(.., waiting)| *waiting));
    let seconds = analysis.rates.elapsed.as_secs_f64();
    (!stuck.is_empty()).then(|| Finding {
        id: FindingId::TxStalled,
        severity: if waiting > 0 { Severity::Critical } else { Severity::Warning },
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "tx queue {queues} completed none of the packets in the device in {seconds:.1} s"
        ),
        evidence: vec![
            Evidence::new(
                "bytes handed to the device and not completed",
                Measure::Bytes(sum(stuck.iter().map(|(_, bytes, _)| *bytes))),
                "byte_queue_limits/inflight, before and after",
            ),
            Evidence::new("packets that wait behind them", Measure::Count(waiting), "tc -s qdisc"),
        ],
        remedies: vec![
            Remedy::new(
                "check the kernel log for the driver's messages; suspect firmware and driver \
                 first, then lost interrupts. The watchdog resets the queue after some seconds, \
                 which the finding tx-timeouts then shows",
                Gain::Unknown("netsilo cannot see what stalls the device".into()),
            )
            .not_when("no packet waits, and the driver frees sent packets only when it sends more"),
        ],
    })
}

/// Packets that the discipline of a tx queue sent in the interval, and those waiting in it now. If
/// the queues share one discipline, the counts are for the whole device.
fn sent_and_waiting(analysis: &Analysis<'_>, netdev: &Netdev, queue: u32) -> Option<(u64, u64)> {
    let own =
        discipline_of(&analysis.qdiscs(netdev), netdev, queue).or_else(|| root(analysis, netdev));
    own.map(|(old, new)| (grown(old, new).0, new.qlen.into()))
}

fn timeouts(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let (before, after) = analysis.audits()?;
    let (old, new) = (before.netdevs.get(&netdev.name)?, after.netdevs.get(&netdev.name)?);
    let grew = |(queue, now): (&u32, &TxLimits)| {
        let count = now.tx_timeouts?.checked_sub(old.tx_queues.get(queue)?.tx_timeouts?)?;
        (count > 0).then_some((*queue, count))
    };
    let stuck: Vec<(u32, u64)> = new.tx_queues.iter().filter_map(grew).collect();
    let all = sum(stuck.iter().map(|(_, count)| *count));
    let queues: CpuSet = stuck.iter().map(|(queue, _)| CpuId(*queue)).collect();
    (all > 0).then(|| Finding {
        id: FindingId::TxTimeouts,
        severity: Severity::Critical,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("tx queue {queues} stalled until the transmit watchdog fired"),
        evidence: vec![Evidence::new("timeouts", Measure::Count(all), "queues/tx-*/tx_timeout")],
        remedies: vec![Remedy::new(
            "check the kernel log for the driver's messages; suspect firmware and driver first, \
             then lost interrupts",
            Gain::Unknown("netsilo cannot see what stalls the device".into()),
        )],
    })
}

/// A full tx ring stops its queue.
fn ring_stops(analysis: &Analysis<'_>, netdev: &Netdev, drivers: &Drivers) -> Option<Finding> {
    let driver = DriverName::of(netdev)?;
    let (_, pattern) = RING_STOPS.iter().find(|(name, _)| driver.is_in(&[*name]))?;
    let grown = analysis.driver_counter_growth(netdev, |name| fits(pattern, name.trim()));
    let stops = analysis.per_s(sum(grown.into_values()));
    let packets = analysis.rate(netdev, "tx_packets").unwrap_or(0.0);
    if stops < 10.0 || packets <= 0.0 {
        return None;
    }
    let ethtool = netdev.ethtool.as_ref()?;
    let ring = ethtool.rings.value().and_then(|rings| rings.tx);
    let larger = ring.filter(|ring| ring.current < ring.max);
    let release = &analysis.after().machine.release;
    let limits = analysis.audit_of(netdev).into_iter().flat_map(|audit| audit.tx_queues.values());
    let limit = limits.filter_map(|tx| tx.limit_bytes).max().filter(|limit| *limit > 0);
    let mut evidence = vec![
        Evidence::new(
            "times that a tx ring was full",
            Measure::PerSecond(stops),
            format!("ethtool -S, {pattern}"),
        ),
        Evidence::new("packets sent", Measure::PerSecond(packets), "statistics/tx_packets"),
    ];
    evidence.extend(ring.map(|ring| {
        Evidence::new("descriptors in a tx ring", Measure::Count(ring.current.into()), "ethtool -g")
    }));
    match limit {
        Some(limit) => evidence.push(Evidence::new(
            "largest byte queue limit",
            Measure::Bytes(limit),
            "byte_queue_limits",
        )),
        None if drivers.lacks(netdev, release, DriverKnob::Bql) => {
            let none = format!("{driver} does not support them: packets queue in the ring");
            evidence.push(setting("byte queue limits", none, "docs/drivers.md"));
        }
        None => {}
    }
    let mut remedies = Vec::new();
    if let (Some(ring), Some(rings)) = (larger, ethtool.rings.value()) {
        let size = ring.current.saturating_mul(2).min(ring.max);
        let knob = knobs::Rings { netdev: NetdevIdentity::from_netdev(netdev) };
        let new: Settings = rings.settings().with("tx", size);
        let gain = Gain::Unknown(
            "netsilo cannot see whether bursts fill the ring, which a larger one could hold".into(),
        );
        let mut remedy = Remedy::new(format!("a tx ring of {size}"), gain)
            .costs(
                "the driver recreates its rings; more packets wait in the ring, where no \
                 discipline controls them",
            )
            .not_when("the link is full: a larger ring only makes packets wait longer")
            .by(analysis.change(knob, new, "the ring was full"));
        remedy.interrupts_traffic = true;
        remedies.push(remedy);
    }
    remedies.push(Remedy::new(
        "complete transmissions sooner (lower tx-usecs, tx-frames), so that descriptors are freed \
         earlier",
        Gain::Unknown("the time from sending to completion was not measured".into()),
    ));
    Some(Finding {
        id: FindingId::TxRingStops,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "its tx ring fills up and stops the tx queue".into(),
        evidence,
        remedies,
    })
}

/// Whether a name matches the pattern, with a number in place of `#`.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('#') else { return pattern == name };
    let number = name.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// CPUs without a tx queue while XPS is on.
fn xps_gaps(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let sets = netdev.tx_queues.iter().filter_map(|queue| queue.xps_cpus.as_ref());
    let covered = sets.fold(CpuSet::default(), |all, cpus| all.or(cpus));
    let missing = analysis.after().topology.online.minus(&covered);
    let packets = analysis.rate(netdev, "tx_packets").unwrap_or(0.0);
    if covered.is_empty() || missing.is_empty() || packets < BUSY {
        return None;
    }
    Some(Finding {
        id: FindingId::XpsGaps,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("XPS assigns no tx queue to cpus {missing}"),
        evidence: vec![
            setting("cpus with a tx queue", covered.to_string(), "queues/tx-*/xps_cpus"),
            setting("cpus without a tx queue", missing.to_string(), "queues/tx-*/xps_cpus"),
            Evidence::new("packets sent", Measure::PerSecond(packets), "statistics/tx_packets"),
        ],
        remedies: vec![
            Remedy::new(
                "assign each cpu the queue nearest to it",
                Gain::Unknown("the packets that each cpu sends were not counted".into()),
            )
            .not_when("those cpus never send")
            .by(xps_near(analysis, netdev)),
        ],
    })
}

/// Separate completion interrupts that share no last-level cache with the CPUs that send through
/// the queue.
fn completions_far(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let topology = &analysis.after().topology;
    let far = |queue: &TxQueue| {
        let irq = queue.irq.as_ref()?.to;
        let apart =
            netdev.rx_queues.iter().all(|rx| rx.irq.as_ref().is_none_or(|edge| edge.to != irq));
        let on = analysis.after().irqs.get(&irq)?.effective.as_ref()?.single()?;
        let senders = queue.xps_cpus.as_ref().filter(|cpus| !cpus.is_empty())?;
        let near = topology.llc_of(on);
        let rates = analysis.rates.irqs.get(&irq).filter(|rates| !rates.ignores_affinity)?;
        let rate = rates.total_per_s;
        (apart && near.and(senders).is_empty() && rate >= 1000.0).then_some((
            queue.index,
            irq,
            on,
            senders.clone(),
            rate,
        ))
    };
    let mut queues: Vec<_> = netdev.tx_queues.iter().filter_map(far).collect();
    queues.sort_by(|a, b| b.4.total_cmp(&a.4));
    let (index, irq, on, senders, rate) = queues.first()?.clone();
    let mut changes = Vec::new();
    for (queue, irq, _, senders, _) in &queues {
        let state = analysis.after().irqs.get(irq)?;
        let knob = knobs::IrqAffinity {
            irq: *irq,
            action: state.actions.join(","),
            netdev: Some(NetdevIdentity::from_netdev(netdev)),
        };
        let online = senders.and(&topology.online);
        if let Some(cpu) = online
            .lowest()
            .filter(|_| state.writable == netsilo_model::snapshot::host::Writable::Yes)
        {
            let reason = format!("cpus {senders} send through tx-{queue}");
            changes.extend(analysis.change(knob, CpuSet::from_cpu(cpu), &reason));
        }
    }
    Some(Finding {
        id: FindingId::CompletionsFar,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("{} of its tx queues complete far from the cpus that send", queues.len()),
        evidence: vec![
            setting(
                format!("tx-{index} completes on"),
                format!("cpu{on} (irq {irq})"),
                "effective_affinity",
            ),
            setting("cpus that send through it", format!("cpus {senders}"), "xps_cpus"),
            Evidence::new("completion interrupts", Measure::PerSecond(rate), "/proc/interrupts"),
        ],
        remedies: vec![
            Remedy::new(
                "move these interrupts to the cpus that send",
                Gain::Unknown(
                    "the cost of freeing a buffer that is in another CPU's cache was not measured"
                        .into(),
                ),
            )
            .not_when("those cpus have no idle time for completions")
            .by(changes),
        ],
    })
}

/// Evidence for "all well": the disciplines of each netdev.
fn looked_at(analysis: &Analysis<'_>) -> Vec<Evidence> {
    let netdevs = analysis.running().filter(|netdev| netdev.device_path.is_some());
    let kinds = |netdev: &Netdev| {
        let all = analysis.qdiscs(netdev);
        let kinds: BTreeSet<&str> = all.iter().map(|(_, new)| new.kind.as_str()).collect();
        let text = kinds.into_iter().collect::<Vec<_>>().join(", ");
        (!text.is_empty())
            .then(|| setting(format!("disciplines of {}", netdev.name), text, "tc qdisc"))
    };
    netdevs.filter_map(kinds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_matches_the_hash_sign_of_a_pattern() {
        assert!(fits("queue_#_tx_queue_stop", "queue_12_tx_queue_stop"));
        assert!(fits("tx_stop[#]", "tx_stop[0]") && fits("stop_queue", "stop_queue"));
        assert!(
            !fits("tx_stop[#]", "tx_stop[]")
                && !fits("txq#_wake", "txq1_wakeup")
                && !fits("tx_restart", "rx_tx_restart")
        );
    }
}
