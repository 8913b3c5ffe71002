//! Changes of interrupt affinity: why one is refused, and knobs that another program owns.

use netsilo_model::change::{Change, Target, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{Snapshot, Writable};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::plan::contents::{Plan, RefusalCause};
use crate::plan::goal::Goal;
use crate::plan::owners;

/// Why an interrupt cannot be moved, by its settings or because it was seen to ignore them.
pub(super) fn observed_refusal(
    analysis: &Analysis<'_>,
    irq: Irq,
) -> Option<(RefusalCause, String)> {
    let ignores = analysis.rates.irqs.get(&irq).is_some_and(|rates| rates.ignores_affinity);
    let reason = "its interrupt controller accepts an affinity and ignores it";
    let cause = RefusalCause::NoAffinitySupport;
    let ignored = ignores.then(|| (cause, with_instead(analysis.after(), reason)));
    refusal(analysis.after(), irq).or(ignored)
}

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
    Some((cause, with_instead(snapshot, reason)))
}

fn with_instead(snapshot: &Snapshot, reason: &str) -> String {
    let instead = match snapshot.topology.online.len() {
        ..2 => "",
        _ => "; RPS or threaded NAPI can move the work that it triggers",
    };
    format!("{reason}{instead}")
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

/// Most `--banirq` arguments that are listed one by one.
pub(super) const MOST_BANS: usize = 8;

/// The part of a plan with these changes, except those of interrupts that another program owns.
pub(super) fn accept(snapshot: &Snapshot, goal: &Goal, changes: Vec<Change>) -> Plan {
    let (irqs, threads): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(|change| matches!(change.target, Target::IrqAffinity(_)));
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
    let threads = Plan { changes: threads, ..Plan::default() };
    threads.and(owners::unless_owned(snapshot, goal, irqs, advice))
}
