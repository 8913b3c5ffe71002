//! Other programs that write the same knobs: named, never fought.

use crate::change::{Change, Target};
use crate::host::{Snapshot, Writer, WriterKnob};
use crate::notes::plural;
use crate::plan::{Cause, Goal, Plan};

impl Plan {
    /// The programs, of those given, that own what this plan writes; none if that was accepted when
    /// it was made.
    ///
    /// For a plan that was saved: another program may have been started since.
    pub fn owners<'w>(&self, writers: &'w [Writer]) -> Vec<&'w Writer> {
        let knob = |change: &Change| match change.target {
            Target::IrqAffinity(_) => Some(WriterKnob::IrqAffinity),
            Target::RpsCpus(_) | Target::RpsFlowCnt(_) | Target::RpsSockFlowEntries(_) => {
                Some(WriterKnob::Rps)
            }
            Target::XpsCpus(_) => Some(WriterKnob::Xps),
            Target::Sysctl(_) => Some(WriterKnob::Sysctls),
            _ => None,
        };
        let written: Vec<WriterKnob> = self.changes.iter().filter_map(knob).collect();
        let owns = |writer: &&Writer| {
            !self.even_if_owned && writer.writes.iter().any(|knob| written.contains(knob))
        };
        writers.iter().filter(owns).collect()
    }
}

/// Takes changes of one kind into the plan, unless another program owns the knob; `true` when they
/// were refused.
pub(super) fn yield_to(
    snapshot: &Snapshot,
    knob: WriterKnob,
    goal: &Goal,
    changes: Vec<Change>,
    what_to_do: impl Fn(&str) -> String,
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
        let warned = |change: Change| {
            let reason = format!("{}; {} may take it back", change.reason, names.join(", "));
            change.because(reason)
        };
        plan.changes.extend(changes.into_iter().map(warned));
        return false;
    }
    for (writer, name) in owners.iter().zip(&names) {
        let todo = what_to_do(&writer.name);
        let count = plural(changes.len(), "change");
        let reason = format!(
            "it is running and would take {count} back: {todo}, or act all the same with --even-if-owned"
        );
        plan.refuse(name, Cause::OtherOwner, reason);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::knobs;
    use crate::cpuset::CpuSet;
    use crate::host::Irq;

    #[test]
    fn a_saved_plan_knows_whose_knobs_it_writes() {
        let writer = |name: &str, knob| Writer { name: name.into(), pid: 812, writes: vec![knob] };
        let writers =
            [writer("irqbalance", WriterKnob::IrqAffinity), writer("other", WriterKnob::Xps)];
        let (none, two) = (CpuSet::new, || CpuSet::first(2));
        let irq = knobs::IrqAffinity { irq: Irq(27), action: "x".into(), netdev: None };
        let default = Change::new(knobs::DefaultSmpAffinity, none(), two(), "");
        let mut plan = Plan {
            changes: vec![Change::new(irq, none(), two(), ""), default.clone()],
            ..Plan::default()
        };
        assert_eq!(plan.owners(&writers), [&writers[0]]);
        plan.even_if_owned = true;
        assert!(plan.owners(&writers).is_empty());
        plan = Plan { changes: vec![default], ..Plan::default() };
        assert!(plan.owners(&writers).is_empty());
    }
}
