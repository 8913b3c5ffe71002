//! The command line: arguments, and one match from verb to function.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::exit::Exit;
use crate::{apply, undo};

/// See, place and undo where a Linux machine's network receive work runs.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Apply a plan as one transaction, which `undo` takes back.
    Apply {
        /// Apply exactly this plan, as printed by `plan --json`
        #[arg(long, value_name = "FILE")]
        plan: PathBuf,
        #[command(flatten)]
        how: apply::How,
    },
    /// Take back what is still ours of all that was applied since boot.
    Undo(undo::UndoArgs),
    /// Keep what `apply --confirm-within` has applied.
    Confirm(undo::ConfirmArgs),
    #[command(hide = true)]
    Guard(apply::GuardArgs),
}

/// Runs the verb that the command line names.
pub(crate) fn run() -> Result<Exit> {
    match Args::parse().verb {
        Verb::Apply { plan, how } => apply::run(&apply::load(&plan)?, &how),
        Verb::Undo(args) => undo::undo(&args),
        Verb::Confirm(args) => undo::confirm(&args),
        Verb::Guard(args) => apply::guard(&args),
    }
}
