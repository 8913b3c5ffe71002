//! Which changes of a plan move queues, and why it moves none.

use netsilo_model::change::{Change, Target};
use netsilo_model::derive::silo::Silo;

use crate::plan::Plan;

/// Whether a change moves the interrupt or the kthread of one of these queues.
pub(crate) fn moves_one_of(change: &Change, silos: &[&Silo]) -> bool {
    match &change.target {
        Target::IrqAffinity(knob) => {
            silos.iter().any(|silo| silo.irq.as_ref().is_some_and(|edge| edge.to == knob.irq))
        }
        Target::NapiThread(knob) => {
            silos.iter().any(|silo| silo.kthread.as_ref().is_some_and(|it| it.pid == knob.pid))
        }
        _ => false,
    }
}

/// Why a plan moves none of these queues, with its reason for the first of them.
pub(crate) fn kept(plan: &Plan, queues: &[&Silo]) -> String {
    let reasons = || {
        let left = plan.unchanged.iter().map(|it| (&it.subject, &it.reason));
        left.chain(plan.refusals.iter().map(|it| (&it.subject, &it.reason)))
    };
    let why = queues.iter().find_map(|silo| {
        let label = silo.label();
        // a refusal also names the interrupt
        let is_its = |subject: &str| {
            let rest = subject.strip_prefix(&label);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" (irq "))
        };
        let (_, reason) = reasons().find(|(subject, _)| is_its(subject))?;
        Some(format!("placement keeps {label}: {reason}"))
    });
    why.unwrap_or_else(|| "placement finds no better cpus for these queues".into())
}
