//! Other programs that write the same knobs: netsilo names them and leaves their knobs alone.

use netsilo_model::change::{Change, Target};
use netsilo_model::machine::words::plural;
use netsilo_model::snapshot::host::{Snapshot, Writer, WriterKnob};

use crate::plan::contents::{Plan, RefusalCause};
use crate::plan::goal::Goal;

impl Plan {
    /// Lists the given programs that own a knob this plan writes; none if the plan overrides owners
    /// (`even_if_owned`).
    ///
    /// Used for a saved plan: another program may have started since.
    pub fn knob_owners<'w>(&self, writers: &'w [Writer]) -> Vec<&'w Writer> {
        let knob = |change: &Change| match change.target {
            Target::IrqAffinity { .. } => Some(WriterKnob::IrqAffinity),
            Target::RpsCpus { .. } | Target::RpsFlowCnt { .. } | Target::RpsSockFlowEntries => {
                Some(WriterKnob::Rps)
            }
            Target::XpsCpus { .. } => Some(WriterKnob::Xps),
            Target::Sysctl { .. } => Some(WriterKnob::Sysctls),
            _ => None,
        };
        let written: Vec<WriterKnob> = self.changes.iter().filter_map(knob).collect();
        let owns = |writer: &&Writer| {
            !self.even_if_owned && writer.writes.iter().any(|knob| written.contains(knob))
        };
        writers.iter().filter(owns).collect()
    }
}

/// Adds changes of one kind to the plan, unless another program owns the knob; returns `true` if
/// they were refused.
pub(super) fn add_unless_owned(
    snapshot: &Snapshot,
    knob: WriterKnob,
    goal: &Goal,
    changes: Vec<Change>,
    advice: impl Fn(&str) -> String,
    plan: &mut Plan,
) -> bool {
    let owners: Vec<&Writer> =
        snapshot.writers.iter().filter(|writer| writer.writes.contains(&knob)).collect();
    if changes.is_empty() || owners.is_empty() {
        plan.changes.extend(changes);
        return false;
    }
    let names: Vec<String> =
        owners.iter().map(|writer| format!("{} (pid {})", writer.name, writer.pid)).collect();
    if goal.even_if_owned {
        let warned = |change: Change| Change {
            reason: format!("{}; {} may revert it", change.reason, names.join(", ")),
            ..change
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
    use netsilo_model::change::Value;
    use netsilo_model::machine::ids::Irq;

    #[test]
    fn a_saved_plan_lists_the_owners_of_the_knobs_it_writes() {
        let writer = |name: &str, knob| Writer { name: name.into(), pid: 812, writes: vec![knob] };
        let writers =
            [writer("irqbalance", WriterKnob::IrqAffinity), writer("other", WriterKnob::Xps)];
        let change = |target| Change {
            target,
            old: Value::Count(0),
            new: Value::Count(1),
            reason: String::new(),
        };
        let irq = Target::IrqAffinity { irq: Irq(27), action: "x".into(), netdev: None };
        let mut plan = Plan {
            changes: vec![change(irq), change(Target::DefaultSmpAffinity)],
            ..Plan::default()
        };
        assert_eq!(plan.knob_owners(&writers), [&writers[0]]);
        plan.even_if_owned = true;
        assert!(plan.knob_owners(&writers).is_empty());
        plan = Plan { changes: vec![change(Target::DefaultSmpAffinity)], ..Plan::default() };
        assert!(plan.knob_owners(&writers).is_empty());
    }
}
