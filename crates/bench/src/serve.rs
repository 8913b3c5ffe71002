//! `netsilo-bench serve`: answers loads until interrupted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use netsilo::tell::exit::Exit;
use netsilo::tell::out;
use netsilo::tell::words::plural;
use netsilo::views::units;
use netsilo_load::{Bind, Event, MEMORY, PORT, Server};
use netsilo_model::machine::cpuset::CpuSet;

use crate::load_args::cpus;

/// Arguments of `netsilo-bench serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen on; anyone who can reach it can put load on this machine
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// Port of the control connection; 0 takes any free one. Data uses ports that the kernel
    /// chooses
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    /// Microseconds of CPU time to burn in user mode for each request and each read of a stream,
    /// like a real service
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000)
    )]
    work_usecs: u64,
    /// Number of threads for multiplexed instances [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Run each thread on one of these CPUs only, in rotation [default: on all]
    #[arg(long, value_name = "CPUS", value_parser = CpuSet::parse_list)]
    cpus: Option<CpuSet>,
    /// Memory in MiB for the loads of all clients together; a load that needs more is refused
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = MEMORY >> 20,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20)
    )]
    memory: u64,
    /// Generate no loads. Without this option, another netsilo-bench may request a load against its
    /// own machine
    #[arg(long)]
    only_answer: bool,
    /// Also generate loads against this address, whoever requests them
    #[arg(long, value_name = "ADDRESS", conflicts_with = "only_answer")]
    may_load: Vec<IpAddr>,
}

/// Answers loads until a signal.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let bind = Bind {
        address: SocketAddr::new(args.bind, args.port),
        work_usecs: args.work_usecs,
        workers: args.workers.map_or_else(cpus, usize::from),
        pinned: args.cpus.iter().flat_map(CpuSet::iter).collect(),
        memory: args.memory << 20,
    };
    let server = Server::bind(bind)?;
    let server =
        if args.only_answer { server } else { server.with_generator(args.may_load.clone()) };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    let address = server.address().context("cannot read the listening address")?;
    let who = if address.ip().is_loopback() {
        "reachable from this machine only; use --bind 0.0.0.0 for others"
    } else {
        "reachable from other machines"
    };
    out::text(&format!("listening on {address}, {who}\n"));
    server.serve(&stop, &|event| match event {
        Event::Began(from, spec) => {
            out::note(&format!("{from}: {} of {}", plural(spec.instances, "instance"), spec.test));
        }
        Event::Served(from, totals) => {
            let (requests, bytes) =
                (units::count(totals.requests as f64), units::count(totals.received_bytes as f64));
            out::note(&format!("{from}: done, {requests} requests, {bytes} bytes received"));
        }
        Event::Making(to, spec) => {
            out::note(&format!(
                "generating a load against {to}: {} of {}",
                plural(spec.instances, "instance"),
                spec.test
            ));
        }
        Event::Made(to, totals) => {
            let (requests, bytes) =
                (units::count(totals.requests as f64), units::count(totals.sent_bytes as f64));
            out::note(&format!(
                "generated a load against {to}: {requests} requests, {bytes} bytes sent"
            ));
        }
        Event::Ended { from, why, others: 0 } => out::note(&format!("{from}: {why}")),
        Event::Ended { from, why, others } => {
            out::note(&format!("{from} and {others} other clients: {why}"));
        }
    })?;
    Ok(Exit::Done)
}
