//! Other programs that write the same knobs: netsilo names them and leaves their knobs alone.

use netsilo_model::change::{Change, Target};
use netsilo_model::machine::words::plural;
use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob, Snapshot};

use crate::plan::contents::{Plan, RefusalCause};
use crate::plan::goal::Goal;

impl Plan {
    /// Lists the given programs that own a knob this plan writes; none if the plan overrides owners
    /// (`even_if_owned`).
    ///
    /// Used for a saved plan: another program may have started since.
    pub(super) fn knob_owners<'w>(&self, writers: &'w [KnobOwner]) -> Vec<&'w KnobOwner> {
        let knob = |change: &Change| match change.target {
            Target::IrqAffinity(_) => Some(OwnedKnob::IrqAffinity),
            Target::RpsCpus(_) | Target::RpsFlowCnt(_) | Target::RpsSockFlowEntries(_) => {
                Some(OwnedKnob::Rps)
            }
            Target::XpsCpus(_) => Some(OwnedKnob::Xps),
            Target::Sysctl(_) => Some(OwnedKnob::Sysctls),
            _ => None,
        };
        let written: Vec<OwnedKnob> = self.changes.iter().filter_map(knob).collect();
        let owns = |writer: &&KnobOwner| {
            !self.even_if_owned && writer.writes.iter().any(|knob| written.contains(knob))
        };
        writers.iter().filter(owns).collect()
    }
}

/// Adds changes of one kind to the plan, unless another program owns the knob; returns `true` if
/// they were refused.
pub(super) fn add_unless_owned(
    snapshot: &Snapshot,
    knob: OwnedKnob,
    goal: &Goal,
    changes: Vec<Change>,
    advice: impl Fn(&str) -> String,
    plan: &mut Plan,
) -> bool {
    let owners: Vec<&KnobOwner> =
        snapshot.writers.iter().filter(|writer| writer.writes.contains(&knob)).collect();
    if changes.is_empty() || owners.is_empty() {
        plan.changes.extend(changes);
        return false;
    }
    let names: Vec<String> =
        owners.iter().map(|writer| format!("{} (pid {})", writer.name, writer.pid)).collect();
    if goal.even_if_owned {
        let warned = |change: Change| {
            let reason = format!("{}; {} may revert it", change.reason, names.join(", "));
            change.because(reason)
        };
        plan.changes.extend(changes.into_iter().map(warned));
        return false;
    }
    for (writer, name) in owners.iter().zip(&names) {
        let advice_text = advice(&writer.name);
        let count = plural(changes.len(), "change");
        let reason = format!(
            "it is running and would revert {count}: {advice_text}, or override with \
             --even-if-owned"
        );
        plan.refuse(name, RefusalCause::OtherOwner, reason);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::knobs;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::ids::Irq;

    #[test]
    fn a_saved_plan_lists_the_owners_of_the_knobs_it_writes() {
        let writer =
            |name: &str, knob| KnobOwner { name: name.into(), pid: 812, writes: vec![knob] };
        let writers =
            [writer("irqbalance", OwnedKnob::IrqAffinity), writer("other", OwnedKnob::Xps)];
        let (none, two) = (CpuSet::new, || CpuSet::first(2));
        let irq = knobs::IrqAffinity { irq: Irq(27), action: "x".into(), netdev: None };
        let default = Change::new(knobs::DefaultSmpAffinity, none(), two(), "");
        let mut plan = Plan {
            changes: vec![Change::new(irq, none(), two(), ""), default.clone()],
            ..Plan::default()
        };
        assert_eq!(plan.knob_owners(&writers), [&writers[0]]);
        plan.even_if_owned = true;
        assert!(plan.knob_owners(&writers).is_empty());
        plan = Plan { changes: vec![default], ..Plan::default() };
        assert!(plan.knob_owners(&writers).is_empty());
    }
}
