//! `netsilo check`: findings with evidence, and the gain and cost of each remedy.

use anyhow::Result;
use netsilo_decide::judge::findings::{Severity, check};
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::bpf::tracer::Options;

use crate::args::look::{self, CHECK_INTERVAL};
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::verbs::{calibrate, plan};
use crate::views;

/// Arguments of `netsilo check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    observe: look::Look,
    /// Exit with 11 if a finding is at least this severe: info, warning, critical
    #[arg(long, value_name = "SEVERITY", default_value = "warning", value_parser = severity)]
    fail_on: Severity,
    /// Measure the cost between this machine's CPUs first, for about 5s, and use it for the
    /// verdicts; netsilo calibrate stores such a measurement
    #[arg(long, conflicts_with = "from")]
    calibrate: bool,
    /// Also print the numbers behind each verdict
    #[arg(short, long)]
    verbose: bool,
    /// Print findings and verdicts as JSON
    #[arg(short, long)]
    json: bool,
}

/// Observes, diagnoses and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let costs = match args.calibrate {
        true => calibrate::measure(calibrate::TIME)?.costs,
        false => plan::costs_for(args.observe.is_bundle())?,
    };
    let options = Options { stages: true, ..Options::for_findings() };
    let observation = args.observe.unless_told(CHECK_INTERVAL).observe_with(options)?;
    let check = check(&Analysis::new(&observation, &costs));
    if args.json {
        out::json(&check)?;
    } else {
        out::text(&views::check::render(&check))?;
        out::text(&views::verdict::render(&check, args.verbose))?;
    }
    let grave = check.findings.iter().any(|finding| finding.severity >= args.fail_on);
    Ok(if grave { Exit::Findings } else { Exit::Ok })
}

fn severity(text: &str) -> Result<Severity> {
    let known = Severity::ALL.into_iter().filter(|severity| *severity > Severity::Ok);
    known
        .into_iter()
        .find(|severity| severity.as_str() == text)
        .ok_or_else(|| anyhow::anyhow!("known are info, warning, critical"))
}
