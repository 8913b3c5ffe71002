//! `netsilo calibrate`: measures the weights of the cost model on this machine and stores them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_model::cost::calibration::Measured;
use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::machine::topology::Distance;
use netsilo_sys::cost::measure;
use netsilo_sys::cost::store::{self, COSTS_DIR, Measurement};
use netsilo_sys::files::root::Root;
use netsilo_sys::read::machine::machine_identity;
use netsilo_sys::read::topology;

use crate::tell::exit::Exit;
use crate::tell::out;

/// Default measuring time.
pub(crate) const TIME: Duration = Duration::from_secs(5);

/// Arguments of `netsilo calibrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time to measure, from 100ms to 5m; doubled if the machine is busy [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = bounded)]
    time: Option<Duration>,
    /// Print the measurement without storing it
    #[arg(long)]
    dry_run: bool,
    /// Folder of costs.json
    #[arg(long, value_name = "DIR", default_value = COSTS_DIR)]
    costs_dir: PathBuf,
    /// Print the measurement as JSON, as it is stored
    #[arg(short, long)]
    json: bool,
}

/// Parses a measuring time that is long enough for every pair of CPUs.
fn bounded(text: &str) -> Result<Duration, String> {
    let time = crate::args::parse::duration(text)?;
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(300));
    if (least..=most).contains(&time) {
        Ok(time)
    } else {
        Err("choose between 100ms and 5m".into())
    }
}

/// Measures, prints and stores.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let measurement = measure(args.time.unwrap_or(TIME))?;
    if args.json {
        out::json(&measurement)?;
    } else {
        out::text(&render(&measurement));
    }
    if args.dry_run {
        return Ok(Exit::Printed);
    }
    let path = store::store(&args.costs_dir, &measurement)?;
    out::note(&format!("stored in {}: plan, apply and run use it now", path.display()));
    Ok(Exit::Done)
}

/// Measures this machine for about this long. Above two seconds a progress bar is shown.
pub(crate) fn measure(time: Duration) -> Result<Measurement> {
    let root = Root::live();
    let machine = machine_identity(&root).context("cannot identify this machine")?;
    let topology = topology::topology(&root).context("cannot read this machine's cpus")?;
    let cpus = measure::usable_cpus(&topology)?;
    let bar = progress(time);
    let measured = measure::calibrate(&topology, &cpus, time, &mut |share| {
        bar.set_position((share * 100.0) as u64);
    });
    bar.finish_and_clear();
    let when = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    Ok(Measurement::new(when, machine, measured?))
}

/// A progress bar on stderr; none if the work takes at most two seconds.
fn progress(time: Duration) -> ProgressBar {
    if time <= Duration::from_secs(2) {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("measuring {wide_bar} {elapsed}");
    ProgressBar::new(100).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Renders the measured and the default weights, with notes.
fn render(measurement: &Measurement) -> String {
    let Measurement { machine, measured, costs, .. } = measurement;
    let guest = machine.virtual_machine == Some(true);
    let kind = if guest { ", virtual machine" } else { "" };
    let mut text = format!(
        "{} {}, {}, {}{kind}\n\n",
        machine.hostname,
        machine.kernel,
        machine.cpu_model,
        crate::tell::words::plural(machine.cpus, "cpu")
    );
    let _ = writeln!(text, "{}", table(measurement, &store::default_costs(machine)));
    let here = measured.wakeup.get(&Distance::SameCpu);
    if let Some(here) = here {
        let _ = writeln!(
            text,
            "\na wakeup on the same cpu: {} of the waker's time, {} until the woken thread runs",
            time(Some(&here.waker)),
            time(Some(&here.latency)),
        );
    }
    if let CostSource::Measured { defaulted, .. } = &costs.source
        && !defaulted.is_empty()
    {
        let classes: Vec<&str> = defaulted.iter().map(|distance| distance.label()).collect();
        let _ = writeln!(
            text,
            "note: not measurable here, so these keep their default weights: {}",
            classes.join(", ")
        );
    }
    let noise = measured.noise();
    if !noise.is_empty() {
        let classes: Vec<&str> = noise.iter().map(|distance| distance.label()).collect();
        let _ = writeln!(
            text,
            "note: refused as noise (a line of more than 5 us, an ipi of more than 200 us, or a \
             spread wider than the time; an emulated or busy machine): {}",
            classes.join(", ")
        );
    }
    if guest {
        let _ = writeln!(
            text,
            "note: the host may move a virtual machine's cpus, and the real caches may differ from \
             those shown"
        );
    }
    if measured.is_wide() {
        let _ = writeln!(
            text,
            "note: the spread is wide: this machine was busy, or its pairs of cpus differ; measure \
             again when it is idle"
        );
    }
    text
}

/// One line per distance.
fn table(measurement: &Measurement, defaults: &Costs) -> Table {
    let Measurement { measured, costs, .. } = measurement;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "distance",
        "pairs",
        "line",
        "default",
        "ipi",
        "default",
        "waker",
        "interrupted",
        "latency",
    ]);
    for distance in Distance::ALL.into_iter().filter(|distance| *distance != Distance::SameCpu) {
        let line = measured.transfer.get(&distance);
        let wakeup = measured.wakeup.get(&distance);
        let ipi = measured.ipi_ns(distance).map(|_| nanoseconds(costs.ipi_ns.at(distance)));
        table.add_row([
            distance.label().to_owned(),
            line.map_or_else(|| "-".into(), |it| it.pairs.to_string()),
            time(line),
            nanoseconds(defaults.line_ns.at(distance)),
            ipi.unwrap_or_else(|| "-".into()),
            nanoseconds(defaults.ipi_ns.at(distance)),
            time(wakeup.map(|it| &it.waker)),
            time(measured.interrupted.get(&distance)),
            time(wakeup.map(|it| &it.latency)),
        ]);
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// `61 ns ±4`: the median and half the distance between the quartiles.
fn time(measured: Option<&Measured>) -> String {
    measured.map_or_else(
        || "-".into(),
        |it| format!("{} ±{:.0}", nanoseconds(it.median_ns), (it.spread_ns / 2.0).ceil()),
    )
}

fn nanoseconds(ns: f64) -> String {
    format!("{ns:.0} ns")
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::calibration::{Calibration, MachineIdentity, Wakeup};

    use super::*;

    #[test]
    fn what_was_measured_stands_beside_the_table_and_gaps_are_named() {
        let time =
            |median_ns| Measured { median_ns, spread_ns: median_ns / 2.0, pairs: 4, rounds: 5 };
        let wakeup = |waker| Wakeup { waker: time(waker), latency: time(waker * 3.0) };
        let measured = Calibration {
            transfer: [(Distance::Llc, time(61.0)), (Distance::Remote, time(140.0))].into(),
            wakeup: [
                (Distance::SameCpu, wakeup(600.0)),
                (Distance::Llc, wakeup(2100.0)),
                (Distance::Remote, wakeup(2600.0)),
            ]
            .into(),
            interrupted: [(Distance::Llc, time(700.0)), (Distance::Remote, time(800.0))].into(),
        };
        let machine = MachineIdentity {
            hostname: "db1".into(),
            cpu_model: "Some CPU".into(),
            cpus: 8,
            kernel: "6.12.1".into(),
            virtual_machine: Some(true),
        };
        let measurement = Measurement::new("2026-01-02T03:04:05Z".into(), machine, measured);
        insta::assert_snapshot!(render(&measurement));
    }
}
