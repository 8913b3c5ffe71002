//! `netsilo bench forward`: this machine forwards packets between two others, or drops them early.

use anyhow::{Context as _, Result};
use netsilo_trial::experiment::{Kind, Load};
use netsilo_trial::traffic::{Spec, Test};

use crate::bench::defined::{Definition, Setup};
use crate::bench::early_drop::dropped_early;
use crate::bench::experiment::ExperimentArgs;
use crate::bench::folder::Sender;
use crate::bench::settings::{self, TuningArgs};
use crate::tell::exit::Exit;

/// Arguments of `netsilo bench forward`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sending machine, where bench serve runs with --may-load for the receiver
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "resume")]
    sender: Option<String>,
    /// Receiving machine, where bench serve runs; its address as the sender reaches it through
    /// this machine
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "resume")]
    receiver: Option<String>,
    /// Leave out the load in both directions, which needs --may-load for the sender at the receiver
    #[arg(long)]
    one_way: bool,
    /// Leave out the load that is dropped early, which shows what the rest of the path costs
    #[arg(long)]
    no_drop: bool,
    #[command(flatten)]
    experiment: ExperimentArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    /// Bytes of payload of a datagram
    #[arg(short = 'm', long, value_name = "BYTES", default_value_t = 18)]
    send_bytes: usize,
    /// Number of flows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    instances: usize,
    /// Datagrams per second of each sender [default: as fast as possible]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
}

/// Runs or resumes the experiment.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let sends = |agent: &Option<String>, against: &Option<String>| Sender {
        agent: agent.clone(),
        against: against.clone(),
    };
    let (sender, receiver) = (&args.sender, &args.receiver);
    let senders = match (sender, args.one_way) {
        (None, _) => Vec::new(),
        (_, true) => vec![sends(sender, receiver)],
        (_, false) => vec![sends(sender, receiver), sends(receiver, sender)],
    };
    args.experiment
        .run(Kind::Forward, args.tuning.even_if_owned(), senders, |setup| define(args, setup))
}

fn define(args: &Args, setup: &mut Setup<'_>) -> Result<Definition> {
    let spec = args.experiment.spec(Test::Forward, args.instances, None);
    let spec = Spec { send_bytes: args.send_bytes, rate_per_s: args.rate, ..spec };
    let one_way =
        Load { name: "one way".into(), spec: spec.clone(), senders: 1, early_drop: false };
    let mut loads = vec![one_way.clone()];
    if !args.one_way {
        loads.push(Load { name: "two ways".into(), spec, senders: 2, early_drop: false });
    }
    let (tuning, seen) = (&args.tuning, &setup.observation);
    let first = seen.after.topology.housekeeping().lowest().context("no cpu is available")?;
    let mut all = vec![settings::none("none")];
    let together = format!("all interrupts on cpu {first}");
    all.extend(settings::from_goal("together", &together, &tuning.on(first), seen)?);
    all.extend(settings::from_goal(
        "apart",
        "each queue's interrupt on its own cpu",
        &tuning.affinity(),
        seen,
    )?);
    let rps = tuning.rps(tuning.goal(), seen);
    all.extend(settings::from_goal(
        "rps",
        "RPS over all cpus: protocol work of each flow on the cpu of its hash",
        &rps,
        seen,
    )?);
    if let Some(load) = loads.last() {
        all.extend(settings::netsilo_plan("plan", tuning, setup, load)?);
    }
    setup.counted_netdevs =
        tuning.netdevs(&setup.observation.after).map(|netdev| netdev.name.clone()).collect();
    if !args.no_drop {
        loads.extend(dropped_early(setup, one_way)?);
    }
    Ok(Definition { settings: all, loads })
}
