//! `netsilo confirm` keeps a transaction that awaits confirmation.

use anyhow::Result;
use netsilo_sys::transaction::guard::{self, ConfirmResult};
use netsilo_sys::transaction::record::RestoredBy;
use serde::Serialize;

use crate::args::state_dir::StateDir;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out::{self, eprint_line};
use crate::tell::versioned::Versioned;
use crate::views::undone::report;

/// Arguments of `netsilo confirm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the outcome as JSON
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    state: StateDir,
}

/// A transaction that is kept.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Confirmed {
    /// Its number.
    confirmed: u64,
}

/// Confirms the transaction that awaits confirmation.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let late = |id: u64, by: &str| -> Result<Exit> {
        Err(ExitError(Exit::Refused, format!("too late: transaction {id} was undone {by}")).into())
    };
    match guard::confirm(&args.state.kernel()?, args.state.path())? {
        ConfirmResult::Kept(id) | ConfirmResult::KeptBefore(id) if args.json => {
            out::json(&Versioned::first(Confirmed { confirmed: id }))?;
        }
        ConfirmResult::Kept(id) => {
            out::text(&format!(
                "transaction {id} is confirmed; `{}` can still restore the old values\n",
                args.state.command("undo")
            ));
        }
        ConfirmResult::KeptBefore(id) => {
            out::text(&format!("transaction {id} was already confirmed\n"))
        }
        ConfirmResult::Restored(id, RestoredBy::Guard | RestoredBy::Confirm) => {
            return late(id, "when its time limit passed");
        }
        ConfirmResult::Restored(id, by) => {
            let why = format!("nothing awaits confirmation: {by} undid transaction {id}");
            return Err(ExitError(Exit::Refused, why).into());
        }
        ConfirmResult::RestoredNow(undone) => {
            eprint_line(report(std::slice::from_ref(&undone), true).trim_end());
            if !undone.is_complete() {
                return Ok(Exit::RestoreIncomplete);
            }
            return late(
                undone.transaction,
                "now: its time limit had passed and its guard process was gone",
            );
        }
        ConfirmResult::Nothing => {
            return Err(
                ExitError(Exit::Refused, "no transaction awaits confirmation".into()).into()
            );
        }
    }
    Ok(Exit::Done)
}
