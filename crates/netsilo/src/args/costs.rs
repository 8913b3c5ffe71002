//! The weights of the cost model: from a file, measured on this machine, or the defaults.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_sys::cost::store::{self, COSTS_DIR};
use netsilo_sys::files::root::Root;
use netsilo_sys::read::machine::machine_identity;

use crate::args::file::{CONFIGURATION, read};
use crate::tell::out;

/// Returns the weights measured on this machine, or the defaults. Prints a note if stored weights
/// cannot be used.
pub(crate) fn measured(dir: &Path) -> Result<Costs> {
    let machine = machine_identity(&Root::live()).context("cannot identify this machine")?;
    let loaded = store::load(dir, &machine);
    if let Some(note) = &loaded.note {
        out::note(note);
    }
    Ok(loaded.costs)
}

/// Returns the weights for what is observed: this machine, or a bundle (the default weights).
pub fn costs_for(is_bundle: bool) -> Result<Costs> {
    if is_bundle { Ok(Costs::default()) } else { measured(Path::new(COSTS_DIR)) }
}

/// Reads a file of weights. Weights that it leaves out have their default.
pub(crate) fn read_costs(path: &Path) -> Result<Costs> {
    let costs: Costs = serde_json::from_slice(&read(path, CONFIGURATION)?)
        .with_context(|| format!("{} contains no costs", path.display()))?;
    costs.check().map_err(|wrong| anyhow::anyhow!("{}: {wrong}", path.display()))?;
    Ok(Costs { source: CostSource::Configured, ..costs })
}
