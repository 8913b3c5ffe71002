//! `netsilo check`: findings with evidence, and the gain and cost of each remedy.

use anyhow::Result;
use netsilo_decide::judge::disturbances::disturbances;
use netsilo_decide::judge::findings::{Severity, check};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_sys::bpf::tracer::Options;

use crate::args::costs::costs_for;
use crate::args::look::{self, CHECK_INTERVAL};
use crate::args::named;
use crate::args::netns;
use crate::args::parse::some_cpus;
use crate::ndjson::{self, Answer};
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::verbs::calibrate;
use crate::views;

/// Options for checking one machine. Arguments that require `--ndjson` name them too, because clap
/// does not demand an argument that a given one excludes.
const OF_ONE_MACHINE: [&str; 9] =
    ["cpus", "fail_on", "calibrate", "verbose", "json", "from", "interval", "window", "no_bpf"];

/// Arguments of `netsilo check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    observe: look::ObserveArgs,
    /// Instead of findings, print who interrupted these CPUs, how often, and what would end it;
    /// netsilo isolate does a part of that
    #[arg(
        short,
        long,
        value_name = "CPUS",
        value_parser = some_cpus,
        conflicts_with_all = ["fail_on", "calibrate", "verbose"]
    )]
    cpus: Option<CpuSet>,
    /// Exit with 11 if a finding is at least this severe
    #[arg(
        long,
        value_name = "SEVERITY",
        default_value = "warning",
        value_parser = named::severities()
    )]
    fail_on: Severity,
    /// First measure the cost between this machine's CPUs, for about 5s, and use it for the
    /// verdicts; netsilo calibrate stores it for later
    #[arg(long, conflicts_with = "from")]
    calibrate: bool,
    /// Also print all evidence with its sources, informative findings in full, the checks that
    /// passed, packets that were late but not lost, and what each verdict is based on
    #[arg(short, long)]
    verbose: bool,
    /// Print findings and verdicts, or with --cpus the causes, as JSON
    #[arg(short, long)]
    json: bool,
    /// Check each line of standard input, which is an observation (netsilo capture --ndjson) or the
    /// path of a bundle, and print one line of JSON for each
    #[arg(long, conflicts_with_all = OF_ONE_MACHINE)]
    ndjson: bool,
}

/// Observes, diagnoses and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.ndjson {
        // Weights measured here do not apply to other machines.
        let costs = Costs::default();
        return ndjson::filter(|observation| {
            let analysis = Analysis::new(observation, &costs);
            Answer::Check(Box::new(check(&analysis)))
        });
    }
    if let Some(cpus) = &args.cpus {
        return interrupted(args, cpus);
    }
    let costs = if args.calibrate {
        calibrate::measure(calibrate::TIME)?.costs
    } else {
        costs_for(args.observe.is_bundle())?
    };
    let options = Options::of_check();
    let observation = args.observe.with_default_interval(CHECK_INTERVAL).observe_with(options)?;
    let analysis = Analysis::new(&observation, &costs);
    let check = check(&analysis);
    if args.json {
        out::json(&Versioned::first(&check))?;
    } else {
        out::styled(&views::check::render(&check, args.verbose));
        out::styled(&views::verdict::render(&check, args.verbose));
        let has_fix = check.findings.iter().any(|finding| finding.writable().is_some());
        let of = if args.observe.is_bundle() { "bundle" } else { "network namespace" };
        if (args.observe.is_bundle() || !netns::given().is_empty()) && has_fix {
            out::note(&format!("the plans of this {of}: netsilo plan{}", args.observe.given()));
        }
    }
    let grave = check.findings.iter().any(|finding| finding.severity >= args.fail_on);
    Ok(if grave { Exit::Findings } else { Exit::Printed })
}

/// Counts and prints who interrupted some CPUs.
fn interrupted(args: &Args, cpus: &CpuSet) -> Result<Exit> {
    let look = args.observe.with_default_interval(CHECK_INTERVAL);
    let observation = look.observe_with(Options::default())?;
    let found = disturbances(&Analysis::new(&observation, &Costs::default()), cpus);
    if args.json {
        out::json(&Versioned::first(&found))?;
    } else {
        out::styled(&views::disturbances::render(&found, Presentation::of_stdout()));
    }
    Ok(Exit::Printed)
}
