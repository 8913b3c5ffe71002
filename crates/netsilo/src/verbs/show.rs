//! `netsilo show`: which CPU processes each rx queue, and who reads its data where.

use anyhow::Result;
use netsilo_decide::report::Report;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::bpf::tracer::Options;

use crate::args::look;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::views;

/// Arguments of `netsilo show`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    observe: look::ObserveArgs,
    /// Repeat after each interval, COUNT times or until interrupted
    #[arg(short, long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "0")]
    watch: Option<u64>,
    /// Also sample in which stages receive work spends its time: driver, bridge and IP, netfilter,
    /// delivery, sending
    #[arg(long, conflicts_with = "no_bpf")]
    stages: bool,
    /// Print the report as JSON (schema 1, docs/report.md); with --watch one line per interval
    #[arg(short, long)]
    json: bool,
}

/// Observes and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let mut shown = 0;
    let options = Options { stages: args.stages, ..Options::default() };
    args.observe.each(options, |observation| {
        let report = Report::of(&Analysis::new(&observation, &Costs::default()));
        shown += 1;
        match (args.json, args.watch) {
            (true, None) => out::json(&report)?,
            (true, Some(_)) => out::json_line(&report)?,
            (false, None) => out::text(&views::show::render(&report, out::width()))?,
            (false, Some(_)) => out::screen(&views::show::render(&report, out::width()))?,
        }
        Ok((Exit::Ok, args.watch.is_some_and(|count| count == 0 || shown < count)))
    })
}
