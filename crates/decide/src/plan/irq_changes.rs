//! Changes of interrupt affinity: why one is refused, and knobs that another program owns.

use std::collections::BTreeSet;

use netsilo_model::change::{Change, Target, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{KnobOwner, Snapshot, Writable};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::plan::contents::{Plan, RefusalCause};
use crate::plan::goal::Goal;
use crate::plan::leave_alone::line_for;
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

/// Most interrupts of which advice lists the arguments one by one.
const MOST_BANS: usize = 8;

/// The part of a plan with these changes, except those of interrupts that another program owns. The
/// ban list of an irqbalance that answers is extended: by what it would move, and by what the plan
/// `placed` without moving it.
pub(super) fn accept(
    snapshot: &Snapshot,
    goal: &Goal,
    changes: Vec<Change>,
    placed: &BTreeSet<Irq>,
) -> Plan {
    let (irqs, threads): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(|change| matches!(change.target, Target::IrqAffinity(_)));
    let bans = owners::bans(&snapshot.knob_owners, &irqs, placed);
    let knob_owners = snapshot.knob_owners.iter();
    let knob_owners: Vec<_> = knob_owners.map(|it| owners::after_bans(it, &bans)).collect();
    let moved: Vec<Irq> = irqs.iter().filter_map(|change| change.target.irq()).collect();
    let all = moved.iter().chain(placed).copied().collect();
    let advice = |owner: &KnobOwner| advice(owner, &moved, &all);
    let accepted = owners::unless_owned_as(&knob_owners, goal, irqs, advice);
    let bans = if accepted.changes.is_empty() { Vec::new() } else { bans };
    let first = Plan { changes: [threads, bans].concat(), ..Plan::default() };
    first.and(accepted)
}

/// What to do about a program that owns interrupts which are to be moved.
fn advice(owner: &KnobOwner, moved: &[Irq], all: &BTreeSet<Irq>) -> String {
    if owner.name != "irqbalance" {
        return format!("{}, or stop it", line_for(&owner.name));
    }
    let why = match owners::ban(owner, all) {
        Some(Err(too_long)) => too_long.to_string(),
        _ => "it does not answer on its socket".to_owned(),
    };
    let arguments: Vec<String> = moved.iter().map(|irq| format!("--banirq={irq}")).collect();
    let arguments = match arguments.len() {
        ..=MOST_BANS => arguments.join(" "),
        _ => "--banirq for each".to_owned(),
    };
    format!(
        "{why}; exclude these interrupts from it ({arguments}, or --policyscript with netsilo \
         export irqbalance-policy), or stop it"
    )
}
