//! `netsilo bench rps-guest`: compares RPS settings on a machine with few CPUs, few queues and a
//! service that keeps the CPUs busy.

use anyhow::{Context as _, Result};
use netsilo_model::change::{Change, knobs};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_trial::experiment::{Kind, Load, Setting};
use netsilo_trial::traffic::Test;

use crate::bench::defined::{Definition, Setup};
use crate::bench::experiment::PeerArgs;
use crate::bench::loads::LoadLists;
use crate::bench::settings;
use crate::tell::exit::Exit;
use crate::tell::out;

/// Share of CPU time from which the service counts as nearly saturated.
const BUSY: f64 = 0.9;

/// Largest work per request that is tried, in microseconds.
const MOST_WORK_USECS: u64 = 5000;

/// Arguments of `netsilo bench rps-guest`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    peer: PeerArgs,
    #[command(flatten)]
    loads: LoadLists,
    /// CPU time that the service burns per request, in microseconds [default: enough to keep 90% of
    /// the CPUs busy]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(..=1_000_000)
    )]
    work_usecs: Option<u64>,
}

/// Runs or resumes the experiment.
pub(super) fn run(args: &Args) -> Result<Exit> {
    args.peer.run(Kind::RpsGuest, |setup| define(args, setup))
}

fn define(args: &Args, setup: &mut Setup<'_>) -> Result<Definition> {
    let loads = args.loads.loads(&args.peer.experiment, &[Test::TcpRr], &[256], &[64]);
    let load = loads.last().context("no load is given")?;
    setup.options.work_usecs = match args.work_usecs {
        Some(usecs) => usecs,
        None => work_that_saturates(setup, load)?,
    };
    let (tuning, seen) = (&args.peer.tuning, &setup.observation);
    let mut all = vec![settings::none("none")];
    let rps = tuning.rps(tuning.goal(), seen);
    all.extend(settings::from_goal("rps", "RPS over all cpus", &rps, seen)?);
    let rfs = tuning.rfs(tuning.goal(), seen);
    all.extend(settings::from_goal("rps+rfs", "RPS over all cpus, and RFS", &rfs, seen)?);
    all.extend(queues(tuning.netdevs(&seen.after)));
    Ok(Definition { settings: all, loads })
}

/// Finds the work per request, in microseconds, that keeps the CPUs busy by doubling it.
fn work_that_saturates(setup: &mut Setup<'_>, load: &Load) -> Result<u64> {
    let mut usecs = 0;
    loop {
        setup.options.work_usecs = usecs;
        let busy = setup.busy(load)?;
        out::note(&format!(
            "{usecs} us of work per request keep {:.0}% of the cpus busy",
            busy * 100.0
        ));
        if busy >= BUSY || usecs * 2 > MOST_WORK_USECS {
            return Ok(usecs);
        }
        usecs = (usecs * 2).max(5);
    }
}

/// The setting with as many queues as each device supports.
fn queues<'a>(netdevs: impl Iterator<Item = &'a Netdev>) -> Option<Setting> {
    let more = |netdev: &Netdev| {
        let channels = netdev.ethtool.as_ref()?.channels.value()?;
        let combined = channels.combined.filter(|combined| combined.current < combined.max)?;
        let old = channels.settings();
        let new = old.clone().with("combined", combined.max);
        let knob = knobs::Channels { netdev: NetdevIdentity::from_netdev(netdev) };
        let reason = format!("{} queues instead of {}", combined.max, combined.current);
        Some(Change::new(knob, old, new, reason))
    };
    let changes = netdevs.filter_map(more).collect();
    let what = "as many queues as the device supports".into();
    settings::unless_empty(Setting { name: "queues".into(), what, changes, command: None })
}
