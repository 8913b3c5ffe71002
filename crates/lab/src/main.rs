//! The lab's command line: try something by hand on a real kernel with real NIC queues.

mod cli;
mod counters;
mod demo;

use clap::Parser;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    cli::run(cli::Cli::parse())
}
