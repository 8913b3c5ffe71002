//! The lab's command line, for trying something on a real kernel with real NIC queues by hand.

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
