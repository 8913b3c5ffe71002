//! `netsilo undo` takes back what is still ours; `netsilo confirm` keeps what awaits its
//! confirmation.

use std::fmt::Write as _;

use anyhow::Result;
use netsilo_sys::transaction::guard::{self, Confirmation};
use netsilo_sys::transaction::record::By;
use netsilo_sys::transaction::undo::{self, Fate, Undone, Which};
use serde_json::json;

use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::verbs::apply::{Place, count, say};

/// Arguments of `netsilo undo`.
#[derive(Debug, clap::Args)]
pub(crate) struct UndoArgs {
    /// Take back the newest apply only
    #[arg(long)]
    last: bool,
    /// Give up what cannot be restored, instead of trying again at the next undo
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

/// Takes back this boot's transactions.
pub(crate) fn undo(args: &UndoArgs) -> Result<Exit> {
    let which = if args.last { Which::Last } else { Which::All };
    let (kernel, dir) = (args.place.kernel()?, args.place.state_dir());
    let all = undo::undo(&kernel, dir, which, args.forget, By::Undo, &mut |_, _| {})?;
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
        "netsilo: some values could not be restored: run `netsilo undo` to try again, or `netsilo undo --forget` to give \
         them up"
    });
    Ok(Exit::RestoreIncomplete)
}

/// Keeps the transaction that awaits its confirmation.
pub(crate) fn confirm(args: &ConfirmArgs) -> Result<Exit> {
    let late = |id: u64, by: &str| -> Result<Exit> {
        Err(Stop(Exit::Refused, format!("too late: transaction {id} was restored {by}")).into())
    };
    match guard::confirm(&args.place.kernel()?, args.place.state_dir())? {
        Confirmation::Kept(id) | Confirmation::KeptBefore(id) if args.json => {
            out::json(&json!({ "version": 1, "confirmed": id }))?;
        }
        Confirmation::Kept(id) => {
            out::text(&format!(
                "transaction {id} is confirmed; `netsilo undo` still takes it back\n"
            ))?;
        }
        Confirmation::KeptBefore(id) => {
            out::text(&format!("transaction {id} was confirmed before\n"))?
        }
        Confirmation::Restored(id, By::Guard | By::Confirm) => {
            return late(id, "when its time was over");
        }
        Confirmation::Restored(id, by) => return late(id, &format!("by {by}")),
        Confirmation::RestoredNow(undone) => {
            say(report(std::slice::from_ref(&undone)).trim_end());
            if !undone.is_complete() {
                return Ok(Exit::RestoreIncomplete);
            }
            return late(undone.transaction, "now, its time was over and its guard gone");
        }
        Confirmation::Nothing => {
            return Err(Stop(Exit::Refused, "no transaction awaits a confirmation".into()).into());
        }
    }
    Ok(Exit::Ok)
}

/// What became of each knob, and the sum.
pub(crate) fn report(all: &[Undone]) -> String {
    let mut text = String::new();
    for undone in all {
        let restored = undone
            .knobs
            .iter()
            .filter(|(_, fate)| matches!(fate, Fate::Restored | Fate::Reworded(_)))
            .count();
        let of = count(undone.knobs.len(), "setting");
        let _ = writeln!(text, "transaction {}: {restored} of {of} restored", undone.transaction);
        for (target, what) in &undone.knobs {
            let _ = writeln!(text, "  {target}: {}", fate(what));
        }
    }
    text
}

/// What became of one knob, for people.
pub(crate) fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Restored => "restored".into(),
        Fate::Reworded(raw) => {
            format!("restored, the kernel now prints it as {:?}", raw.trim_end())
        }
        Fate::WasOld => "had its old value already".into(),
        Fate::Foreign(value) => {
            format!("left alone, someone else or the driver has changed it to {value} since")
        }
        Fate::Gone(error) => format!("gone ({error})"),
        Fate::Failed(error) => format!("NOT RESTORED ({error})"),
        Fate::Ignored(value) => {
            format!("NOT RESTORED (the kernel took the old value and still says {value})")
        }
    }
}

fn as_json(all: &[Undone]) -> serde_json::Value {
    let knob = |(target, what): &(_, Fate)| {
        let (word, detail) = match what {
            Fate::Restored => ("restored", None),
            Fate::Reworded(raw) => ("restored", Some(raw.clone())),
            Fate::WasOld => ("was_old", None),
            Fate::Foreign(value) => ("foreign", Some(value.to_string())),
            Fate::Gone(error) => ("gone", Some(error.to_string())),
            Fate::Failed(error) => ("failed", Some(error.to_string())),
            Fate::Ignored(value) => ("failed", Some(value.to_string())),
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
