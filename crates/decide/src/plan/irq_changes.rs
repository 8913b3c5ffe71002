//! Changes of interrupt affinity: why one is refused, the interrupts of tx queues that follow, and
//! knobs that another program owns.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::{Change, Target, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{OwnedKnob, Snapshot, Writable};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity, RxQueue};
use netsilo_model::snapshot::subject::Subject;

use crate::place::AlgorithmName;
use crate::place::model::Parts;
use crate::plan::contents::{Placement, Plan, RefusalCause};
use crate::plan::goal::Goal;
use crate::plan::owners;
use crate::plan::places::present;

/// Why an interrupt cannot be moved, and what can be moved instead.
pub(super) fn refusal(snapshot: &Snapshot, irq: Irq) -> Option<(RefusalCause, String)> {
    let (cause, reason) = match snapshot.irqs.get(&irq)?.writable {
        Writable::Yes => return None,
        Writable::Managed => {
            (RefusalCause::ManagedIrq, "the kernel manages its affinity and refuses writes")
        }
        Writable::Unsupported => {
            (RefusalCause::NoAffinitySupport, "its interrupt controller cannot direct it")
        }
    };
    let instead = match snapshot.topology.online.len() {
        ..2 => "",
        _ => "; RPS or threaded NAPI can move the work that it triggers",
    };
    Some((cause, format!("{reason}{instead}")))
}

pub(super) fn affinity(
    snapshot: &Snapshot,
    irq: Irq,
    netdev: &Netdev,
    cpu: CpuId,
    reason: String,
) -> Option<Change> {
    let state = snapshot.irqs.get(&irq)?;
    let knob = knobs::IrqAffinity {
        irq,
        action: state.actions.join(","),
        netdev: Some(NetdevIdentity::from_netdev(netdev)),
    };
    Change::of(snapshot, knob, CpuSet::from_cpu(cpu), reason)
}

/// Places the interrupts of tx queues that have their own: each follows the rx queue of the same
/// number.
pub(super) fn follow(snapshot: &Snapshot, netdevs: &[&Netdev], plan: &mut Plan) -> Vec<Change> {
    let rx_queues = || snapshot.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
    let mut done: BTreeSet<Irq> = rx_queues().filter_map(|rx| Some(rx.irq.as_ref()?.to)).collect();
    let placed = |it: &Placement| Some((it.irq?, (it.cpus.single()?, it.algorithm)));
    let placed: BTreeMap<Irq, (CpuId, AlgorithmName)> =
        plan.placements.iter().filter_map(placed).collect();
    let mut changes = Vec::new();
    for netdev in netdevs.iter().filter(|netdev| netdev.up) {
        let rx = |rx: &RxQueue| Some((rx.index, *placed.get(&rx.irq.as_ref()?.to)?));
        let rx: BTreeMap<u32, (CpuId, AlgorithmName)> =
            netdev.rx_queues.iter().filter_map(rx).collect();
        for tx in &netdev.tx_queues {
            let irq = tx.irq.as_ref().map(|edge| edge.to).filter(|irq| !done.contains(irq));
            let (Some((cpu, algorithm)), Some(irq)) = (rx.get(&tx.index).copied(), irq) else {
                continue;
            };
            done.insert(irq);
            let label = Subject::TxQueue(netdev.name.clone(), tx.index);
            let state = snapshot.irqs.get(&irq);
            let moves = present(snapshot, irq) != Some(cpu);
            if let Some((cause, reason)) = refusal(snapshot, irq).filter(|_| moves) {
                plan.refuse(&format!("{label} (irq {irq})"), cause, reason);
                continue;
            }
            let basis = format!("completions of the queue pair follow rx-{}", tx.index);
            if moves {
                let reason = format!("{label}: {basis}");
                changes.extend(affinity(snapshot, irq, netdev, cpu, reason));
            }
            plan.placements.push(Placement {
                label,
                netdev: NetdevIdentity::from_netdev(netdev),
                irq: Some(irq),
                action: state.map(|state| state.actions.join(",")).unwrap_or_default(),
                cpus: CpuSet::from_cpu(cpu),
                algorithm,
                basis,
                moves,
                gain_ns_per_s: 0,
                cost: Parts::default(),
                alternatives: Vec::new(),
            });
        }
    }
    changes
}

/// Most `--banirq` arguments that are listed one by one.
pub(super) const MOST_BANS: usize = 8;

/// Adds the changes to the plan, except those of knobs that another program owns; returns the added
/// interrupt changes.
pub(super) fn accept(
    snapshot: &Snapshot,
    goal: &Goal,
    changes: Vec<Change>,
    plan: &mut Plan,
) -> Vec<Change> {
    let (irqs, threads): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(|change| matches!(change.target, Target::IrqAffinity(_)));
    plan.changes.extend(threads);
    let bans = irqs.iter().filter_map(|change| match &change.target {
        Target::IrqAffinity(knob) => Some(format!("--banirq={}", knob.irq)),
        _ => None,
    });
    let bans: Vec<String> = bans.collect();
    let advice = |name: &str| match name {
        "irqbalance" => {
            let bans =
                if bans.len() <= MOST_BANS { bans.join(" ") } else { "--banirq for each".into() };
            format!(
                "stop it (systemctl stop irqbalance), exclude these interrupts from it ({bans}, \
                 or --policyscript)"
            )
        }
        _ => "stop it, or exclude these interrupts in its configuration".into(),
    };
    let refused = owners::add_unless_owned(
        snapshot,
        OwnedKnob::IrqAffinity,
        goal,
        irqs.clone(),
        advice,
        plan,
    );
    if refused { Vec::new() } else { irqs }
}
