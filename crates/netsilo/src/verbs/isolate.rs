//! `netsilo isolate`: moves interrupts, RPS, XPS and NAPI kthreads off some CPUs as one
//! transaction, and counts what still arrives there.

use anyhow::Result;
use netsilo_decide::judge::disturbances::disturbances;
use netsilo_decide::plan::isolate::isolate;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;

use crate::args::apply_options::ApplyOptions;
use crate::args::look::{self, CHECK_INTERVAL};
use crate::args::parse::some_cpus;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::verbs::apply::apply;
use crate::verbs::plan::print;
use crate::views;

/// Arguments of `netsilo isolate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// CPUs that nothing shall interrupt (list or mask)
    #[arg(short, long, value_name = "CPUS", value_parser = some_cpus)]
    cpus: CpuSet,
    /// Print what would be written, as plan does, without writing it
    #[arg(long)]
    dry_run: bool,
    /// Plan changes even if another program (irqbalance) writes the same knobs
    #[arg(long)]
    even_if_owned: bool,
    #[command(flatten)]
    look: look::LiveArgs,
    #[command(flatten)]
    options: ApplyOptions,
}

/// Observes, shows the plan, asks and writes it. Then counts what still arrives.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let costs = Costs::default();
    let observation = observe(args)?;
    let plan = isolate(&Analysis::new(&observation, &costs), &args.cpus, args.even_if_owned);
    if args.dry_run {
        return print(&plan, args.options.json);
    }
    let exit = apply(&plan, &args.options, false)?;
    if !matches!(exit, Exit::Done | Exit::Printed) {
        return Ok(exit);
    }
    let observation = observe(args)?;
    let found = disturbances(&Analysis::new(&observation, &costs), &args.cpus);
    let text = views::disturbances::render(&found, Presentation::of_stdout());
    // With JSON, stdout has the outcome alone.
    out::proposal(&text, args.options.json);
    Ok(exit)
}

fn observe(args: &Args) -> Result<Observation> {
    args.look.with_default_interval(CHECK_INTERVAL).observe_with(Options::default())
}
