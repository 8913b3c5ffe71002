//! `netsilo bench rps-guest`: few CPUs, few queues, and a service that keeps them busy: does RPS
//! help or hurt?

use anyhow::{Context as _, Result};
use netsilo_core::change::{Change, NetdevIdentity, knobs};
use netsilo_core::experiment::{Kind, Load, Setting};
use netsilo_core::host::Netdev;
use netsilo_core::load::Test;

use super::experiment::{Defined, Made, With};
use super::loads::Requests;
use super::settings;
use crate::exit::Exit;
use crate::out;

/// The service is near saturation when this share of the CPUs' time is used.
const BUSY: f64 = 0.9;

/// No more work than that is tried for each request.
const MOST_WORK_USECS: u64 = 5000;

/// Arguments of `netsilo bench rps-guest`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    with: With,
    #[command(flatten)]
    loads: Requests,
    /// CPU time that the service uses for each request [default: what keeps 90% of the CPUs busy]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    work_usecs: Option<u64>,
}

/// Makes it, or goes on with it.
pub(super) fn run(args: &Args) -> Result<Exit> {
    args.with.run(Kind::RpsGuest, |made| define(args, made))
}

fn define(args: &Args, made: &mut Made<'_>) -> Result<Defined> {
    let loads = args.loads.loads(&args.with.common, &[Test::TcpRr], &[256], &[64]);
    let load = loads.last().context("no load is named")?;
    made.how.work_usecs = match args.work_usecs {
        Some(usecs) => usecs,
        None => work_that_saturates(made, load)?,
    };
    let (hardware, seen) = (&args.with.hardware, &made.seen);
    let mut all = vec![settings::none("none")];
    let rps = hardware.rps(hardware.goal(), seen);
    all.extend(settings::of("rps", "protocol work spread over all cpus by software", &rps, seen)?);
    let rfs = hardware.rfs(hardware.goal(), seen);
    all.extend(settings::of("rps+rfs", "the same, and flows to their readers", &rfs, seen)?);
    all.extend(queues(hardware.netdevs(&seen.after)));
    Ok(Defined { settings: all, loads })
}

/// The least work that keeps the machine busy, doubling from nothing.
fn work_that_saturates(made: &mut Made<'_>, load: &Load) -> Result<u64> {
    let mut usecs = 0;
    loop {
        made.how.work_usecs = usecs;
        let busy = made.busy(load)?;
        out::note(&format!(
            "{usecs} us of work for each request keep {:.0}% of the cpus busy",
            busy * 100.0
        ));
        if busy >= BUSY || usecs * 2 > MOST_WORK_USECS {
            return Ok(usecs);
        }
        usecs = (usecs * 2).max(5);
    }
}

/// As many queues as the device has.
fn queues<'a>(netdevs: impl Iterator<Item = &'a Netdev>) -> Option<Setting> {
    let more = |netdev: &Netdev| {
        let channels = netdev.ethtool.as_ref()?.channels.value()?;
        let combined = channels.combined.filter(|combined| combined.current < combined.max)?;
        let old = channels.settings();
        let new = old.clone().with("combined", combined.max);
        let knob = knobs::Channels { netdev: NetdevIdentity::of(netdev) };
        let reason = format!("{} queues in place of {}", combined.max, combined.current);
        Some(Change::new(knob, old, new, reason))
    };
    let changes = netdevs.filter_map(more).collect();
    let what = "as many queues as the device has".into();
    settings::unless_void(Setting { name: "queues".into(), what, changes, command: None })
}
