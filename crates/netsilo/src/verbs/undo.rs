//! `netsilo undo` restores values that are still netsilo's; `netsilo confirm` keeps a transaction
//! that awaits confirmation.

use anyhow::Result;
use netsilo_sys::transaction::record::RestoredBy;
use netsilo_sys::transaction::undo::{self, RestoreResult, UndoScope, Undone};
use serde_json::json;

use crate::args::state_dir::StateDir;
use crate::tell::exit::Exit;
use crate::tell::out::{self, eprint_line};
use crate::views::undone::report;

/// Arguments of `netsilo undo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
    state: StateDir,
}

/// Undoes transactions of this boot.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let which = if args.last { UndoScope::Last } else { UndoScope::All };
    let (kernel, dir) = (args.state.kernel()?, args.state.path());
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
    eprint_line(if args.forget {
        "netsilo: some values could not be restored and are given up"
    } else {
        "netsilo: some values could not be restored: run `netsilo undo` to try again, or \
         `netsilo undo --forget` to give them up"
    });
    Ok(Exit::RestoreIncomplete)
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
    json!({ "schema": 1, "transactions": all.iter().map(transaction).collect::<Vec<_>>() })
}
