//! netsilo: shows where a machine's network receive work runs, plans where it should run, applies
//! the plan, and undoes it.

mod args;
mod bench;

#[cfg(test)]
mod cases;
mod cli;
mod daemon;
mod report;
mod tell;
mod temporary_changes;
mod verbs;
mod views;

use std::process::ExitCode;

fn main() -> ExitCode {
    tell::exit::code(cli::run())
}
