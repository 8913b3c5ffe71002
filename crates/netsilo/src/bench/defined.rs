//! What an experiment is defined from, and its definition: settings and loads.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::experiment::{Load, Setting};

use crate::args::state_dir::StateDir;
use crate::bench::folder::RunOptions;
use crate::bench::runner;
use crate::tell::out;

/// The settings and loads of an experiment on this machine.
pub(super) struct Definition {
    pub(super) settings: Vec<Setting>,
    pub(super) loads: Vec<Load>,
}

/// The inputs from which an experiment is defined.
pub(super) struct Setup<'a> {
    /// The machine before anything was written.
    pub(super) observation: Observation,
    /// How the trials are run.
    pub(super) options: RunOptions,
    /// Netdevs of a forwarding machine whose received packets are counted.
    pub(super) counted_netdevs: Vec<String>,
    pub(super) state: &'a StateDir,
    pub(super) stop: &'a AtomicBool,
}

impl Setup<'_> {
    /// Observes the machine under a load, before anything is written.
    pub(super) fn observe_under(&self, load: &Load) -> Result<Observation> {
        out::note(&format!("observing {} with nothing changed", load.name));
        runner::observe(&self.options, load, self.stop)
    }

    /// Returns the share of this machine's CPU time that a load uses.
    pub(super) fn busy(&self, load: &Load) -> Result<f64> {
        runner::busy(&self.options, load, self.stop)
    }
}
