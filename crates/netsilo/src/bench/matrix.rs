//! `netsilo bench matrix`: compares settings under requests and responses of several sizes and
//! numbers of instances.

use anyhow::Result;
use netsilo_trial::experiment::{Kind, Load, Setting};
use netsilo_trial::traffic::Test;

use crate::bench::command_setting::Peer;
use crate::bench::defined::{Defined, Made};
use crate::bench::experiment::With;
use crate::bench::loads::Requests;
use crate::bench::settings;
use crate::tell::exit::Exit;

/// Names of the built-in settings.
const SETTINGS: [&str; 5] = ["none", "irq-affinity", "rps+rfs", "both", "plan"];

/// Arguments of `netsilo bench matrix`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    with: With,
    /// Settings to compare; the first is the baseline
    #[arg(short, long, value_name = "NAME,..", value_delimiter = ',', default_values = SETTINGS)]
    settings: Vec<String>,
    /// Also compare what a shell command changes; it runs once and its changes are undone, then
    /// netsilo writes them itself
    #[arg(long, value_name = "NAME=COMMAND")]
    config: Vec<Peer>,
    #[command(flatten)]
    loads: Requests,
    /// Burn this much CPU time in user mode per request, as a real service does
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
    args.with.run(Kind::Matrix, |made| define(args, made))
}

fn define(args: &Args, made: &mut Made<'_>) -> Result<Defined> {
    let (tests, sizes, instances) = ([Test::TcpRr, Test::UdpRr], [1, 256], [100, 500, 1500]);
    let loads = args.loads.loads(&args.with.common, &tests, &sizes, &instances);
    made.how.work_usecs = args.work_usecs;
    let mut all = Vec::new();
    for name in &args.settings {
        settings::known(name, &SETTINGS)?;
        all.extend(setting(name, args, made, &loads)?);
    }
    for peer in &args.config {
        all.push(peer.learn(made)?);
    }
    Ok(Defined { settings: all, loads })
}

fn setting(name: &str, args: &Args, made: &Made<'_>, loads: &[Load]) -> Result<Option<Setting>> {
    let (hardware, seen) = (&args.with.hardware, &made.seen);
    match name {
        "none" => Ok(Some(settings::none(name))),
        "irq-affinity" => {
            settings::of(name, "each queue's interrupt on its own cpu", &hardware.affinity(), seen)
        }
        "rps+rfs" => {
            let goal = hardware.rfs(hardware.goal(), seen);
            settings::of(
                name,
                "RPS over all cpus, and RFS: protocol work on the cpu of each flow's reader",
                &goal,
                seen,
            )
        }
        "both" => {
            let goal = hardware.rfs(hardware.affinity(), seen);
            settings::of(
                name,
                "each queue's interrupt on its own cpu, with RPS and RFS",
                &goal,
                seen,
            )
        }
        _ => {
            // plan for the heaviest load: the last one has the most instances
            let Some(load) = loads.last() else { return Ok(None) };
            settings::own(name, hardware, made, load)
        }
    }
}
