//! The hidden `netsilo guard`, which `apply` starts: restores what is not confirmed in time.

use std::io;

use anyhow::Result;
use netsilo_sys::transaction::guard::{self, GuardResult};

use crate::args::state_dir::StateDir;
use crate::tell::exit::Exit;
use crate::tell::out::eprint_line;
use crate::views::undone::report;

/// Arguments of the hidden `netsilo guard`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Transaction to restore unless it is confirmed
    transaction: u64,
    #[command(flatten)]
    state: StateDir,
}

/// Restores a transaction unless it is confirmed in time; `apply` starts it with standard error in
/// the state folder's `guard.log`.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let Args { transaction, state } = args;
    let end = guard::watch(&state.kernel()?, state.path(), *transaction, &mut io::stdout())?;
    let exit = match &end {
        GuardResult::Restored(undone) if !undone.is_complete() => Exit::RestoreIncomplete,
        _ => Exit::Ok,
    };
    match end {
        GuardResult::Confirmed => {
            eprint_line(format_args!("transaction {transaction} was confirmed"))
        }
        GuardResult::Undone(by) => {
            eprint_line(format_args!("transaction {transaction} was restored by {by}"))
        }
        GuardResult::Restored(undone) => {
            eprint_line("no confirmation in time");
            eprint_line(report(&[undone]).trim_end());
        }
    }
    Ok(exit)
}
