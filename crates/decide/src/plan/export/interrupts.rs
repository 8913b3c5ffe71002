//! The interrupts of a plan with their CPUs, as every format writes them.

use std::collections::BTreeMap;

use netsilo_model::change::{Target, Value};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::plan::contents::Plan;

/// An interrupt and its planned CPUs.
pub(super) struct Interrupt<'a> {
    pub(super) irq: Irq,
    pub(super) action: &'a str,
    pub(super) netdev: Option<&'a NetdevIdentity>,
    pub(super) cpus: &'a CpuSet,
    pub(super) why: &'a str,
}

/// All interrupts with a place in the plan, by number.
pub(super) fn interrupts(plan: &Plan) -> Vec<Interrupt<'_>> {
    let mut all = BTreeMap::new();
    for placement in &plan.placements {
        if let Some(irq) = placement.irq {
            let (action, netdev) = (placement.action.as_str(), Some(&placement.netdev));
            all.insert(
                irq,
                Interrupt { irq, action, netdev, cpus: &placement.cpus, why: &placement.basis },
            );
        }
    }
    // Plans written by hand or by an earlier netsilo have only changes.
    for change in &plan.changes {
        if let (Target::IrqAffinity(knob), Value::Cpus(cpus)) = (&change.target, &change.new) {
            let (irq, action, netdev) = (knob.irq, &knob.action, knob.netdev.as_ref());
            let known = Interrupt { irq, action, netdev, cpus, why: &change.reason };
            all.entry(irq).or_insert(known);
        }
    }
    all.into_values().collect()
}
