//! What an experiment is, and what its user may choose.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::experiment::record::{LoadRecord, RoundResult, SettingRecord};

/// Arguments of all experiments.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds of each load; each measures every setting once, and the first one twice, in random
    /// order. With fewer than six, ratios have no interval [default: see docs/lab.md]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: Option<u32>,
    /// Seconds of each measurement; in a guest a whole number [default: see docs/lab.md]
    #[arg(long, value_parser = seconds)]
    pub(super) seconds: Option<f64>,
    /// Seed of the random order, and of random loads and settings [default: from the clock; for
    /// random loads, 1]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Measure only loads whose name contains this; may be repeated
    #[arg(long = "load", value_name = "TEXT")]
    pub(super) loads: Vec<String>,
    /// Save measurements, with a bundle of each start, in subfolders of this folder; a later run
    /// continues with what they lack [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
    /// Measure nothing: print the tables of this saved folder; may be repeated
    #[arg(long, value_name = "DIR", conflicts_with_all = ["keep", "rounds", "seconds", "at_most"])]
    pub(super) from: Vec<PathBuf>,
    /// Begin no load after this many seconds; the same command with --keep then continues
    #[arg(long, value_name = "SECONDS")]
    pub(super) at_most: Option<u64>,
}

/// How long an experiment measures, unless its user chooses.
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

    /// Switches to a fresh machine after a failure for this reason. Returns `false` if there is
    /// none.
    fn restart(&mut self, _why: &str) -> bool {
        false
    }
}

/// A load that is running, or can run.
pub(crate) trait Scene {
    /// Observes the load, saves bundles in the folder, and returns what to measure.
    fn plan(&mut self, folder: &Path) -> Result<LoadRecord>;

    /// Makes a setting of the plan.
    fn apply(&mut self, setting: &SettingRecord) -> Result<()>;

    /// Measures the setting that was made last.
    fn measure(&mut self, seconds: f64) -> Result<RoundResult>;

    /// Ends the load. Fails if something has disturbed it.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Options {
    /// Whether the user wants this load.
    pub(crate) fn wants(&self, load: &str) -> bool {
        self.loads.is_empty() || self.loads.iter().any(|text| load.contains(text))
    }
}

fn seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse().with_context(|| format!("{text:?} is not a number"))?;
    ensure!((0.2..=60.0).contains(&seconds), "from 0.2 to 60");
    Ok(seconds)
}
