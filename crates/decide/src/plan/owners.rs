//! Other programs that write the same knobs: netsilo names them and leaves their knobs alone.

use netsilo_model::change::Change;
use netsilo_model::machine::words::plural;
use netsilo_model::snapshot::host::{KnobOwner, Snapshot};

use crate::plan::contents::{Plan, RefusalCause};
use crate::plan::goal::Goal;

impl Plan {
    /// Lists the given programs that own a knob this plan writes; none if the plan overrides owners
    /// (`even_if_owned`).
    ///
    /// Used for a saved plan: another program may have started since.
    pub(super) fn knob_owners<'w>(&self, knob_owners: &'w [KnobOwner]) -> Vec<&'w KnobOwner> {
        let owns = |owner: &&KnobOwner| {
            !self.even_if_owned && self.changes.iter().any(|it| it.target.is_owned_by(owner))
        };
        knob_owners.iter().filter(owns).collect()
    }
}

/// The part of a plan with changes of knobs that have the same owners; without them, and with
/// refusals, if another program owns the knobs.
pub(super) fn unless_owned(
    snapshot: &Snapshot,
    goal: &Goal,
    changes: Vec<Change>,
    advice: impl Fn(&str) -> String,
) -> Plan {
    let owners: Vec<&KnobOwner> = snapshot
        .knob_owners
        .iter()
        .filter(|it| changes.iter().any(|change| change.target.is_owned_by(it)))
        .collect();
    if changes.is_empty() || owners.is_empty() {
        return Plan { changes, ..Plan::default() };
    }
    let names: Vec<String> =
        owners.iter().map(|owner| format!("{} (pid {})", owner.name, owner.pid)).collect();
    if goal.even_if_owned {
        let warned = |change: Change| {
            let reason = format!("{}; {} may revert it", change.reason, names.join(", "));
            change.because(reason)
        };
        return Plan { changes: changes.into_iter().map(warned).collect(), ..Plan::default() };
    }
    let mut part = Plan::default();
    for (owner, name) in owners.iter().zip(&names) {
        let advice_text = advice(&owner.name);
        let count = plural(changes.len(), "change");
        let reason = format!(
            "it is running and would revert {count}: {advice_text}, or override with \
             --even-if-owned"
        );
        part.refuse(name, RefusalCause::OtherOwner, reason);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::knobs;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::snapshot::host::OwnedKnob;

    #[test]
    fn a_saved_plan_lists_the_owners_of_the_knobs_it_writes() {
        let owner =
            |name: &str, knob| KnobOwner { name: name.into(), pid: 812, writes: vec![knob] };
        let knob_owners =
            [owner("irqbalance", OwnedKnob::IrqAffinity), owner("other", OwnedKnob::Xps)];
        let (none, two) = (CpuSet::new, || CpuSet::first(2));
        let irq = knobs::IrqAffinity { irq: Irq(27), action: "x".into(), netdev: None };
        let default = Change::new(knobs::DefaultSmpAffinity, none(), two(), "");
        let mut plan = Plan {
            changes: vec![Change::new(irq, none(), two(), ""), default.clone()],
            ..Plan::default()
        };
        assert_eq!(plan.knob_owners(&knob_owners), [&knob_owners[0]]);
        plan.even_if_owned = true;
        assert!(plan.knob_owners(&knob_owners).is_empty());
        plan = Plan { changes: vec![default], ..Plan::default() };
        assert!(plan.knob_owners(&knob_owners).is_empty());
    }
}
