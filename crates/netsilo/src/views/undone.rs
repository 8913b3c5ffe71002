//! The result of an undo as text.

use std::fmt::Write as _;

use netsilo_sys::transaction::undo::{RestoreResult, Undone};

use crate::tell::words::plural;

/// Reports the result of each knob, and how many were restored.
pub(crate) fn report(all: &[Undone]) -> String {
    let mut text = String::new();
    for undone in all {
        let restored = undone
            .knobs
            .iter()
            .filter(|(_, fate)| {
                matches!(fate, RestoreResult::Restored | RestoreResult::Reworded(_))
            })
            .count();
        let of = plural(undone.knobs.len(), "setting");
        let _ = writeln!(text, "transaction {}: {restored} of {of} restored", undone.transaction);
        for (target, what) in &undone.knobs {
            let _ = writeln!(text, "  {target}: {}", restore_result(what));
        }
    }
    text
}

/// Describes the result of one knob.
pub(crate) fn restore_result(result: &RestoreResult) -> String {
    match result {
        RestoreResult::Restored => "restored".into(),
        RestoreResult::Reworded(raw) => {
            format!("restored, the kernel now prints it as {:?}", raw.trim_end())
        }
        RestoreResult::AlreadyOld => "already had its old value".into(),
        RestoreResult::Foreign(value) => {
            format!("left alone: another program or the driver has changed it to {value}")
        }
        RestoreResult::Gone(error) => format!("gone ({error})"),
        RestoreResult::Failed(error) => format!("NOT RESTORED ({error})"),
        RestoreResult::NotApplied(value) => {
            format!("NOT RESTORED (the kernel accepted the old value but still shows {value})")
        }
    }
}
