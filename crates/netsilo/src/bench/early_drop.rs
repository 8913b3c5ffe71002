//! Loads that the forwarding machine drops on arrival: the difference to the forwarded load is the
//! cost of the rest of the path.

use std::sync::atomic::Ordering;

use anyhow::Result;
use netsilo_trial::experiment::Load;

use crate::bench::defined::Setup;
use crate::bench::runner;
use crate::tell::out;

/// Returns the same load, dropped early; `None`, with a note, where that is not possible.
pub(super) fn dropped_early(setup: &Setup<'_>, load: Load) -> Result<Option<Load>> {
    let load = Load { name: format!("{}, dropped early", load.name), early_drop: true, ..load };
    match runner::is_dropped(&setup.options, &load, setup.stop) {
        Ok(()) => Ok(Some(load)),
        Err(error) if setup.stop.load(Ordering::Relaxed) => Err(error),
        Err(error) => {
            out::note(&format!("{}: left out: {error}", load.name));
            Ok(None)
        }
    }
}
