//! The command line: arguments, and one match from verb to function.

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::exit::Exit;
use crate::{mask, plan, show};

/// Sees where a Linux machine's network receive work runs, says where it should run, puts it there, undoes it exactly.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show which rx queue is processed on which CPU, and who reads its data where
    Show(show::Args),
    /// Print what apply would write, with the reasons
    Plan(plan::Args),
    /// Print a set of CPUs in each of the kernel's spellings
    Mask(mask::Args),
}

/// Runs the verb that the command line names.
pub(crate) fn run() -> Result<Exit> {
    match Args::parse().verb {
        Verb::Show(args) => show::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Mask(args) => mask::run(&args),
    }
}
