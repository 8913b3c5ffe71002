//! `netsilo capture`: saves everything that netsilo reads as a bundle for `--from`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_model::snapshot::observation::ObservationDocument;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::bundle::{Addresses, Bundle, Capture, Manifest};
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::look::{wait_unless_stopped, wait_with_progress};
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::words::plural;

const CANNOT_WRITE: &str = "cannot write the bundle";

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
        value_parser = crate::args::parse::counting_time
    )]
    interval: Duration,
    /// Save consecutive windows of the interval's length for this long, or until Ctrl-C; netsilo
    /// top --from plays them
    #[arg(long = "for", value_name = "TIME", value_parser = crate::args::parse::counting_time)]
    time: Option<Duration>,
    /// Observe without eBPF: attribute TCP only, by sock_diag
    #[arg(long)]
    no_bpf: bool,
    /// Keep hardware addresses, addresses and ports of flows, and the host name [default: replaced]
    #[arg(long)]
    with_addresses: bool,
    /// Print the bundle's manifest as JSON
    #[arg(short, long)]
    json: bool,
    /// Print each window as one line of JSON for plan --ndjson and check --ndjson, and write no
    /// bundle
    #[arg(long, conflicts_with_all = ["output", "json"])]
    ndjson: bool,
}

/// Observes, saves, and lists what the bundle contains.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let counting = if args.no_bpf { CountingMode::WithoutBpf } else { CountingMode::Continuous };
    let addresses = if args.with_addresses { Addresses::Keep } else { Addresses::Replace };
    let (capture, release) = match args.time {
        None => window(args.interval, counting)?,
        Some(time) => windows(args, time, counting)?,
    };
    if args.ndjson {
        let bundle = capture.reopen(&release, addresses).context("cannot read the capture")?;
        return print_windows(bundle);
    }
    let manifest = capture.write(&args.output, &release, addresses).context(CANNOT_WRITE)?;
    if args.json {
        out::json(&manifest)?;
        return Ok(Exit::Done);
    }
    out::note(&format!("{} contains", args.output.display()));
    if manifest.windows > 1 {
        let windows = plural(manifest.windows, "window");
        out::note(&format!(
            "  {windows}: netsilo top --from plays them, other commands treat them as one"
        ));
    }
    for line in &manifest.holds {
        out::note(&format!("  {line}"));
    }
    Ok(Exit::Done)
}

/// Prints each window on a separate line.
fn print_windows(mut bundle: Bundle) -> Result<Exit> {
    while let Some(observation) = bundle.next_window()? {
        if !out::next(&out::line(&ObservationDocument::new(observation))?) {
            break;
        }
    }
    Ok(Exit::Printed)
}

/// Observes this machine for `interval` and saves what is read.
pub fn save(
    output: &Path,
    interval: Duration,
    counting: CountingMode,
    addresses: Addresses,
) -> Result<Manifest> {
    let (capture, release) = window(interval, counting)?;
    capture.write(output, &release, addresses).context(CANNOT_WRITE)
}

/// Observes one window. Returns what was read, and the kernel's release.
fn window(interval: Duration, counting: CountingMode) -> Result<(Capture, String)> {
    let mut capture = Capture::start()?;
    let live = Root::live();
    let mut observer =
        Observer::start_with(&capture.sample(&live)?, counting, Options::of_check())?;
    let observation = observer.next(&capture.sample(&live)?, interval, wait_with_progress)?;
    capture.window(&observation.attribution);
    Ok((capture, observation.after.machine.release))
}

/// Observes consecutive windows until the time is over, the user presses Ctrl-C, or the bundle is
/// full.
fn windows(args: &Args, time: Duration, counting: CountingMode) -> Result<(Capture, String)> {
    let windows = time.div_duration_f64(args.interval).ceil() as u64;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    let (mut capture, live) = (Capture::start()?, Root::live());
    let mut observer =
        Observer::start_with(&capture.sample(&live)?, counting, Options::of_check())?;
    let mut release = String::new();
    let bar = bar(windows);
    for window in 0..windows {
        let wait = |time| wait_unless_stopped(time, &stop);
        let observation = observer.next(&capture.sample(&live)?, args.interval, wait)?;
        if stop.load(Ordering::Relaxed) && window > 0 {
            break;
        }
        capture.window(&observation.attribution);
        release = observation.after.machine.release;
        bar.inc(1);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if capture.is_full() && window + 1 < windows {
            out::note(&format!(
                "{} fill the bundle: it ends here",
                plural(window as usize + 1, "window")
            ));
            break;
        }
    }
    bar.finish_and_clear();
    Ok((capture, release))
}

fn bar(windows: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("window {pos} of {len} {wide_bar} {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(windows).with_style(style)
}
