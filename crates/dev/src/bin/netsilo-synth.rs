//! `netsilo-synth`: prints the observations of a synthetic fleet, or writes its bundles.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use netsilo_dev::synth::host::Host;
use netsilo_dev::synth::machines::machines;
use netsilo_dev::synth::tree::write_bundle;
use netsilo_model::snapshot::observation::ObservationDocument;

/// Prints the observations of a fleet of synthetic hosts, one line of JSON each, for netsilo plan
/// --ndjson and netsilo check --ndjson.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Number of hosts
    #[arg(long, default_value_t = 100)]
    hosts: u64,
    /// Number of the first host
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Seed: the same seed gives the same fleet
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Give each host 8 queues and 8 CPUs
    #[arg(long)]
    uniform: bool,
    /// Print what each host was made as (kernel, driver, machine, fault) instead of its observation
    #[arg(long)]
    truth: bool,
    /// Write a bundle for each host into this folder, and print their paths; the hosts have the
    /// files of the fixture, and differ only in name and time
    #[arg(
        long,
        value_name = "DIR",
        requires = "fixture",
        conflicts_with_all = ["truth", "uniform"]
    )]
    bundles: Option<PathBuf>,
    /// Folder of a captured tree, such as fixtures/igb-6.12
    #[arg(long, value_name = "DIR", requires = "bundles")]
    fixture: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has everything that it wanted.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "netsilo-synth: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(args: &Args) -> Result<()> {
    let machines = machines()?;
    let mut out = BufWriter::new(io::stdout().lock());
    for number in args.first..args.first.saturating_add(args.hosts) {
        let line = match (&args.bundles, &args.fixture) {
            (Some(folder), Some(fixture)) => {
                let host = format!("host-{number:06}");
                let path = folder.join(format!("{host}.tar.zst"));
                let uptime = fastrand::Rng::with_seed(args.seed ^ number).u64(600..10_000_000);
                write_bundle(fixture, &host, uptime, &path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                path.display().to_string()
            }
            _ => printed(&Host::new(args.seed, number, &machines, args.uniform), args.truth)?,
        };
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

fn printed(host: &Host, truth: bool) -> serde_json::Result<String> {
    if truth {
        return serde_json::to_string(&host.truth);
    }
    serde_json::to_string(&ObservationDocument::new(host.observation()))
}
