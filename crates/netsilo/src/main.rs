//! netsilo: shows where a machine's network receive work runs, plans where it should run, applies
//! the plan, and undoes it.

pub(crate) mod args;
mod bench;

#[cfg(test)]
mod cases;
mod cli;
mod daemon;
mod report;
pub(crate) mod tell;
mod temporary_changes;
pub(crate) mod verbs;
pub(crate) mod views;

use std::process::ExitCode;

fn main() -> ExitCode {
    tell::exit::code(cli::run())
}
