//! The lab's command line, to try something by hand on a real kernel with real NIC queues.

mod built;
mod cli;
mod counters;
mod demo;
mod experiment;
mod guests;
mod knobs;
mod locality;
mod outcome;
mod peers;
mod predictions;
mod say;
mod tutorial;
mod verdicts;
mod veths;
mod wire;
mod workload;

use clap::Parser;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    cli::run(cli::Cli::parse())
}
