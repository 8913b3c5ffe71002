//! netsilo: shows where a machine's network receive work runs, plans where it should run, applies
//! the plan, and undoes it.

mod args;
mod bench;
mod cli;
mod daemon;
mod report;
mod tell;
mod temporary_changes;
mod top;
mod tune;
mod verbs;
mod views;

#[cfg(test)]
mod cases;

use std::process::ExitCode;

fn main() -> ExitCode {
    tell::exit::code(cli::run())
}
