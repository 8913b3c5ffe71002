//! The result of an undo, as text and as JSON.

use std::fmt::Write as _;

use netsilo_model::change::Target;
use netsilo_sys::transaction::attached::{AttachedResult, AttachedRow};
use netsilo_sys::transaction::undo::{RestoreResult, Undone};
use serde::Serialize;

use crate::tell::words::plural;

/// The result of an undo as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct UndoResult<'a> {
    /// The transactions, in the order in which they were undone.
    transactions: Vec<UndoneTransaction<'a>>,
}

/// A transaction that was undone.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct UndoneTransaction<'a> {
    transaction: u64,
    /// Whether nothing remains to be restored.
    complete: bool,
    knobs: Vec<UndoneKnob<'a>>,
    /// Settings of queues that the writes had reset. Unchanged settings are left out.
    queues: Vec<UndoneQueueSetting>,
}

/// The result for one knob.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct UndoneKnob<'a> {
    target: &'a Target,
    fate: Fate,
    /// The kernel's text, the value of another program, or the error.
    detail: Option<String>,
}

/// The result for a setting that depends on a knob.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct UndoneQueueSetting {
    /// The netdev.
    netdev: String,
    /// The setting in words (`kthread of napi 0 cpus`); `None` for all settings of a netdev that is
    /// down.
    setting: Option<String>,
    fate: Fate,
    /// The value of another program, or the error.
    detail: Option<String>,
}

/// What an undo did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum Fate {
    /// The old value is back.
    Restored,
    /// It had its old value already.
    WasOld,
    /// Left alone, because another program has changed it.
    Foreign,
    /// The knob does not exist any more.
    Gone,
    /// The old value could not be written.
    Failed,
}

impl<'a> UndoResult<'a> {
    /// The result of these transactions.
    pub(crate) fn new(all: &'a [Undone]) -> Self {
        let knob = |(target, result): &'a (Target, RestoreResult)| {
            let (fate, detail) = fate(result);
            UndoneKnob { target, fate, detail }
        };
        let transaction = |undone: &'a Undone| UndoneTransaction {
            transaction: undone.transaction,
            complete: undone.is_complete(),
            knobs: undone.knobs.iter().map(knob).collect(),
            queues: undone.attached.iter().map(queue_setting).collect(),
        };
        Self { transactions: all.iter().map(transaction).collect() }
    }
}

fn queue_setting(row: &AttachedRow) -> UndoneQueueSetting {
    let (fate, detail) = match &row.result {
        AttachedResult::Restored => (Fate::Restored, None),
        AttachedResult::Kept(text) => (Fate::Foreign, Some(text.clone())),
        AttachedResult::PlacedByKernel => (Fate::Foreign, Some(row.result.to_string())),
        AttachedResult::Gone => (Fate::Gone, None),
        AttachedResult::Failed(why) => (Fate::Failed, Some(why.clone())),
    };
    let setting = row.setting.as_ref().map(ToString::to_string);
    UndoneQueueSetting { netdev: row.netdev.clone(), setting, fate, detail }
}

/// What an undo did to a knob, with the detail.
pub(super) fn fate(result: &RestoreResult) -> (Fate, Option<String>) {
    match result {
        RestoreResult::Restored => (Fate::Restored, None),
        RestoreResult::Reworded(raw) => (Fate::Restored, Some(raw.clone())),
        RestoreResult::AlreadyOld => (Fate::WasOld, None),
        RestoreResult::Foreign(value) => (Fate::Foreign, Some(value.to_string())),
        RestoreResult::Gone(error) => (Fate::Gone, Some(error.to_string())),
        RestoreResult::Failed(error) => (Fate::Failed, Some(error.to_string())),
        RestoreResult::NotApplied(value) => (Fate::Failed, Some(value.to_string())),
    }
}

/// Reports how many knobs were restored, and the result of each knob that was not simply restored.
/// With `each`, lists the restored ones too.
pub(crate) fn report(all: &[Undone], each: bool) -> String {
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
        let is_told = |what: &RestoreResult| each || !matches!(what, RestoreResult::Restored);
        for (target, what) in undone.knobs.iter().filter(|(_, what)| is_told(what)) {
            let _ = writeln!(text, "  {target}: {}", restore_result(what));
        }
        let count =
            undone.attached.iter().filter(|it| it.result == AttachedResult::Restored).count();
        if count > 0 {
            let settings = plural(count, "setting");
            let _ = writeln!(text, "  and {settings} of queues, which the driver had reset");
        }
        let is_told = |row: &&AttachedRow| each || row.result != AttachedResult::Restored;
        for row in undone.attached.iter().filter(is_told) {
            let _ = writeln!(text, "  {}: {}", row.name(), row.result);
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
