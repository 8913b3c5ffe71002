//! The lab's command line, for trying something on a real kernel with real NIC queues by hand.

mod cli;
mod counters;
mod demo;
mod outcome;
mod servers;

use clap::Parser;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    cli::run(cli::Cli::parse())
}
