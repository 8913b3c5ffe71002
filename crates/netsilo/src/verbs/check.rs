//! `netsilo check`: what is wrong, with evidence, and what each remedy would gain or cost.

use anyhow::Result;
use netsilo_decide::judge::findings::{Severity, check};
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
    /// Exit with 11 when something at least as grave is found: info, warning, critical
    #[arg(long, value_name = "SEVERITY", default_value = "warning", value_parser = severity)]
    fail_on: Severity,
    /// Measure what lies between this machine's CPUs first, for about 5s, and judge by that;
    /// netsilo calibrate keeps it
    #[arg(long, conflicts_with = "from")]
    calibrate: bool,
    /// Print the numbers behind each verdict too
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(short, long)]
    json: bool,
}

/// Looks, diagnoses, prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let costs = match args.calibrate {
        true => calibrate::measure(calibrate::TIME)?.costs,
        false => plan::costs_for(args.observe.is_bundle())?,
    };
    let check = check(
        &args
            .observe
            .unless_told(CHECK_INTERVAL)
            .observe_with(Options { stages: true, ..Options::for_findings() })?,
        &costs,
    );
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
