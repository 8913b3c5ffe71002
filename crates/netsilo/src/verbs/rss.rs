//! `netsilo rss`: predicts the rx queue of a flow, and shows how RSS spreads flows.

use anyhow::Result;
use netsilo_decide::report::rss::{FlowQueue, NetdevRss, find_queue, netdev_rss};
use netsilo_model::snapshot::flow::FlowSpec;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use serde::Serialize;

use crate::args::look;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::versioned::Versioned;
use crate::views;

/// Arguments of `netsilo rss`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Predict the rx queue of a flow; refuse if current traffic contradicts the model
    Where(WhereArgs),
    /// Show hash, key, fields and indirection table, how well current flows match the model, and
    /// how evenly they load the queues
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct WhereArgs {
    /// Flow as it arrives, sender first: 10.0.0.1:40000-10.0.0.2:443/tcp,
    /// [2001:db8::1]:53-[2001:db8::2]:53/udp
    #[arg(value_name = "FLOW")]
    flow: FlowSpec,
    #[command(flatten)]
    netdevs: NetdevArgs,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Also list the flows, heaviest first
    #[arg(long)]
    flows: bool,
    #[command(flatten)]
    netdevs: NetdevArgs,
}

#[derive(Debug, clap::Args)]
struct NetdevArgs {
    /// Show only this netdev [default: all that have an indirection table]
    #[arg(long, value_name = "DEV")]
    netdev: Option<String>,
    #[command(flatten)]
    observe: look::ObserveArgs,
    /// Print the result as JSON
    #[arg(short, long)]
    json: bool,
}

/// The queue of a flow on each netdev.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FlowQueues {
    netdevs: Vec<FlowQueue>,
}

/// RSS of each netdev.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RssOfNetdevs {
    pub(crate) netdevs: Vec<NetdevRss>,
}

/// Observes and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    match &args.verb {
        Verb::Where(args) => predict(args),
        Verb::Show(args) => show(args),
    }
}

fn predict(args: &WhereArgs) -> Result<Exit> {
    let observation = args.netdevs.observe.observe_with(Options::for_findings())?;
    let netdevs = args.netdevs.netdevs(&observation)?;
    let netdevs: Vec<_> =
        netdevs.iter().map(|netdev| find_queue(&observation, netdev, args.flow)).collect();
    let is_known = netdevs.iter().any(|place| place.predicted.is_some() || place.seen_on.is_some());
    if args.netdevs.json {
        out::json(&Versioned::first(FlowQueues { netdevs }))?
    } else {
        out::text(&views::rss::places(&netdevs))
    }
    Ok(if is_known { Exit::Printed } else { Exit::Refused })
}

fn show(args: &ShowArgs) -> Result<Exit> {
    let observation = args.netdevs.observe.observe_with(Options::for_findings())?;
    let netdevs = args.netdevs.netdevs(&observation)?;
    let netdevs: Vec<_> = netdevs.iter().map(|netdev| netdev_rss(&observation, netdev)).collect();
    if args.netdevs.json {
        out::json(&Versioned::first(RssOfNetdevs { netdevs }))?
    } else {
        out::text(&views::rss::shown(&netdevs, args.flows))
    }
    Ok(Exit::Printed)
}

impl NetdevArgs {
    /// Returns the named netdev, or all that have an indirection table.
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
            Some(name) => format!("there is no netdev {name}; `ip link` lists them"),
            None => "no netdev shows an indirection table: --netdev NAME says why".to_owned(),
        };
        Err(ExitError(Exit::Refused, why).into())
    }
}
