//! `netsilo undo` restores values that are still netsilo's; `netsilo confirm` keeps a transaction
//! that awaits confirmation.

use std::fmt::Write as _;

use anyhow::Result;
use netsilo_sys::transaction::guard::{self, ConfirmResult};
use netsilo_sys::transaction::record::RestoredBy;
use netsilo_sys::transaction::undo::{self, RestoreResult, UndoScope, Undone};
use serde_json::json;

use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::verbs::apply::{Place, count, say};

/// Arguments of `netsilo undo`.
#[derive(Debug, clap::Args)]
pub(crate) struct UndoArgs {
    /// Undo only the newest transaction [default: all since boot]
    #[arg(long)]
    last: bool,
    /// Give up values that cannot be restored instead of retrying them at the next undo
    #[arg(long)]
    forget: bool,
    /// Print the outcome as JSON
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `netsilo confirm`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfirmArgs {
    /// Print the outcome as JSON
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Undoes transactions of this boot.
pub(crate) fn undo(args: &UndoArgs) -> Result<Exit> {
    let which = if args.last { UndoScope::Last } else { UndoScope::All };
    let (kernel, dir) = (args.place.kernel()?, args.place.state_dir());
    let all = undo::undo(&kernel, dir, which, args.forget, RestoredBy::Undo, &mut |_, _| {})?;
    if args.json {
        out::json(&as_json(&all))?;
    } else if all.is_empty() {
        out::text("nothing to undo\n")?;
    } else {
        out::text(&report(&all))?;
    }
    if all.iter().all(Undone::is_complete) {
        return Ok(Exit::Ok);
    }
    say(if args.forget {
        "netsilo: some values could not be restored and are given up"
    } else {
        "netsilo: some values could not be restored: run `netsilo undo` to try again, or \
         `netsilo undo --forget` to give them up"
    });
    Ok(Exit::RestoreIncomplete)
}

/// Confirms the transaction that awaits confirmation.
pub(crate) fn confirm(args: &ConfirmArgs) -> Result<Exit> {
    let late = |id: u64, by: &str| -> Result<Exit> {
        Err(Stop(Exit::Refused, format!("too late: transaction {id} was restored {by}")).into())
    };
    match guard::confirm(&args.place.kernel()?, args.place.state_dir())? {
        ConfirmResult::Kept(id) | ConfirmResult::KeptBefore(id) if args.json => {
            out::json(&json!({ "version": 1, "confirmed": id }))?;
        }
        ConfirmResult::Kept(id) => {
            out::text(&format!(
                "transaction {id} is confirmed; `netsilo undo` can still restore the old values\n"
            ))?;
        }
        ConfirmResult::KeptBefore(id) => {
            out::text(&format!("transaction {id} was already confirmed\n"))?
        }
        ConfirmResult::Restored(id, RestoredBy::Guard | RestoredBy::Confirm) => {
            return late(id, "when its time ran out");
        }
        ConfirmResult::Restored(id, by) => return late(id, &format!("by {by}")),
        ConfirmResult::RestoredNow(undone) => {
            say(report(std::slice::from_ref(&undone)).trim_end());
            if !undone.is_complete() {
                return Ok(Exit::RestoreIncomplete);
            }
            return late(undone.transaction, "now: its time had run out and its guard was gone");
        }
        ConfirmResult::Nothing => {
            return Err(Stop(Exit::Refused, "no transaction awaits confirmation".into()).into());
        }
    }
    Ok(Exit::Ok)
}

/// Reports the result of each knob, and how many were restored.
pub(crate) fn report(all: &[Undone]) -> String {
    let mut text = String::new();
    for undone in all {
        let restored = undone
            .knobs
            .iter()
            .filter(|(_, result)| {
                matches!(result, RestoreResult::Restored | RestoreResult::Reworded(_))
            })
            .count();
        let of = count(undone.knobs.len(), "setting");
        let _ = writeln!(text, "transaction {}: {restored} of {of} restored", undone.transaction);
        for (target, what) in &undone.knobs {
            let _ = writeln!(text, "  {target}: {}", fate(what));
        }
    }
    text
}

/// Describes the result of one knob.
pub(crate) fn fate(result: &RestoreResult) -> String {
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

fn as_json(all: &[Undone]) -> serde_json::Value {
    let knob = |(target, what): &(_, RestoreResult)| {
        let (word, detail) = match what {
            RestoreResult::Restored => ("restored", None),
            RestoreResult::Reworded(raw) => ("restored", Some(raw.clone())),
            RestoreResult::AlreadyOld => ("was_old", None),
            RestoreResult::Foreign(value) => ("foreign", Some(value.to_string())),
            RestoreResult::Gone(error) => ("gone", Some(error.to_string())),
            RestoreResult::Failed(error) => ("failed", Some(error.to_string())),
            RestoreResult::NotApplied(value) => ("failed", Some(value.to_string())),
        };
        json!({ "target": target, "fate": word, "detail": detail })
    };
    let transaction = |undone: &Undone| {
        json!({
            "transaction": undone.transaction,
            "complete": undone.is_complete(),
            "knobs": undone.knobs.iter().map(knob).collect::<Vec<_>>(),
        })
    };
    json!({ "version": 1, "transactions": all.iter().map(transaction).collect::<Vec<_>>() })
}
