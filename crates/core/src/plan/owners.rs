//! Other programs that write the same knobs: named, never fought.

use crate::change::Change;
use crate::host::{Snapshot, Writer, WriterKnob};
use crate::notes::plural;
use crate::plan::{Cause, Goal, Plan};

/// Takes changes of one kind into the plan, unless another program owns the knob; `true` when they were refused.
pub(super) fn yield_to(
    snapshot: &Snapshot,
    knob: WriterKnob,
    goal: &Goal,
    changes: Vec<Change>,
    what_to_do: impl Fn(&str) -> String,
    plan: &mut Plan,
) -> bool {
    let owners: Vec<&Writer> = snapshot.writers.iter().filter(|writer| writer.writes.contains(&knob)).collect();
    if changes.is_empty() || owners.is_empty() {
        plan.changes.extend(changes);
        return false;
    }
    let names: Vec<String> = owners.iter().map(|writer| format!("{} (pid {})", writer.name, writer.pid)).collect();
    if goal.even_if_owned {
        let warned = |change: Change| Change {
            reason: format!("{}; {} may take it back", change.reason, names.join(", ")),
            ..change
        };
        plan.changes.extend(changes.into_iter().map(warned));
        return false;
    }
    for (writer, name) in owners.iter().zip(&names) {
        let todo = what_to_do(&writer.name);
        let count = plural(changes.len(), "change");
        let reason =
            format!("it is running and would take {count} back: {todo}, or act all the same with --even-if-owned");
        plan.refuse(name, Cause::OtherOwner, reason);
    }
    true
}
