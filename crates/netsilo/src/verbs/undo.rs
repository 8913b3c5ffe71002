//! `netsilo undo` restores values that are still netsilo's, and shows what netsilo wrote.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use netsilo_sys::read::entrance::names_by_cookie;
use netsilo_sys::read::netns::NetnsId;
use netsilo_sys::transaction::journal::read_without_lock;
use netsilo_sys::transaction::kernel::Kernel as _;
use netsilo_sys::transaction::record::{RestoredBy, Transaction};
use netsilo_sys::transaction::undo::{self, UndoScope, Undone};

use crate::args::state_dir::StateDir;
use crate::tell::exit::Exit;
use crate::tell::out::{self, eprint_line};
use crate::tell::versioned::Versioned;
use crate::verbs::keep;
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
    if args.list || args.dry_run || args.transaction.is_some() {
        let transactions = read_without_lock(&kernel, dir)?.unwrap_or_default().transactions;
        if let Some(number) = args.transaction
            && !transactions.iter().any(|it| it.id == number)
        {
            let list = args.state.command("undo --list");
            bail!("no transaction {number} since boot; {list} shows them");
        }
        if args.list || args.dry_run {
            let expected = undo::expected(&kernel, &transactions, which);
            return show(args, &transactions, &expected, kernel.netns());
        }
    }
    let all = undo::undo(&kernel, dir, which, args.forget, RestoredBy::Undo, &mut |_, _| {})?;
    if args.json {
        out::json(&Versioned::first(UndoResult::new(&all)))?;
    } else if all.is_empty() {
        out::text("nothing to undo\n");
    } else {
        out::text(&report(&all, args.verbose));
    }
    if !all.is_empty() && args.state.root()?.is_live() && keep::is_kept() {
        out::note(
            "netsilo keep writes them again at boot and when a netdev appears; netsilo keep --off \
             ends that",
        );
    }
    if all.iter().all(Undone::is_complete) {
        return Ok(Exit::Done);
    }
    eprint_line(if args.forget {
        "netsilo: some values could not be restored; netsilo will not try again".to_owned()
    } else {
        let [undo, forget] = ["undo", "undo --forget"].map(|verb| args.state.command(verb));
        format!(
            "netsilo: some values could not be restored: run `{undo}` to try again, or `{forget}` \
             to give them up"
        )
    });
    Ok(Exit::RestoreIncomplete)
}

/// Prints all transactions, or those that an undo would restore.
fn show(
    args: &Args,
    transactions: &[Transaction],
    expected: &[Undone],
    own: Option<NetnsId>,
) -> Result<Exit> {
    let is_shown =
        |it: &&Transaction| args.list || expected.iter().any(|undone| undone.transaction == it.id);
    let elsewhere = |it: &Transaction| it.netns.filter(|netns| Some(*netns) != own);
    let names = if transactions.iter().any(|it| elsewhere(it).is_some()) {
        names_by_cookie(&args.state.root()?)
    } else {
        BTreeMap::new()
    };
    let netns = |it: &Transaction| {
        let netns = elsewhere(it)?;
        Some(names.get(&netns.cookie).cloned().unwrap_or_else(|| netns.inode.to_string()))
    };
    let shown = Transactions::new(transactions.iter().filter(is_shown), expected, &netns);
    if args.json {
        out::json(&Versioned::first(shown))?;
    } else if transactions.is_empty() {
        out::text("nothing was written since boot\n");
    } else {
        out::text(&shown.text());
    }
    Ok(Exit::Printed)
}
