//! `netsilo capture`: saves everything that netsilo reads as a bundle for `--from`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::bundle::{Addresses, Capture, Manifest};
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};

use crate::args::look::wait_with_progress;
use crate::tell::exit::Exit;
use crate::tell::out;

/// Arguments of `netsilo capture`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File to write the bundle to
    #[arg(short, long, value_name = "FILE", default_value = "host.tar.zst")]
    output: PathBuf,
    /// Time to observe the machine (500ms, 2s, 1m)
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "1s",
        value_parser = crate::args::parse::duration
    )]
    interval: Duration,
    /// Observe without eBPF: attribute TCP only, by sock_diag
    #[arg(long)]
    no_bpf: bool,
    /// Keep hardware addresses, addresses and ports of flows, and the host name [default: replaced]
    #[arg(long)]
    with_addresses: bool,
    /// Print the bundle's manifest as JSON
    #[arg(short, long)]
    json: bool,
}

/// Observes, saves, and lists what the bundle contains.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let counting = if args.no_bpf { CountingMode::WithoutBpf } else { CountingMode::Continuous };
    let addresses = if args.with_addresses { Addresses::Keep } else { Addresses::Replace };
    let manifest = save(&args.output, args.interval, counting, addresses)?;
    if args.json {
        out::json(&manifest)?;
        return Ok(Exit::Ok);
    }
    out::note(&format!("{} contains", args.output.display()));
    for line in &manifest.holds {
        out::note(&format!("  {line}"));
    }
    Ok(Exit::Ok)
}

/// Observes this machine for `interval` and saves what is read.
pub(crate) fn save(
    output: &Path,
    interval: Duration,
    counting: CountingMode,
    addresses: Addresses,
) -> Result<Manifest> {
    let mut capture = Capture::start()?;
    let live = Root::live();
    let mut observer =
        Observer::start_with(&capture.sample(&live)?, counting, Options::for_findings())?;
    let observation = observer.next(&capture.sample(&live)?, interval, wait_with_progress)?;
    let release = &observation.after.machine.release;
    capture
        .write(output, &observation.attribution, release, addresses)
        .context("cannot write the bundle")
}
