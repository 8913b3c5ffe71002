//! The result of an undo as text.

use std::fmt::Write as _;

use netsilo_sys::transaction::undo::{Fate, Undone};

use crate::tell::words::plural;

/// Reports the result of each knob, and how many were restored.
pub(crate) fn report(all: &[Undone]) -> String {
    let mut text = String::new();
    for undone in all {
        let restored = undone
            .knobs
            .iter()
            .filter(|(_, fate)| matches!(fate, Fate::Restored | Fate::Reworded(_)))
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
pub(crate) fn restore_result(result: &Fate) -> String {
    match result {
        Fate::Restored => "restored".into(),
        Fate::Reworded(raw) => {
            format!("restored, the kernel now prints it as {:?}", raw.trim_end())
        }
        Fate::WasOld => "already had its old value".into(),
        Fate::Foreign(value) => {
            format!("left alone: another program or the driver has changed it to {value}")
        }
        Fate::Gone(error) => format!("gone ({error})"),
        Fate::Failed(error) => format!("NOT RESTORED ({error})"),
        Fate::Ignored(value) => {
            format!("NOT RESTORED (the kernel accepted the old value but still shows {value})")
        }
    }
}
