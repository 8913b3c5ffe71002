//! The hidden `netsilo guard`, which `apply` and `tune` start. Restores a transaction that is not
//! confirmed in time.

use std::io;

use anyhow::Result;
use netsilo_sys::transaction::guard::{self, GuardResult, GuardScope};

use crate::args::state_dir::StateDir;
use crate::tell::exit::Exit;
use crate::tell::out::eprint_line;
use crate::views::undone::report;

/// Arguments of the hidden `netsilo guard`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Transaction to restore unless it is confirmed
    transaction: u64,
    /// Restore it also when the process that started this one ends
    #[arg(long)]
    with_parent: bool,
    #[command(flatten)]
    state: StateDir,
}

/// Restores a transaction unless it is confirmed in time. Standard error is the state folder's
/// `guard.log`.
pub fn run(args: &Args) -> Result<Exit> {
    let Args { transaction, with_parent, state } = args;
    let scope = if *with_parent { GuardScope::WhileParentLives } else { GuardScope::UntilDeadline };
    let (kernel, dir) = (state.kernel()?, state.path());
    let end = guard::watch(&kernel, dir, *transaction, scope, &mut io::stdout())?;
    let exit = match &end {
        GuardResult::Restored(undone) if !undone.is_complete() => Exit::RestoreIncomplete,
        _ => Exit::Done,
    };
    match end {
        // this is how temporary changes normally end
        GuardResult::Confirmed | GuardResult::Undone(_) if *with_parent => {}
        GuardResult::Confirmed => {
            eprint_line(format_args!("transaction {transaction} was confirmed"))
        }
        GuardResult::Undone(by) => {
            eprint_line(format_args!("transaction {transaction} was undone by {by}"))
        }
        GuardResult::Restored(undone) => {
            eprint_line("not confirmed in time, or the program that wrote it has ended");
            eprint_line(report(&[undone], true).trim_end());
        }
    }
    Ok(exit)
}
