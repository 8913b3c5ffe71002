//! `netsilo-bench run`: generates one load and reports its rate and cost.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use netsilo::tell::exit::Exit;
use netsilo::tell::out;
use netsilo::views::units;
use netsilo_load as load;
use netsilo_load::{Options, Tick};
use netsilo_trial::traffic::{Spec, Test};

use crate::load_args::{LoadArgs, address};
use crate::view;

/// Arguments of `netsilo-bench run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address of the machine where netsilo-bench serve runs
    #[arg(value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    server: String,
    #[command(flatten)]
    load: LoadArgs,
    /// Measure interrupt times with eBPF on both machines; this costs a little CPU time
    #[arg(long)]
    bpf: bool,
    /// Print only the transactions or received bytes per second (for netsilo ab)
    #[arg(long, conflicts_with = "json")]
    rate_only: bool,
    /// Print the whole result as JSON
    #[arg(short, long)]
    json: bool,
}

/// Makes the load.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let server = address(&args.server)?;
    let spec = args.load.spec();
    let bar = progress(&spec);
    let made = load::run(&spec, server, Options { bpf: args.bpf }, &mut |tick| {
        tell(&bar, &spec, tick);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let made = made?;
    if args.rate_only {
        let figures = made.figures();
        let rate = figures.transactions_per_s.unwrap_or(figures.bytes_per_s);
        out::text(&format!("{rate:.1}\n"));
    } else if args.json {
        out::json(&made)?;
    } else {
        out::text(&view::render(&made));
    }
    Ok(Exit::Printed)
}

/// A progress bar on stderr. It is hidden for loads of at most two seconds.
fn progress(spec: &Spec) -> ProgressBar {
    if spec.duration + spec.warm_up <= Duration::from_secs(2) {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(spec.duration.as_millis() as u64).with_style(style)
}

fn tell(bar: &ProgressBar, spec: &Spec, tick: Tick) {
    let Some(counted) = tick.counted else { return bar.set_message("warming up") };
    bar.set_position(counted.as_millis() as u64);
    let rate = tick.last_second as f64;
    bar.set_message(match spec.test {
        test if test.has_responses() => format!("{} transactions/s", units::count(rate)),
        Test::Forward => format!("{} packets/s", units::count(rate / spec.send_bytes as f64)),
        _ => units::bytes_per_s(rate),
    });
}
