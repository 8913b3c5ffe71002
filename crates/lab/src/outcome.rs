//! `make bench-outcome`: what the default chooses, held to what measured best.

mod args;
mod guest;
mod outcomes;
mod rank;
mod record;
mod recorded;
mod regret;
mod shapes;
mod table;
mod times;
mod vectors;
mod veth;
mod veth_loads;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use netsilo_model::cost::assumed::Assumed;

use crate::outcome::args::{Measure, Part};
use crate::outcome::outcomes::Outcomes;
use crate::outcome::recorded::Recorded;
use crate::say::{progress, say};

/// Arguments of `outcome`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Outcome {
    #[command(flatten)]
    measure: Measure,
    /// Measure only this; may be repeated [default: everything]
    #[arg(long = "part", value_enum, value_name = "PART")]
    parts: Vec<Part>,
    /// Save what was measured, and a bundle of each start, in a folder for each part in this one; a
    /// run goes on with the loads that it lacks [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Measure nothing: ask the default about these saved outcomes
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["keep", "parts", "rounds", "seconds", "looks", "load", "at_most"]
    )]
    from: Vec<PathBuf>,
}

/// Measures, or reads what was measured, and prints tables.
pub(crate) fn run(args: &Outcome) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let mut folders = args.from.clone();
    if folders.is_empty() {
        folders = record(args, &args.keep.clone().unwrap_or_else(|| temporary.path().to_owned()))?;
    }
    let all: Vec<Outcomes> = folders.iter().map(|it| Outcomes::read(it)).collect::<Result<_>>()?;
    for outcomes in &all {
        say(&tables(outcomes)?.join("\n\n"))?;
        say("")?;
    }
    let names = folders.iter().map(|it| it.file_name().unwrap_or_default().to_string_lossy());
    let names: Vec<_> = names.collect();
    let rated: Vec<(&str, &Outcomes)> = (names.iter().map(AsRef::as_ref).zip(&all))
        .filter(|(_, outcomes)| outcomes.counted().is_none())
        .collect();
    if rated.len() > 1 {
        say(&format!("{}\n", table::recordings(&rated, Assumed::default())?))?;
    }
    if rated.is_empty() { Ok(()) } else { say(&table::sensitivity(&all)?) }
}

/// What was measured in one part, and what the default chooses there.
fn tables(outcomes: &Outcomes) -> Result<Vec<String>> {
    let choices = table::choices(outcomes, Assumed::default())?;
    let measured = table::measured(outcomes, Assumed::default());
    Ok([choices].into_iter().chain(measured).collect())
}

/// Measures; returns the folders with outcomes.
fn record(args: &Outcome, keep: &std::path::Path) -> Result<Vec<PathBuf>> {
    let begun = Instant::now();
    let mut folders = Vec::new();
    let wanted = |part: &Part| args.parts.is_empty() || args.parts.contains(part);
    for part in Part::value_variants().iter().filter(|part| wanted(part)) {
        let folder = keep.join(part.folder());
        std::fs::create_dir_all(&folder).with_context(|| format!("{folder:?}"))?;
        record::record(*part, &args.measure, &folder, begun).with_context(|| part.folder())?;
        if Recorded::read(&folder)?.is_some() {
            folders.push(folder);
        }
    }
    progress(&format!("done after {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0));
    Ok(folders)
}

#[cfg(test)]
mod tests;
