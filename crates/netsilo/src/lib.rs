//! netsilo: shows where a machine's network receive work runs, plans where it should run, applies
//! the plan, and undoes it.
//!
//! The library has the program's `main`, the command line as a value, and what `netsilo-bench`
//! shares: arguments, messages, forecasts, runs, and changes that are undone when the command ends.
//! `crates/dev` writes manual pages and completions from the command line.

pub mod args;
pub mod cli;
#[doc(hidden)] // for crates/fuzz
pub mod daemon;
pub mod forecast;
mod ndjson;
mod report;
pub mod runs;
pub mod tell;
pub mod temporary_changes;
mod top;
mod tune;
pub mod verbs;
pub mod views;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod current;
#[cfg(test)]
mod placement_picture;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tables;

use std::process::ExitCode;

use crate::tell::exit::{self, on_large_stack};

/// Runs the command line and returns the exit code (`docs/topics/exit-codes.md`).
pub fn main() -> ExitCode {
    cli::completions::answer(cli::bare_command);
    let args = match on_large_stack(cli::args) {
        Ok(Ok(args)) => args,
        Ok(Err(ended)) => return exit::code(ended),
        Err(code) => return code,
    };
    match cli::enter(&args) {
        Ok(()) => on_large_stack(|| exit::code(cli::run(args))).unwrap_or_else(|code| code),
        Err(error) => exit::code(Err(error)),
    }
}
