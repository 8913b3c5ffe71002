//! `netsilo undo` restores values that are still netsilo's, and shows what netsilo wrote.

use anyhow::{Result, bail};
use netsilo_sys::transaction::journal::read_without_lock;
use netsilo_sys::transaction::record::{RestoredBy, Transaction};
use netsilo_sys::transaction::undo::{self, UndoScope, Undone};

use crate::args::state_dir::StateDir;
use crate::tell::exit::Exit;
use crate::tell::out::{self, eprint_line};
use crate::tell::versioned::Versioned;
use crate::views::transactions::Transactions;
use crate::views::undone::{UndoResult, report};

/// Arguments of `netsilo undo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Undo only the newest transaction [default: all since boot]
    #[arg(long)]
    last: bool,
    /// Undo only this transaction, if it is not undone yet; apply --json prints its number
    #[arg(long, value_name = "NUMBER", conflicts_with = "last")]
    transaction: Option<u64>,
    /// Give up values that cannot be restored instead of retrying them at the next undo
    #[arg(long)]
    forget: bool,
    /// Show what netsilo wrote since boot and what is still in effect; write nothing
    #[arg(long, conflicts_with_all = ["last", "transaction", "forget", "dry_run"])]
    list: bool,
    /// Show what would be restored; write nothing
    #[arg(long, conflicts_with = "forget")]
    dry_run: bool,
    /// For habit: undo never asks
    #[arg(short, long, hide = true)]
    yes: bool,
    /// Also print each setting that was restored
    #[arg(short, long)]
    verbose: bool,
    /// Print the outcome as JSON
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    state: StateDir,
}

/// Undoes transactions of this boot.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let which = match args.transaction {
        Some(number) => UndoScope::Only(number),
        None if args.last => UndoScope::Last,
        None => UndoScope::All,
    };
    let (kernel, dir) = (args.state.kernel()?, args.state.path());
    let history = read_without_lock(&kernel, dir)?.unwrap_or_default();
    if let Some(number) = args.transaction
        && !history.transactions.iter().any(|it| it.id == number)
    {
        bail!("no transaction {number} since boot; netsilo undo --list shows them");
    }
    if args.list || args.dry_run {
        let expected = undo::expected(&kernel, &history.transactions, which);
        let is_shown = |it: &&Transaction| {
            args.list || expected.iter().any(|undone| undone.transaction == it.id)
        };
        let shown = history.transactions.iter().filter(is_shown);
        let all = Transactions::new(shown, &expected);
        match (args.json, history.transactions.is_empty()) {
            (true, _) => out::json(&Versioned::first(all))?,
            (false, true) => out::text("nothing was written since boot\n"),
            (false, false) => out::text(&all.text()),
        }
        return Ok(Exit::Printed);
    }
    let all = undo::undo(&kernel, dir, which, args.forget, RestoredBy::Undo, &mut |_, _| {})?;
    if args.json {
        out::json(&Versioned::first(UndoResult::new(&all)))?;
    } else if all.is_empty() {
        out::text("nothing to undo\n");
    } else {
        out::text(&report(&all, args.verbose));
    }
    if all.iter().all(Undone::is_complete) {
        return Ok(Exit::Done);
    }
    eprint_line(if args.forget {
        "netsilo: some values could not be restored; netsilo will not try again"
    } else {
        "netsilo: some values could not be restored: run `netsilo undo` to try again, or \
         `netsilo undo --forget` to give them up"
    });
    Ok(Exit::RestoreIncomplete)
}
