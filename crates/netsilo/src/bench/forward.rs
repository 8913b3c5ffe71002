//! `netsilo bench forward`: this machine is between two others, and passes on what one sends to the
//! other, or drops it early.

use anyhow::{Context as _, Result};
use netsilo_trial::experiment::{Kind, Load};
use netsilo_trial::traffic::{Spec, Test};

use crate::bench::early_drop::dropped_early;
use crate::bench::experiment::{Common, Defined, Made};
use crate::bench::folder::Sender;
use crate::bench::settings::{self, Hardware};
use crate::tell::exit::Exit;

/// Arguments of `netsilo bench forward`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The machine that sends: its bench serve, which --may-load the receiver
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "resume")]
    from: Option<String>,
    /// The machine that receives: its bench serve, as the sender reaches it through this machine
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "resume")]
    to: Option<String>,
    /// Do not send both ways at once, for which the receiver --may-load the sender
    #[arg(long)]
    one_way: bool,
    /// Do not drop the packets of one way early, to see what the rest of their way costs
    #[arg(long)]
    no_drop: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    hardware: Hardware,
    /// Length of a datagram's payload
    #[arg(short = 'm', long, value_name = "BYTES", default_value_t = 18)]
    send_bytes: usize,
    /// How many flows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    instances: usize,
    /// Datagrams per second of each sender [default: as many as go]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
}

/// Makes it, or goes on with it.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let sender = |agent: &Option<String>, against: &Option<String>| Sender {
        agent: agent.clone(),
        against: against.clone(),
    };
    let senders = match (&args.from, args.one_way) {
        (None, _) => Vec::new(),
        (_, true) => vec![sender(&args.from, &args.to)],
        (_, false) => vec![sender(&args.from, &args.to), sender(&args.to, &args.from)],
    };
    args.common
        .run(Kind::Forward, args.hardware.even_if_owned(), senders, |made| define(args, made))
}

fn define(args: &Args, made: &mut Made<'_>) -> Result<Defined> {
    let spec = args.common.spec(Test::Forward, args.instances, None);
    let spec = Spec { send_bytes: args.send_bytes, rate_per_s: args.rate, ..spec };
    let one_way =
        Load { name: "one way".into(), spec: spec.clone(), senders: 1, early_drop: false };
    let mut loads = vec![one_way.clone()];
    if !args.one_way {
        loads.push(Load { name: "two ways".into(), spec, senders: 2, early_drop: false });
    }
    let (hardware, seen) = (&args.hardware, &made.seen);
    let first = seen.after.topology.housekeeping().lowest().context("no cpu is there")?;
    let mut all = vec![settings::none("none")];
    let together = format!("all interrupts on cpu {first}");
    all.extend(settings::of("together", &together, &hardware.on(first), seen)?);
    all.extend(settings::of(
        "apart",
        "each queue's interrupt on a cpu of its own",
        &hardware.affinity(),
        seen,
    )?);
    let rps = hardware.rps(hardware.goal(), seen);
    all.extend(settings::of(
        "rps",
        "each flow's way through the stack spread over all cpus by software",
        &rps,
        seen,
    )?);
    if let Some(load) = loads.last() {
        all.extend(settings::own("plan", hardware, made, load)?);
    }
    made.counted = hardware.netdevs(&made.seen.after).map(|netdev| netdev.name.clone()).collect();
    if !args.no_drop {
        loads.extend(dropped_early(made, one_way)?);
    }
    Ok(Defined { settings: all, loads })
}
