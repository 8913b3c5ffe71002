//! netsilo: shows where a machine's network receive work runs, plans where it should run, applies
//! the plan, and undoes it.
//!
//! The library has the program's `main`, and the command line as a value for `crates/package`,
//! which writes manual pages and completions of it.

mod args;
mod bench;
pub mod cli;
mod daemon;
mod forecast;
mod ndjson;
mod report;
mod tell;
mod temporary_changes;
mod top;
mod tune;
mod verbs;
mod views;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod current;
#[cfg(test)]
mod schema;

use std::process::ExitCode;

/// Runs the command line and returns the exit code (`docs/topics/exit-codes.md`).
pub fn main() -> ExitCode {
    tell::exit::code(cli::run())
}
