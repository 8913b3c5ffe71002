//! `make predict-blind`: settings and loads that no fit has seen, predicted first, then measured.
//!
//! Over a veth of this machine's kernel these are rates, in a guest counts ([`guest`]).
//!
//! Each load is a file in a folder. It is written with the predictions, and once more with what was
//! measured: a run can be interrupted, and goes on where it ended.

mod args;
mod draw;
mod guest;
mod row;
mod table;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};

pub(crate) use crate::blind::args::Blind;
use crate::blind::draw::{VethSetting, draw};
use crate::blind::row::{Measured, Row};
use crate::say::say;
use crate::wire::Wire;

/// Predicts and measures what the folder lacks, and prints the table.
pub(crate) fn run(args: &Blind) -> Result<()> {
    std::fs::create_dir_all(&args.keep).with_context(|| format!("{:?}", args.keep))?;
    if args.guest {
        return guest::run(args);
    }
    let loads = usize::from(args.pairs) / draw::SETTINGS;
    let file = |number: usize| args.keep.join(format!("{}-{number:03}.json", args.seed));
    let begun = Instant::now();
    for number in 0..loads {
        if args.report || args.is_over(begun) || is_measured(&file(number))? {
            continue;
        }
        let row = predict_and_measure(args, number, &file(number))?;
        say(&format!("measured: {}", row.load.name()))?;
    }
    let files: Vec<PathBuf> = (0..loads).map(file).filter(|path| path.exists()).collect();
    let read = |path: &PathBuf| -> Result<Row> {
        let row = Row::read(path)?;
        if !args.again {
            return Ok(row);
        }
        let settings: Vec<VethSetting> = row.settings.iter().map(|it| it.setting).collect();
        let again = Row::predicted(row.load, &settings, &path.with_extension("tar.zst"))?;
        Ok(Row { measured: row.measured, ..again })
    };
    let rows: Vec<Row> = files.iter().map(read).collect::<Result<_>>()?;
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
            measured.rates[at].push(wire.rate(&row.load.arguments(), args.seconds.into())?);
        }
    }
    drop(server);
    row.measured = Some(measured);
    row.write(path)?;
    Ok(row)
}
