//! Plans RPS, RFS, XPS and the defaults for future interrupts and devices, from the values that the
//! operator requested.

use std::collections::BTreeMap;

use netsilo_model::change::knobs;
use netsilo_model::drivers::software::{SoftwareNetdev, SoftwareReceive};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{STEERING_MASKS, Snapshot};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity, TxQueue};

use crate::plan::contents::{Plan, Refusal, RefusalCause};
use crate::plan::goal::{Goal, Xps};
use crate::plan::places::Places;
use crate::plan::{owners, selection};

/// Most RFS table entries that `rps_sock_flow_sysctl` accepts (`net/core/sysctl_net_core.c`).
const MAX_FLOW_ENTRIES: u32 = 1 << 29;

/// Why RPS leaves out CPUs that the kernel would accept: those of isolated partitions.
const NO_WORK: &str = "nothing is placed on such cpus";

/// Plans `default_smp_affinity` and `rps_default_mask`.
pub(super) fn defaults(snapshot: &Snapshot, goal: &Goal) -> Plan {
    let mut part = Plan::default();
    if let Some(cpus) = &goal.default_smp_affinity {
        let subject = "default_smp_affinity";
        match &snapshot.default_smp_affinity {
            None => {
                let reason = "this kernel does not have it";
                part.refuse(subject, RefusalCause::NoSuchKnob, reason.into());
            }
            Some(old) => {
                let refusals = selection::unusable(&snapshot.topology, subject, cpus);
                if refusals.is_empty() {
                    let reason = format!("new interrupts start on cpus {cpus}; existing ones stay");
                    part.set(knobs::DefaultSmpAffinity, old.clone(), cpus.clone(), reason);
                }
                part.refuse_all(refusals);
            }
        }
    }
    if let Some(cpus) = &goal.rps_default_mask {
        let subject = "rps_default_mask";
        match (&snapshot.net.rps_default_mask, steerable(snapshot, subject, cpus)) {
            (_, Err(refusal)) => part.refuse_all([refusal]),
            (None, _) => {}
            (Some(old), Ok((new, note))) => {
                let reason =
                    format!("queues of new devices start with RPS {}{note}", on_or_off(&new));
                part.set(knobs::RpsDefaultMask, old.clone(), new, reason);
            }
        }
        if snapshot.net.rps_default_mask.is_none() {
            let reason = "this kernel does not have it; set rps_cpus of each new device instead";
            part.refuse(subject, RefusalCause::NoSuchKnob, reason.into());
        }
    }
    part
}

fn on_or_off(cpus: &CpuSet) -> String {
    if cpus.is_empty() { "off".into() } else { format!("on cpus {cpus}") }
}

/// Returns the RPS mask that the kernel will use, with a note on CPUs left out, or a refusal.
///
/// The kernel silently drops CPUs that are set apart at boot (`Topology::dropped_from_rps`); the
/// plan leaves them out, and those of isolated partitions, and says so.
fn steerable(
    snapshot: &Snapshot,
    subject: &str,
    cpus: &CpuSet,
) -> Result<(CpuSet, String), Refusal> {
    let topology = &snapshot.topology;
    if let Some(refusal) = selection::offline(topology, subject, cpus) {
        return Err(refusal);
    }
    let dropped = cpus.and(&topology.isolated_or_tickless());
    let usable = cpus.minus(&dropped);
    if dropped.is_empty() {
        return Ok((usable, String::new()));
    }
    let are =
        format!("{} {}", selection::cpus_are(&dropped), selection::why_apart(topology, &dropped));
    let by_kernel = dropped.is_subset(&topology.dropped_from_rps());
    if usable.is_empty() {
        let who = if by_kernel { "the kernel drops such cpus from RPS" } else { NO_WORK };
        return Err(Refusal::new(subject, RefusalCause::IsolatedCpu, format!("{are}; {who}")));
    }
    let who = if by_kernel { "the kernel ignores such cpus" } else { NO_WORK };
    Ok((usable, format!("; {are}: left out, as {who}")))
}

/// Plans `rps_cpus` of each rx queue. If the goal turns RPS off and names no netdev, also of all
/// other netdevs, such as veths, where it is on.
pub(super) fn rps(snapshot: &Snapshot, netdevs: &[&Netdev], goal: &Goal) -> Plan {
    let (mut part, mut changes) = (Plan::default(), Plan::default());
    let (cpus, note) = match goal.rps.as_ref().map(|cpus| steerable(snapshot, "rps", cpus)) {
        None => return part,
        Some(Err(refusal)) => return Plan { refusals: vec![refusal], ..part },
        Some(Ok(steerable)) => steerable,
    };
    let is_on = |netdev: &&Netdev| {
        let mut masks = netdev.rx_queues.iter().filter_map(|queue| queue.rps_cpus.as_ref());
        netdev.up && masks.any(|cpus| !cpus.is_empty())
    };
    let is_chosen = |netdev: &Netdev| netdevs.iter().any(|it| it.ifindex == netdev.ifindex);
    let covers_all = cpus.is_empty() && goal.netdevs.is_empty();
    let others = snapshot.netdevs.iter().filter(|it| covers_all && is_on(it) && !is_chosen(it));
    for netdev in netdevs.iter().copied().chain(others) {
        if !cpus.is_empty()
            && let Some(why) = never_read(netdev, "rps_cpus")
        {
            part.leave(&format!("{} rps", netdev.name), &why);
            continue;
        }
        let reason = if cpus.is_empty() {
            "RPS off: each packet's protocol work stays on the cpu that polls it".to_owned()
        } else {
            let of_bridge = match SoftwareNetdev::from_netdev(netdev).map(|it| it.receive) {
                Some(SoftwareReceive::Reentry) => "; only of packets for this host",
                _ => "",
            };
            format!("RPS spreads the protocol work of its flows over cpus {cpus}{of_bridge}{note}")
        };
        for queue in &netdev.rx_queues {
            let label = format!("{} rx-{}", netdev.name, queue.index);
            if let Some(refusal) = selection::leased(queue.leased.as_deref(), &label) {
                part.refuse_all([refusal]);
                continue;
            }
            match &queue.rps_cpus {
                None => part.refuse(
                    &label,
                    RefusalCause::NoSuchKnob,
                    if snapshot.was_not_recorded(STEERING_MASKS) {
                        "its rps_cpus was not recorded".into()
                    } else {
                        "it has no rps_cpus: this kernel has no RPS".into()
                    },
                ),
                Some(old) => {
                    let (netdev, queue) = (NetdevIdentity::from_netdev(netdev), queue.index);
                    let knob = knobs::RpsCpus { netdev, queue };
                    changes.set(knob, old.clone(), cpus.clone(), reason.clone());
                }
            }
        }
    }
    part.and(owners::unless_owned(&snapshot.knob_owners, goal, changes.changes))
}

/// Plans `rps_sock_flow_entries` and the `rps_flow_cnt` of each rx queue.
pub(super) fn rfs(snapshot: &Snapshot, netdevs: &[&Netdev], goal: &Goal) -> Plan {
    let refused = |refusal| Plan { refusals: vec![refusal], ..Plan::default() };
    let Some(wanted) = goal.rfs.filter(|_| !netdevs.is_empty()) else { return Plan::default() };
    let Some(old) = snapshot.net.rps_sock_flow_entries else {
        let reason = if snapshot.is_of_first_netns() {
            "this kernel has no RPS and no RFS"
        } else {
            "it is a sysctl of the whole machine, which this network namespace does not show"
        };
        let subject = "rps_sock_flow_entries";
        return refused(Refusal::new(subject, RefusalCause::NoSuchKnob, reason.into()));
    };
    if let Some(refusal) = table_too_large(wanted) {
        return refused(refusal);
    }
    // The kernel rounds up (`roundup_pow_of_two`); the plan states the value that will be read
    // back.
    let entries = if wanted == 0 { 0 } else { wanted.next_power_of_two() };
    let mut changes = Plan::default();
    let table = match (entries, entries == wanted) {
        (0, _) => "RFS off: flows no longer follow their readers, on any device".to_owned(),
        (_, true) => "RFS: a table entry per flow records the cpu that reads it".to_owned(),
        (_, false) => format!(
            "RFS: a table entry per flow records the cpu that reads it; {wanted} \
             rounded up to a power of two, as the kernel does"
        ),
    };
    changes.set(knobs::RpsSockFlowEntries, old, entries, table);
    let counts = netdevs.iter().map(|netdev| flow_counts(netdev, entries));
    let mut part = counts.fold(changes, Plan::and);
    let changes = std::mem::take(&mut part.changes);
    part.and(owners::unless_owned(&snapshot.knob_owners, goal, changes))
}

/// A refusal if the kernel does not accept an RFS table of this size.
pub(super) fn table_too_large(entries: u32) -> Option<Refusal> {
    let reason = format!("{entries} flow entries exceed the kernel's limit ({MAX_FLOW_ENTRIES})");
    let refusal = || Refusal::new("rps_sock_flow_entries", RefusalCause::OutOfRange, reason);
    (entries > MAX_FLOW_ENTRIES).then(refusal)
}

/// Why a setting of a netdev without hardware would do nothing; `None` if the kernel reads it.
fn never_read(netdev: &Netdev, knob: &str) -> Option<String> {
    let kind = SoftwareNetdev::from_netdev(netdev)?;
    let function = kind.function_name();
    let reads = if kind.on_backlog.is_empty() {
        format!("the kernel never reads its {knob}")
    } else {
        format!("the kernel reads its {knob} only for {}", kind.on_backlog)
    };
    kind.is_never_steered().then(|| match kind.receive {
        SoftwareReceive::Nothing => format!("{reads}: it receives no packets ({function})"),
        _ => format!(
            "{reads}: the netdevs below it receive its packets ({function}); name those instead"
        ),
    })
}

fn flow_counts(netdev: &Netdev, entries: u32) -> Plan {
    let mut part = Plan::default();
    if entries > 0
        && let Some(why) = never_read(netdev, "rps_flow_cnt")
    {
        part.leave(&format!("{} rfs", netdev.name), &why);
        return part;
    }
    let real = real_queues(netdev);
    let share = match entries / real {
        0 => entries.min(1),
        share => 1 << share.ilog2(),
    };
    for queue in netdev.rx_queues.iter().filter(|queue| queue.index < real || entries == 0) {
        let label = format!("{} rx-{}", netdev.name, queue.index);
        if let Some(refusal) = selection::leased(queue.leased.as_deref(), &label) {
            part.refuse_all([refusal]);
            continue;
        }
        match queue.rps_flow_cnt {
            None => part.refuse(
                &label,
                RefusalCause::NoSuchKnob,
                "it has no rps_flow_cnt: this kernel has no RFS".into(),
            ),
            Some(old) => {
                let reason = match entries {
                    0 => "RFS off".to_owned(),
                    _ => {
                        let queues = netsilo_model::machine::words::plural(real as usize, "queue");
                        format!("RFS: its share of {entries} entries, {queues}")
                    }
                };
                let (netdev, queue) = (NetdevIdentity::from_netdev(netdev), queue.index);
                part.set(knobs::RpsFlowCnt { netdev, queue }, old, share, reason);
            }
        }
    }
    part
}

/// Number of rx queues that the device uses; some drivers (mlx5) create sysfs folders for more.
fn real_queues(netdev: &Netdev) -> u32 {
    let folders = netdev.rx_queues.len() as u32;
    let channels = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.channels.value());
    let current = |limit: Option<netsilo_model::snapshot::ethtool::Limit>| {
        limit.map_or(0, |limit| limit.current)
    };
    let reported = channels
        .map_or(0, |channels| current(channels.rx).saturating_add(current(channels.combined)));
    if (1..folders).contains(&reported) { reported } else { folders.max(1) }
}

/// Plans `xps_cpus` of each tx queue.
pub(super) fn xps(snapshot: &Snapshot, netdevs: &[&Netdev], places: &Places, goal: &Goal) -> Plan {
    let (mut part, mut changes) = (Plan::default(), Plan::default());
    let Some(xps) = goal.xps else { return part };
    for netdev in netdevs {
        let queues: Vec<(&TxQueue, &CpuSet)> =
            netdev.tx_queues.iter().filter_map(|tx| Some((tx, tx.xps_cpus.as_ref()?))).collect();
        if queues.is_empty() {
            part.leave(
                &format!("{} xps", netdev.name),
                "it has one tx queue, or this kernel has no XPS: nothing to choose",
            );
            continue;
        }
        let near =
            if xps == Xps::Near { near(snapshot, &queues, places) } else { Some(BTreeMap::new()) };
        let Some(near) = near else {
            part.leave(
                &format!("{} xps", netdev.name),
                "the completion interrupts of its tx queues are not known",
            );
            continue;
        };
        for (tx, old) in queues {
            let new = near.get(&tx.index).cloned().unwrap_or_default();
            let place = tx.irq.as_ref().and_then(|irq| places.get(&irq.to));
            let reason = match (xps, place) {
                (Xps::Off, _) => "XPS off: a flow's hash chooses the tx queue".to_owned(),
                (Xps::Near, Some(cpu)) if new.is_empty() => {
                    format!("its completions arrive on cpu {cpu}; every cpu has a nearer queue")
                }
                (Xps::Near, Some(cpu)) => {
                    format!(
                        "cpus {new} send through it: its completions arrive on cpu {cpu}, and no \
                         other queue is nearer"
                    )
                }
                (Xps::Near, None) => "the cpu of its completions is not known".to_owned(),
            };
            let knob =
                knobs::XpsCpus { netdev: NetdevIdentity::from_netdev(netdev), queue: tx.index };
            changes.set(knob, old.clone(), new, reason);
        }
    }
    part.and(owners::unless_owned(&snapshot.knob_owners, goal, changes.changes))
}

/// Assigns each online CPU to the tx queue whose completions arrive nearest; among equals, to the
/// queue with fewest CPUs.
fn near(
    snapshot: &Snapshot,
    queues: &[(&TxQueue, &CpuSet)],
    places: &BTreeMap<Irq, CpuId>,
) -> Option<BTreeMap<u32, CpuSet>> {
    let place = |tx: &TxQueue| Some((tx.index, *places.get(&tx.irq.as_ref()?.to)?));
    let mut placed: BTreeMap<CpuId, Vec<u32>> = BTreeMap::new();
    for (index, at) in queues.iter().filter_map(|(tx, _)| place(tx)) {
        placed.entry(at).or_default().push(index);
    }
    let mut near: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in snapshot.topology.online.iter() {
        let distances: Vec<_> =
            placed.iter().map(|(at, all)| (snapshot.topology.distance(cpu, *at), all)).collect();
        let nearest = distances.iter().map(|(distance, _)| *distance).min()?;
        let equals =
            distances.iter().filter(|(distance, _)| *distance == nearest).flat_map(|(_, all)| *all);
        let index = equals.min_by_key(|index| (near.get(index).map_or(0, CpuSet::len), **index))?;
        near.entry(*index).or_default().insert(cpu);
    }
    Some(near)
}

#[cfg(test)]
mod tests {
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue};

    use super::*;

    #[test]
    fn rps_is_planned_only_where_the_kernel_reads_it() {
        let netdev = |name: &str, driver: &str| SceneNetdev {
            name: name.into(),
            driver: driver.into(),
            software: true,
            queues: vec![SceneQueue {
                rps_cpus: Some(CpuSet::new()),
                rps_flow_cnt: Some(0),
                ..SceneQueue::default()
            }],
            ..SceneNetdev::default()
        };
        let netdevs = [
            netdev("bond0", "bonding"),
            netdev("eth0.5", "802.1Q VLAN Support"),
            netdev("br0", "bridge"),
            netdev("veth0", "veth"),
        ];
        let grid = Grid { cores: 2, ..Grid::default() };
        let netdevs = netdevs.to_vec();
        let rps_sock_flow_entries = Some(0);
        let scene = Scene { grid, netdevs, rps_sock_flow_entries, ..Scene::default() };
        let after = &scene.observation().after;
        let netdevs: Vec<&Netdev> = after.netdevs.iter().collect();
        let planned = |cpus: &str| {
            let rps = Some(CpuSet::parse_list(cpus).unwrap());
            super::rps(after, &netdevs, &Goal { rps, ..Goal::default() })
        };
        let plan = planned("1");
        let left: Vec<&str> = plan.unchanged.iter().map(|it| it.subject.as_str()).collect();
        assert_eq!(left, ["bond0 rps", "eth0.5 rps"]);
        assert!(plan.unchanged[1].reason.contains("(vlan_do_receive); name those instead"));
        let reasons: Vec<&str> = plan.changes.iter().map(|it| it.reason.as_str()).collect();
        assert!(
            reasons.len() == 2
                && reasons[0].ends_with("only of packets for this host")
                && reasons[1].ends_with("over cpus 1"),
            "{reasons:?}"
        );
        let goal = Goal { rfs: Some(1024), ..Goal::default() };
        let plan = super::rfs(after, &netdevs, &goal);
        let left: Vec<&str> = plan.unchanged.iter().map(|it| it.subject.as_str()).collect();
        assert_eq!(left, ["bond0 rfs", "eth0.5 rfs"]);
        let mut namespace = after.clone();
        namespace.net.rps_sock_flow_entries = None;
        let refused =
            |snapshot: &Snapshot| super::rfs(snapshot, &netdevs, &goal).refusals[0].reason.clone();
        assert!(refused(&namespace).contains("network namespace"), "{}", refused(&namespace));
        let queues = namespace.netdevs.iter_mut().flat_map(|netdev| &mut netdev.rx_queues);
        queues.for_each(|queue| queue.rps_cpus = None);
        assert_eq!(refused(&namespace), "this kernel has no RPS and no RFS");
    }
}
