//! Experiments of the lab: settings under loads, in rounds of random order.
//!
//! An experiment is a [`study::Study`]: its loads, and how a setting is made and measured. One loop
//! ([`run`]) measures all of them, into one kind of record ([`record`]). Each experiment has
//! separate tables for its records.

pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod study;
pub(crate) mod tables;

use anyhow::Result;
use clap::Subcommand;

use crate::outcome::{self, OutcomeArgs};
use crate::peers::{self, Peers};
use crate::predictions::{self, Predictions};
use crate::verdicts::{self, Verdicts};

/// Experiments by name.
#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Check the default's choices against the best measured settings: over veths of this machine's
    /// kernel, and in guests
    Outcome(OutcomeArgs),
    /// Compare netsilo with irqbalance, tuned, perftune and others, with well-known servers
    Peers(Peers),
    /// Predict random settings under random loads over a veth, then measure them
    Predictions(Predictions),
    /// Compare what `check` says about RPS on a veth with what RPS does there
    Verdicts(Verdicts),
}

/// Runs an experiment, or reads earlier measurements, and prints its tables.
pub(crate) fn run(experiment: &Experiment) -> Result<()> {
    match experiment {
        Experiment::Outcome(args) => outcome::run(args),
        Experiment::Peers(args) => peers::run(args),
        Experiment::Predictions(args) => predictions::run(args),
        Experiment::Verdicts(args) => verdicts::run(args),
    }
}
