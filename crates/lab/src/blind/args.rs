//! Arguments of `blind`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `blind`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Blind {
    /// Pairs of a setting and a load: five settings for each load
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(5..=200))]
    pub(super) pairs: u16,
    /// Seed of loads and settings
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Rounds of each load, in which each setting is measured once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..))]
    pub(super) rounds: u16,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1)]
    pub(super) seconds: u32,
    /// Folder of predictions and measurements; a run goes on with what it lacks
    #[arg(long, value_name = "DIR", default_value = "target/blind")]
    pub(super) keep: PathBuf,
    /// Begin no load after this many seconds; the same command then goes on
    #[arg(long, value_name = "SECONDS")]
    pub(super) at_most: Option<u64>,
    /// Predict and measure counts in a guest: packets by CPU, IPIs, interrupts. It may be emulated
    #[arg(long)]
    pub(super) guest: bool,
    /// Measure nothing: print what the folder has
    #[arg(long)]
    pub(super) report: bool,
    /// With --report: predict again with the present model, which has seen these measurements
    #[arg(long, requires = "report", conflicts_with = "guest")]
    pub(super) again: bool,
}

impl Blind {
    /// Whether no further load may begin.
    pub(super) fn is_over(&self, begun: Instant) -> bool {
        self.at_most.is_some_and(|most| begun.elapsed() >= Duration::from_secs(most))
    }
}
