//! `make predict-blind`: settings and loads that no fit has seen, predicted first, then measured.
//!
//! Each load is a file in a folder. It is written with the predictions, and once more with what was
//! measured: a run can be interrupted, and goes on where it ended.

mod draw;
mod row;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::blind::draw::draw;
use crate::blind::row::{Measured, Row};
use crate::say::say;
use crate::wire::Wire;

/// Arguments of `blind`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Blind {
    /// Pairs of a setting and a load: five settings for each load
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(5..=200))]
    pairs: u16,
    /// Seed of loads and settings
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rounds of each load, in which each setting is measured once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..))]
    rounds: u16,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// Folder of predictions and measurements; a run goes on with what it lacks
    #[arg(long, value_name = "DIR", default_value = "target/blind")]
    keep: PathBuf,
    /// Begin no load after this many seconds; the same command then goes on
    #[arg(long, value_name = "SECONDS")]
    at_most: Option<u64>,
    /// Measure nothing: print what the folder has
    #[arg(long)]
    report: bool,
}

/// Predicts and measures what the folder lacks, and prints the table.
pub(crate) fn run(args: &Blind) -> Result<()> {
    let loads = usize::from(args.pairs) / draw::SETTINGS;
    std::fs::create_dir_all(&args.keep).with_context(|| format!("{:?}", args.keep))?;
    let file = |number: usize| args.keep.join(format!("{}-{number:03}.json", args.seed));
    let begun = Instant::now();
    let is_over = |begun: Instant| {
        args.at_most.is_some_and(|most| begun.elapsed() >= Duration::from_secs(most))
    };
    for number in 0..loads {
        if args.report || is_over(begun) || is_measured(&file(number))? {
            continue;
        }
        let row = predict_and_measure(args, number, &file(number))?;
        say(&format!("measured: {}", row.load.name()))?;
    }
    let files: Vec<PathBuf> = (0..loads).map(file).filter(|path| path.exists()).collect();
    let rows: Vec<Row> = files.iter().map(|path| Row::read(path)).collect::<Result<_>>()?;
    let rows: Vec<Row> = rows.into_iter().filter(|row| row.measured.is_some()).collect();
    say(&table::render(&rows, loads))
}

fn is_measured(path: &Path) -> Result<bool> {
    Ok(path.exists() && Row::read(path)?.measured.is_some())
}

/// One load: what netsilo sees of it, the predictions, and then the measurement.
fn predict_and_measure(args: &Blind, number: usize, path: &Path) -> Result<Row> {
    let (load, settings) = draw(args.seed, number);
    let wire = Wire::new()?;
    let kthread = wire.threaded()?;
    let server = wire.server(load.work_us)?;
    let present = settings[0];
    present.apply(&wire, &kthread)?;
    let bundle = path.with_extension("tar.zst");
    wire.capture(&load.arguments(), &bundle)?;
    let mut row = Row::predicted(load, &settings, &bundle)?;
    // The prediction is on the disk before anything is measured.
    row.write(path)?;
    let mut measured = Measured::new(settings.len());
    for round in 0..usize::from(args.rounds) {
        for turn in 0..settings.len() {
            let at = (round + turn) % settings.len();
            settings[at].apply(&wire, &kthread)?;
            measured.rates[at].push(wire.rate(&row.load.arguments(), args.seconds)?);
        }
    }
    drop(server);
    row.measured = Some(measured);
    row.write(path)?;
    Ok(row)
}
