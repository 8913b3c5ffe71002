//! `netsilo bench matrix`: compares settings under requests and responses of several sizes and
//! numbers of instances.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use netsilo_trial::experiment::{Kind, Load, Setting};
use netsilo_trial::traffic::Test;

use crate::bench::command_setting::CommandSetting;
use crate::bench::defined::{Definition, Setup};
use crate::bench::experiment::PeerArgs;
use crate::bench::loads::LoadLists;
use crate::bench::settings;
use crate::tell::exit::Exit;

/// Names of the built-in settings.
const SETTINGS: [&str; 5] = ["none", "irq-affinity", "rps+rfs", "both", "plan"];

/// Arguments of `netsilo bench matrix`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    peer: PeerArgs,
    /// Settings to compare; the first is the baseline
    #[arg(
        short,
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_values = SETTINGS,
        value_parser = PossibleValuesParser::new(SETTINGS)
    )]
    settings: Vec<String>,
    /// Also compare what a shell command changes; it runs once and its changes are undone, then
    /// netsilo writes them itself
    #[arg(long, value_name = "NAME=COMMAND")]
    setting: Vec<CommandSetting>,
    #[command(flatten)]
    loads: LoadLists,
    /// Microseconds of CPU time to burn in user mode per request, as a real service does
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000)
    )]
    work_usecs: u64,
}

/// Runs or resumes the experiment.
pub(super) fn run(args: &Args) -> Result<Exit> {
    args.peer.run(Kind::Matrix, |setup| define(args, setup))
}

fn define(args: &Args, setup: &mut Setup<'_>) -> Result<Definition> {
    let (tests, sizes, instances) = ([Test::TcpRr, Test::UdpRr], [1, 256], [100, 500, 1500]);
    let loads = args.loads.loads(&args.peer.experiment, &tests, &sizes, &instances);
    setup.options.work_usecs = args.work_usecs;
    let mut all = Vec::new();
    for name in &args.settings {
        all.extend(setting(name, args, setup, &loads)?);
    }
    for command in &args.setting {
        all.push(command.record(setup)?);
    }
    Ok(Definition { settings: all, loads })
}

fn setting(name: &str, args: &Args, setup: &Setup<'_>, loads: &[Load]) -> Result<Option<Setting>> {
    let (tuning, seen) = (&args.peer.tuning, &setup.observation);
    match name {
        "none" => Ok(Some(settings::none(name))),
        "irq-affinity" => settings::from_goal(
            name,
            "each queue's interrupt on its own cpu",
            &tuning.affinity(),
            seen,
        ),
        "rps+rfs" => {
            let goal = tuning.rfs(tuning.goal(), seen);
            settings::from_goal(
                name,
                "RPS over all cpus, and RFS: protocol work on the cpu of each flow's reader",
                &goal,
                seen,
            )
        }
        "both" => {
            let goal = tuning.rfs(tuning.affinity(), seen);
            settings::from_goal(
                name,
                "each queue's interrupt on its own cpu, with RPS and RFS",
                &goal,
                seen,
            )
        }
        _ => {
            // plan for the heaviest load: the last one has the most instances
            let Some(load) = loads.last() else { return Ok(None) };
            settings::netsilo_plan(name, tuning, setup, load)
        }
    }
}
