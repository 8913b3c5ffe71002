//! The command line: arguments, and one match from verb to function.

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::exit::Exit;
use crate::mask;

/// See, place and undo where a Linux machine's network receive work runs.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print a set of CPUs in each of the kernel's spellings.
    Mask(mask::Args),
}

/// Runs the verb that the command line names.
pub(crate) fn run() -> Result<Exit> {
    match Args::parse().verb {
        Verb::Mask(args) => mask::run(&args),
    }
}
