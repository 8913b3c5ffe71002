//! `netsilo why`: explains what put work on a CPU.

use anyhow::Result;
use netsilo_decide::judge::why::why;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::subject::Subject;

use crate::args::look::{self, CHECK_INTERVAL};
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::views;

/// Arguments of `netsilo why`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// CPU (cpu3), interrupt (irq27), netdev (eth0) or rx queue (eth0/rx-3 or eth0 rx-3) to explain
    #[arg(required = true, num_args = 1..=2, value_name = "SUBJECT")]
    subject: Vec<String>,
    #[command(flatten)]
    observe: look::ObserveArgs,
    /// Print the explanation as JSON
    #[arg(short, long)]
    json: bool,
}

/// Observes, explains and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let subject: Subject = args.subject.join(" ").parse()?;
    let observation = args.observe.with_default_interval(CHECK_INTERVAL).observe()?;
    let answer = why(&Analysis::new(&observation, &Costs::default()), &subject)?;
    if args.json {
        out::json(&Versioned::first(&answer))?;
    } else {
        out::styled(&views::why::render(&answer, Presentation::of_stdout()));
    }
    Ok(Exit::Printed)
}
