//! netsilo-bench generates and answers network loads, and compares settings of a machine under
//! them.
//!
//! `load_args` describes a load, `serve` and `run` are its two ends, `view` shows a result. The
//! `definition` of an experiment names settings and loads, and `tuning` limits what they change.
//! `setup` observes this machine, `settings` makes the changes (`offload` and `command_setting`
//! make two kinds of them), `experiment` starts or resumes the run, `runner` runs its trials,
//! `folder` stores them, and `report` prints its results. `netsilo-trial` computes the numbers and
//! `netsilo-load` generates the loads. `netsilo` writes a setting in the same way as for `netsilo
//! tune`.

pub mod cli;
mod command_setting;
mod commands;
mod definition;
mod drop_rule;
mod expectation;
mod experiment;
mod folder;
mod load_args;
mod offload;
mod report;
mod run;
mod runner;
mod serve;
mod settings;
mod setup;
mod tuning;
mod view;

use std::process::ExitCode;

/// Runs the command line and returns the exit code (`docs/topics/exit-codes.md`).
pub fn main() -> ExitCode {
    netsilo::cli::completions::answer(cli::bare_command);
    netsilo::tell::out::set_program("netsilo-bench");
    let run = || netsilo::tell::exit::code(cli::run());
    netsilo::tell::exit::on_large_stack(run).unwrap_or_else(|code| code)
}
