//! The data from which an experiment is set up: the machine before anything is written, and short
//! trials that only observe.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use netsilo::args::state_dir::StateDir;
use netsilo::tell::out;
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::experiment::Load;

use crate::folder::RunOptions;
use crate::runner;
use crate::tuning::TuningArgs;

/// From this share of CPU time, the CPUs count as busy.
const BUSY: f64 = 0.9;

/// Maximum work per request that is tried, in microseconds.
const MOST_WORK_USECS: u64 = 5000;

/// The inputs from which settings and loads are made.
pub(crate) struct Setup<'a> {
    /// The machine before anything was written.
    pub(crate) observation: Observation,
    /// How the trials are run.
    pub(crate) options: RunOptions,
    pub(crate) tuning: &'a TuningArgs,
    pub(crate) state: &'a StateDir,
    pub(crate) stop: &'a AtomicBool,
}

impl Setup<'_> {
    /// Observes the machine under a load, before anything is written.
    pub(crate) fn observe_under(&self, load: &Load) -> Result<Observation> {
        out::note(&format!("observing {} with nothing changed", load.name));
        runner::observe(&self.options, load, self.stop)
    }

    /// Finds the work per request that keeps the CPUs busy, by doubling it.
    pub(crate) fn work_until_busy(&mut self, load: &Load) -> Result<()> {
        loop {
            let usecs = self.options.work_usecs;
            let busy = runner::busy(&self.options, load, self.stop)?;
            let share = busy * 100.0;
            out::note(&format!("{usecs} us of work per request keep {share:.0}% of the cpus busy"));
            if busy >= BUSY || usecs * 2 > MOST_WORK_USECS {
                return Ok(());
            }
            self.options.work_usecs = (usecs * 2).max(5);
        }
    }

    /// Whether all packets of a load are dropped, if the load requires that. Prints a note if not.
    pub(crate) fn is_possible(&self, load: &Load) -> Result<bool> {
        if !load.early_drop {
            return Ok(true);
        }
        match runner::is_dropped(&self.options, load, self.stop) {
            Ok(()) => Ok(true),
            Err(error) if self.stop.load(Ordering::Relaxed) => Err(error),
            Err(error) => {
                out::note(&format!("{}: left out: {error}", load.name));
                Ok(false)
            }
        }
    }
}
