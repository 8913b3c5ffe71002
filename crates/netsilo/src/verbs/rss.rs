//! `netsilo rss`: where a flow will arrive, and how RSS spreads the flows that do.

use anyhow::Result;
use netsilo_decide::report::rss::{netdev_rss, where_is};
use netsilo_model::snapshot::flow::Asked;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;

use crate::args::look;
use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::views;

/// Arguments of `netsilo rss`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Reckon the rx queue of a flow, if the flows that arrive now bear the reckoning out
    Where(Where),
    /// Show hash, key, fields and table, how the flows that arrive fit them, and how evenly they
    /// load the queues
    Show(Show),
}

#[derive(Debug, clap::Args)]
struct Where {
    /// The flow as it arrives, sender first: 10.0.0.1:40000-10.0.0.2:443/tcp,
    /// [2001:db8::1]:53-[2001:db8::2]:53/udp
    #[arg(value_name = "FLOW")]
    flow: Asked,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Also list the flows, the heaviest first
    #[arg(long)]
    flows: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Only this netdev; else all that have an indirection table
    #[arg(long, value_name = "NAME")]
    netdev: Option<String>,
    #[command(flatten)]
    observe: look::Look,
    /// Print JSON
    #[arg(short, long)]
    json: bool,
}

/// Looks and tells.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    match &args.verb {
        Verb::Where(args) => reckon(args),
        Verb::Show(args) => show(args),
    }
}

fn reckon(args: &Where) -> Result<Exit> {
    let observation = args.common.observe.observe_with(Options::for_findings())?;
    let netdevs = args.common.netdevs(&observation)?;
    let places: Vec<_> =
        netdevs.iter().map(|netdev| where_is(&observation, netdev, args.flow)).collect();
    match args.common.json {
        true => out::json(&places)?,
        false => out::text(&views::rss::places(&places))?,
    }
    let told = places.iter().any(|place| place.predicted.is_some() || place.seen_on.is_some());
    Ok(if told { Exit::Ok } else { Exit::Refused })
}

fn show(args: &Show) -> Result<Exit> {
    let observation = args.common.observe.observe_with(Options::for_findings())?;
    let netdevs = args.common.netdevs(&observation)?;
    let shown: Vec<_> = netdevs.iter().map(|netdev| netdev_rss(&observation, netdev)).collect();
    match args.common.json {
        true => out::json(&shown)?,
        false => out::text(&views::rss::shown(&shown, args.flows))?,
    }
    Ok(Exit::Ok)
}

impl Common {
    /// The netdev asked for, or all that have an indirection table.
    fn netdevs<'a>(&self, observation: &'a Observation) -> Result<Vec<&'a Netdev>> {
        let all = observation.after.netdevs.iter();
        let has_table = |netdev: &Netdev| {
            let rss = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rss.value());
            rss.is_some_and(|rss| !rss.indirection.is_empty())
        };
        let found: Vec<&Netdev> = match &self.netdev {
            Some(name) => all.filter(|netdev| netdev.name == *name).collect(),
            None => all.filter(|netdev| has_table(netdev)).collect(),
        };
        if !found.is_empty() {
            return Ok(found);
        }
        let why = match &self.netdev {
            Some(name) => format!("there is no netdev {name}: ip link lists them"),
            None => {
                "no netdev shows an indirection table: --netdev tells why one does not".to_owned()
            }
        };
        Err(Stop(Exit::Refused, why).into())
    }
}
