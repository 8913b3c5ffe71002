//! Arguments of `netsilo tune`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_trial::workload::WorkloadMeasure;

use crate::args::objective::Objective;
use crate::args::outcomes::OutcomesDir;
use crate::args::state_dir::StateDir;
use crate::args::{named, parse};
use crate::tell::exit::{Exit, ExitError};

const EXAMPLES: &str = "\
Examples:
  netsilo tune --for 10m                         search on the live workload
  netsilo tune --objective latency -- ./load.sh  search with a load that prints a number
  netsilo tune --outcomes                        what earlier searches measured

docs/ab.md explains how it decides. Exit codes: docs/topics/exit-codes.md";

/// Arguments of `netsilo tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Search for at most this long
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = parse::duration)]
    pub(super) budget: Duration,
    /// What to improve. Transactions, throughput and latency are the last number that COMMAND
    /// prints; the others are measured on the live workload, as in netsilo ab [default:
    /// cpu-per-megabyte; with COMMAND: throughput]
    #[arg(long, value_name = "OBJECTIVE", value_parser = named::objectives())]
    pub(super) objective: Option<Objective>,
    /// Revert and drop a candidate that is worse by this share than the current state ever was
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse::percent)]
    pub(super) never_worse_than: f64,
    /// Try only these candidates, even if the model expects no gain
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) only: Vec<String>,
    /// Do not try these candidates
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) except: Vec<String>,
    /// Also try knobs that reset the link: channels, rings, some offloads
    #[arg(long)]
    pub(super) allow_interruption: bool,
    /// List the candidates and the model's forecast for each, and write nothing
    #[arg(long, conflicts_with = "resume")]
    pub(super) dry_run: bool,
    /// Length of each window of the live workload
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse::counting_time)]
    pub(super) window: Duration,
    /// Wait this long after each switch before measuring
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse::duration)]
    pub(super) settle: Duration,
    /// Seed of the random order [default: from the clock]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Write the plan and all measurements to this folder, for --resume
    #[arg(short, long, value_name = "DIR", conflicts_with = "resume")]
    pub(super) output: Option<PathBuf>,
    /// Continue the search in this folder, with its recorded options
    #[arg(long, value_name = "DIR")]
    pub(super) resume: Option<PathBuf>,
    /// With --resume: run the command even if the folder belongs to others
    #[arg(long, requires = "resume", conflicts_with_all = ["dry_run", "output", "command"])]
    pub(super) trust: bool,
    #[command(flatten)]
    pub(super) scope: ScopeArgs,
    /// Write without asking first
    #[arg(short, long)]
    pub(super) yes: bool,
    /// Store only the outcome, which plans follow, and restore the old state whoever wins
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) restore: bool,
    /// Print the result as JSON
    #[arg(short, long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) state: StateDir,
    #[command(flatten)]
    pub(super) kept: KeptArgs,
    #[command(flatten)]
    pub(super) outcomes_dir: OutcomesDir,
    /// Command that puts a load on this machine and prints a number
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "resume")]
    pub(super) command: Vec<String>,
}

/// What the candidates may change.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ScopeArgs {
    /// Change only these netdevs [default: all that are up and have queues with interrupts]
    #[arg(short, long, value_name = "DEV,..", value_delimiter = ',')]
    pub(super) netdev: Vec<String>,
    /// Use only these CPUs (list or mask) [default: all but isolated and nohz_full]
    #[arg(short, long, value_name = "CPUS", value_parser = parse::some_cpus)]
    pub(super) cpus: Option<CpuSet>,
    /// Never use these CPUs (list or mask) [default: none]
    #[arg(long, value_name = "CPUS", value_parser = parse::some_cpus)]
    pub(super) exclude: Option<CpuSet>,
    /// Write even if another program (irqbalance) writes the same knobs
    #[arg(long)]
    pub(super) even_if_owned: bool,
}

/// Options that look at earlier searches instead of starting one.
#[derive(Debug, clap::Args)]
#[group(conflicts_with_all = SEARCH)]
pub(super) struct KeptArgs {
    /// List the outcomes of earlier searches, which plans follow
    #[arg(long)]
    pub(super) outcomes: bool,
    /// Remove the outcome with this id, or all
    #[arg(long, value_name = "ID|all", conflicts_with_all = ["outcomes", "json"])]
    pub(super) forget: Option<String>,
}

/// Options of a search.
const SEARCH: [&str; 17] = [
    "budget",
    "objective",
    "never_worse_than",
    "only",
    "except",
    "allow_interruption",
    "dry_run",
    "window",
    "settle",
    "seed",
    "output",
    "resume",
    "trust",
    "ScopeArgs",
    "yes",
    "restore",
    "command",
];

impl Args {
    /// The objective, checked against the command.
    pub(super) fn objective(&self) -> Result<Objective> {
        let default = match self.command.as_slice() {
            [] => Objective::Live(WorkloadMeasure::CpuPerMegabyte),
            _ => Objective::Throughput,
        };
        let objective = self.objective.unwrap_or(default);
        let name = objective.as_str();
        let wrong = match (objective.live(), self.command.is_empty()) {
            (None, true) => format!(
                "{name} needs a command that prints a number: netsilo tune --objective {name} -- \
                 COMMAND"
            ),
            (Some(_), false) => format!(
                "{name} is measured on the live workload: omit the command, or choose \
                 transactions, throughput or latency"
            ),
            _ => return Ok(objective),
        };
        Err(ExitError(Exit::Usage, wrong).into())
    }
}
