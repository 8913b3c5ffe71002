//! Experiments of the lab: settings under loads, in rounds of random order.
//!
//! An experiment is a [`Study`]: its loads, and how a setting is made and measured. One loop
//! ([`run::run`]) measures all of them, into one kind of record ([`record`]). Each experiment has
//! tables of its own for what is recorded.

pub(crate) mod record;
mod run;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use crate::experiment::record::{Load, Measured, Recorded, Setting};
use crate::outcome::{self, Outcome};
use crate::peers::{self, Peers};
use crate::predictions::{self, Predictions};
use crate::say::{markdown, say};
use crate::verdicts::{self, Verdicts};

/// Experiments by name.
#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Check the default's choices against what measures best: over veths of this machine's kernel,
    /// and in guests
    Outcome(Outcome),
    /// Measure netsilo beside irqbalance, tuned, perftune and others, under servers that readers
    /// know
    Peers(Peers),
    /// Predict random settings under random loads over a veth, then measure them
    Predictions(Predictions),
    /// Check what `check` says of RPS on a veth against what RPS does there
    Verdicts(Verdicts),
}

/// Arguments of all experiments.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds of each load; each measures every setting once, and the first one twice, in random
    /// order. With fewer than six, ratios have no interval [default: see docs/lab.md]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds of each measurement; in a guest, whole ones [default: see docs/lab.md]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Seed of the random order, and of random loads and settings [default: from the clock; of
    /// random loads, 1]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Measure only loads whose name contains this; may be repeated
    #[arg(long = "load", value_name = "TEXT")]
    loads: Vec<String>,
    /// Save what is measured, with a bundle of each start, in folders of this one; a run goes on
    /// with what they lack [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Measure nothing: print the tables of this saved folder; may be repeated
    #[arg(long, value_name = "DIR", conflicts_with_all = ["keep", "rounds", "seconds", "at_most"])]
    from: Vec<PathBuf>,
    /// Begin no load after this many seconds; the same command with --keep then goes on
    #[arg(long, value_name = "SECONDS")]
    at_most: Option<u64>,
}

/// How long an experiment measures unless its user chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usual {
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
}

/// What is compared, and on which machine.
pub(crate) trait Study {
    /// The folder of its record.
    fn folder(&self) -> &'static str;

    /// The names of all loads.
    fn loads(&self) -> Vec<String>;

    /// The machine, as the record has it.
    fn machine(&mut self) -> Result<String>;

    /// Starts a load.
    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>>;

    /// Takes a fresh machine after a failure for this reason; `false` if there is none.
    fn restart(&mut self, _why: &str) -> bool {
        false
    }
}

/// A load that is running, or that can be.
pub(crate) trait Scene {
    /// Looks at the load, saves bundles in the folder, and says what to measure.
    fn plan(&mut self, folder: &Path) -> Result<Load>;

    /// Makes a setting of the plan.
    fn apply(&mut self, setting: &Setting) -> Result<()>;

    /// Measures the setting that was made last.
    fn measure(&mut self, seconds: f64) -> Result<Measured>;

    /// Ends the load; an error if something has disturbed it.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Runs an experiment, or reads what it has measured, and prints its tables.
pub(crate) fn run(experiment: &Experiment) -> Result<()> {
    match experiment {
        Experiment::Outcome(args) => outcome::run(args),
        Experiment::Peers(args) => peers::run(args),
        Experiment::Predictions(args) => predictions::run(args),
        Experiment::Verdicts(args) => verdicts::run(args),
    }
}

impl Options {
    /// Whether the user wants this load.
    pub(crate) fn wants(&self, load: &str) -> bool {
        self.loads.is_empty() || self.loads.iter().any(|text| load.contains(text))
    }

    /// Measures these studies, or reads what was measured: each record with its folder.
    ///
    /// A temporary folder lives as long as `temporary`.
    pub(crate) fn records(
        &self,
        usual: Usual,
        studies: Vec<Box<dyn Study + '_>>,
        temporary: &tempfile::TempDir,
    ) -> Result<Vec<(PathBuf, Recorded)>> {
        let mut folders = self.from.clone();
        if folders.is_empty() {
            let keep = self.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
            folders = run::run(self, usual, studies, &keep)?;
        }
        let read = |folder: PathBuf| {
            let recorded = Recorded::read(&folder)?;
            Ok((folder.clone(), recorded.with_context(|| format!("{folder:?} has no record"))?))
        };
        folders.into_iter().map(read).collect()
    }
}

/// Prints the tables of a record, and what differs where nothing does.
pub(crate) fn print(tables: &str, recorded: &Recorded) -> Result<()> {
    say(tables)?;
    let lost = lost(recorded);
    if !lost.is_empty() {
        say(&format!("\n{}", lost.join("\n")))?;
    }
    if let Some(table) = same_twice(recorded) {
        say(&format!("\n{table}"))?;
    }
    say("")
}

/// A line for each thing that is missing.
fn lost(recorded: &Recorded) -> Vec<String> {
    let of = |load: &Load| {
        let all = load.lost.iter().chain(&load.failed);
        all.map(|why| format!("LOST of {}: {why}", load.name)).collect::<Vec<_>>()
    };
    recorded.loads.iter().flat_map(of).collect()
}

/// The rates of the same setting, measured twice in each round; `None` of an old record.
fn same_twice(recorded: &Recorded) -> Option<String> {
    let mut table = markdown(&["load", "setting", "measured again"]);
    for load in &recorded.loads {
        let (first, again) = (load.settings.first()?, load.again.as_ref()?);
        let ratio = again.over(first).map_or_else(
            || "too few rounds".to_owned(),
            |it| format!("{:.3} ({:.3} to {:.3})", it.value, it.low, it.high),
        );
        table.add_row([load.name.clone(), first.label(), ratio]);
    }
    Some(table.to_string())
}

fn seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse().with_context(|| format!("{text:?} is not a number"))?;
    ensure!((0.2..=60.0).contains(&seconds), "from 0.2 to 60");
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rates: [f64; 6]) -> Load {
        let first = Setting { rates: vec![100.0; 6], ..Setting::new("a", &[]) };
        let again = Setting { rates: rates.to_vec(), ..first.clone() };
        let settings = vec![first];
        Load { name: "tcp-rr".into(), settings, again: Some(again), ..Load::default() }
    }

    #[test]
    fn what_was_lost_is_marked_with_the_reason() {
        let loads = vec![Load {
            lost: vec!["netsilo-tune: the guest has hung".into()],
            failed: Some("2 of 6 rounds: the guest has hung".into()),
            ..load([1.0; 6])
        }];
        let expected = [
            "LOST of tcp-rr: netsilo-tune: the guest has hung",
            "LOST of tcp-rr: 2 of 6 rounds: the guest has hung",
        ];
        assert_eq!(lost(&Recorded { loads, ..Recorded::default() }), expected);
    }

    #[test]
    fn the_same_setting_twice_shows_the_difference_of_nothing() {
        let loads = vec![load([98.0, 99.0, 100.0, 101.0, 102.0, 103.0])];
        let table = same_twice(&Recorded { loads, ..Recorded::default() }).unwrap();
        assert!(table.contains("1.005 (0.980 to 1.030)"), "{table}");
        let old = vec![Load { again: None, ..load([1.0; 6]) }];
        assert_eq!(same_twice(&Recorded { loads: old, ..Recorded::default() }), None);
    }
}
