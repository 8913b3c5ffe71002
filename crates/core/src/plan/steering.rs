//! RPS, RFS, XPS and the defaults for interrupts and devices to come: what the operator asks for by
//! value.

use std::collections::BTreeMap;

use crate::change::{NetdevIdentity, knobs};
use crate::cpuset::{CpuId, CpuSet};
use crate::diagnose::Seen;
use crate::host::{Irq, Netdev, Snapshot, TxQueue, WriterKnob};
use crate::plan::placement::Places;
use crate::plan::{Cause, Goal, Plan, Xps, owners, selection};
use crate::verdict::{self, Verdict};

/// `rps_sock_flow_sysctl` takes no more (`net/core/sysctl_net_core.c`).
const MOST_FLOW_ENTRIES: u32 = 1 << 29;

/// Adds `default_smp_affinity` and `rps_default_mask`.
pub(super) fn defaults(snapshot: &Snapshot, goal: &Goal, plan: &mut Plan) {
    if let Some(cpus) = &goal.default_smp_affinity {
        match &snapshot.default_smp_affinity {
            None => plan.refuse(
                "default_smp_affinity",
                Cause::NoSuchKnob,
                "this kernel does not have it".into(),
            ),
            Some(old)
                if selection::usable(&snapshot.topology, "default_smp_affinity", cpus, plan) =>
            {
                let reason =
                    format!("interrupts to come are set up on cpus {cpus}; those that exist stay");
                plan.set(knobs::DefaultSmpAffinity, old.clone(), cpus.clone(), reason);
            }
            Some(_) => {}
        }
    }
    if let Some(cpus) = &goal.rps_default_mask {
        let subject = "rps_default_mask";
        match (&snapshot.net.rps_default_mask, steerable(snapshot, subject, cpus, plan)) {
            (None, _) => {
                let reason =
                    "this kernel does not have it; set rps_cpus of each new device instead";
                plan.refuse(subject, Cause::NoSuchKnob, reason.into());
            }
            (Some(old), Some((new, note))) => {
                let reason =
                    format!("queues of devices to come begin with RPS {}{note}", on_or_off(&new));
                plan.set(knobs::RpsDefaultMask, old.clone(), new, reason);
            }
            (Some(_), None) => {}
        }
    }
}

fn on_or_off(cpus: &CpuSet) -> String {
    if cpus.is_empty() { "off".into() } else { format!("on cpus {cpus}") }
}

/// What the kernel makes of an RPS mask: it silently drops isolated and tickless CPUs
/// (`net/core/net-sysfs.c:rps_cpumask_housekeeping`), so they are left out here and that is said.
fn steerable(
    snapshot: &Snapshot,
    subject: &str,
    cpus: &CpuSet,
    plan: &mut Plan,
) -> Option<(CpuSet, String)> {
    let topology = &snapshot.topology;
    if !selection::all_online(topology, subject, cpus, plan) {
        return None;
    }
    let dropped = cpus.and(&topology.set_apart());
    let left = cpus.minus(&dropped);
    if dropped.is_empty() {
        return Some((left, String::new()));
    }
    let why = selection::why_apart(topology, &dropped);
    if left.is_empty() {
        plan.refuse(
            subject,
            Cause::IsolatedCpu,
            format!("{} {why}, and the kernel drops such from RPS", selection::cpus_are(&dropped)),
        );
        return None;
    }
    Some((
        left,
        format!(
            "; {} {why}: the kernel would silently leave that out",
            selection::cpus_are(&dropped)
        ),
    ))
}

/// Adds `rps_cpus` of each rx queue.
pub(super) fn rps(seen: &Seen<'_>, netdevs: &[&Netdev], goal: &Goal, plan: &mut Plan) {
    let snapshot = &seen.observation.after;
    let Some((cpus, note)) =
        goal.rps.as_ref().and_then(|cpus| steerable(snapshot, "rps", cpus, plan))
    else {
        return;
    };
    let mut changes = Plan::default();
    for netdev in netdevs {
        let reason = match cpus.is_empty() {
            true => {
                "RPS off: each packet's protocol work stays on the cpu that polls it".to_owned()
            }
            false => {
                let verdict = said(verdict::rps_onto(seen, netdev, &cpus));
                format!(
                    "RPS spreads the protocol work of its flows over cpus {cpus}{verdict}{note}"
                )
            }
        };
        for queue in &netdev.rx_queues {
            let label = format!("{} rx-{}", netdev.name, queue.index);
            match (&queue.rps_cpus, &queue.leased) {
                (_, Some(holder)) => plan.refuse(
                    &label,
                    Cause::LeasedQueue,
                    format!("held by {holder}: hands off; end that first"),
                ),
                (None, _) => plan.refuse(
                    &label,
                    Cause::NoSuchKnob,
                    "it has no rps_cpus: this kernel is without RPS".into(),
                ),
                (Some(old), None) => {
                    let (netdev, queue) = (NetdevIdentity::of(netdev), queue.index);
                    let knob = knobs::RpsCpus { netdev, queue };
                    changes.set(knob, old.clone(), cpus.clone(), reason.clone());
                }
            }
        }
    }
    let what_to_do = |_: &str| "stop it, or change RPS in its configuration".to_owned();
    owners::yield_to(snapshot, WriterKnob::Rps, goal, changes.changes, what_to_do, plan);
}

/// What a verdict says of it, where something arrives to judge by.
pub(super) fn said(verdict: Option<Verdict>) -> String {
    verdict
        .map_or_else(String::new, |verdict| format!(" ({}: {})", verdict.outcome, verdict.because))
}

/// Adds `rps_sock_flow_entries` and the `rps_flow_cnt` of each rx queue.
pub(super) fn rfs(seen: &Seen<'_>, netdevs: &[&Netdev], goal: &Goal, plan: &mut Plan) {
    let snapshot = &seen.observation.after;
    let Some(wanted) = goal.rfs.filter(|_| !netdevs.is_empty()) else { return };
    let Some(old) = snapshot.net.rps_sock_flow_entries else {
        return plan.refuse(
            "rps_sock_flow_entries",
            Cause::NoSuchKnob,
            "this kernel is without RPS and RFS".into(),
        );
    };
    if wanted > MOST_FLOW_ENTRIES {
        let reason =
            format!("{wanted} flow entries are more than the kernel takes ({MOST_FLOW_ENTRIES})");
        return plan.refuse("rps_sock_flow_entries", Cause::OutOfRange, reason);
    }
    // The kernel rounds up (`roundup_pow_of_two`); what is planned is what will be read back.
    let entries = if wanted == 0 { 0 } else { wanted.next_power_of_two() };
    let mut changes = Plan::default();
    let table = match (entries, entries == wanted) {
        (0, _) => "RFS off: flows no longer follow their readers, on any device".to_owned(),
        (_, true) => "RFS: one entry per flow says on which cpu it is read".to_owned(),
        (_, false) => format!(
            "RFS: one entry per flow says on which cpu it is read; {wanted} rounded up to a power of two as the kernel does"
        ),
    };
    changes.set(knobs::RpsSockFlowEntries, old, entries, table);
    for netdev in netdevs {
        let verdict = if entries == 0 { String::new() } else { said(verdict::rfs(seen, netdev)) };
        flow_counts(netdev, entries, &verdict, &mut changes);
    }
    plan.refusals.append(&mut changes.refusals);
    let what_to_do = |_: &str| "stop it, or change RFS in its configuration".to_owned();
    owners::yield_to(snapshot, WriterKnob::Rps, goal, changes.changes, what_to_do, plan);
}

fn flow_counts(netdev: &Netdev, entries: u32, verdict: &str, plan: &mut Plan) {
    let real = real_queues(netdev);
    let share = match entries / real {
        0 => entries.min(1),
        share => 1 << share.ilog2(),
    };
    for queue in netdev.rx_queues.iter().filter(|queue| queue.index < real || entries == 0) {
        let label = format!("{} rx-{}", netdev.name, queue.index);
        match (queue.rps_flow_cnt, &queue.leased) {
            (_, Some(holder)) => plan.refuse(
                &label,
                Cause::LeasedQueue,
                format!("held by {holder}: hands off; end that first"),
            ),
            (None, _) => plan.refuse(
                &label,
                Cause::NoSuchKnob,
                "it has no rps_flow_cnt: this kernel is without RFS".into(),
            ),
            (Some(old), None) => {
                let reason = match entries {
                    0 => "RFS off".to_owned(),
                    _ => {
                        let queues = crate::notes::plural(real as usize, "queue");
                        format!("RFS: its part of {entries} entries, {queues}{verdict}")
                    }
                };
                let (netdev, queue) = (NetdevIdentity::of(netdev), queue.index);
                plan.set(knobs::RpsFlowCnt { netdev, queue }, old, share, reason);
            }
        }
    }
}

/// How many rx queues the device really uses; some drivers (mlx5) show folders for more.
fn real_queues(netdev: &Netdev) -> u32 {
    let folders = netdev.rx_queues.len() as u32;
    let channels = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.channels.value());
    let current = |limit: Option<crate::ethtool::Limit>| limit.map_or(0, |limit| limit.current);
    let told = channels
        .map_or(0, |channels| current(channels.rx).saturating_add(current(channels.combined)));
    if (1..folders).contains(&told) { told } else { folders.max(1) }
}

/// Adds `xps_cpus` of each tx queue.
pub(super) fn xps(
    snapshot: &Snapshot,
    netdevs: &[&Netdev],
    places: &Places,
    goal: &Goal,
    plan: &mut Plan,
) {
    let Some(xps) = goal.xps else { return };
    let mut changes = Plan::default();
    for netdev in netdevs {
        let queues: Vec<(&TxQueue, &CpuSet)> =
            netdev.tx_queues.iter().filter_map(|tx| Some((tx, tx.xps_cpus.as_ref()?))).collect();
        if queues.is_empty() {
            plan.leave(
                &format!("{} xps", netdev.name),
                "it has one tx queue, or this kernel is without XPS: nothing to choose",
            );
            continue;
        }
        let near =
            if xps == Xps::Near { near(snapshot, &queues, places) } else { Some(BTreeMap::new()) };
        let Some(near) = near else {
            plan.leave(
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
                    format!("its completions arrive on cpu {cpu}, every cpu has a nearer queue")
                }
                (Xps::Near, Some(cpu)) => {
                    format!(
                        "cpus {new} send through it: its completions arrive on cpu {cpu}, none is nearer to them"
                    )
                }
                (Xps::Near, None) => "where its completions arrive is not known".to_owned(),
            };
            let knob = knobs::XpsCpus { netdev: NetdevIdentity::of(netdev), queue: tx.index };
            changes.set(knob, old.clone(), new, reason);
        }
    }
    let what_to_do = |_: &str| "stop it, or change XPS in its configuration".to_owned();
    owners::yield_to(snapshot, WriterKnob::Xps, goal, changes.changes, what_to_do, plan);
}

/// Each online CPU to the tx queue whose completions arrive nearest, to the one with fewest CPUs
/// among equals.
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
        let away: Vec<_> =
            placed.iter().map(|(at, all)| (snapshot.topology.distance(cpu, *at), all)).collect();
        let nearest = away.iter().map(|(distance, _)| *distance).min()?;
        let equals =
            away.iter().filter(|(distance, _)| *distance == nearest).flat_map(|(_, all)| *all);
        let index = equals.min_by_key(|index| (near.get(index).map_or(0, CpuSet::len), **index))?;
        near.entry(*index).or_default().insert(cpu);
    }
    Some(near)
}
