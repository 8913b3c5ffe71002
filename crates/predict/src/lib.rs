//! Predicts what a setting would do: the receive path as a model with stated uncertainty.
//!
//! A [`scenario`] says machine, NIC and load; [`predict`] answers for one [`Setting`] with the
//! rate, each CPU's time and what limits it. [`interval`] adds how sure that is, from the
//! uncertainty of the [`parameters`]. `evidence/predictions.md` compares it with experiments.
//!
//! [`live`] does the same for a machine that was observed, and the load that it had
//! (`docs/judging.md`).
//!
//! **What lives here**: the model alone. It may use the crates `trial` (its statistics) and
//! `model`. Files, clock and printing must not come in, nor which settings are worth a look.

mod assumptions;
pub mod comparison;
mod demands;
pub mod file;
pub mod flows;
pub mod interval;
mod layout;
pub mod limit;
pub mod live;
mod loads;
mod network;
pub mod parameters;
mod placement;
pub mod prediction;
mod prices;
pub mod scenario;
pub mod station;

use demands::Demands;
use parameters::Values;
use prediction::Prediction;
use scenario::{Scenario, Setting};

/// Returns what `scenario`'s load gets under `setting`.
pub fn predict(scenario: &Scenario, setting: &Setting, values: &Values) -> Prediction {
    let scenario = &*scenario.under(setting);
    network::solve(scenario, Demands::new(scenario, setting, values))
}
