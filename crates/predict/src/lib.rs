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

pub mod comparison;
pub mod file;
pub mod forward;
pub mod interval;
pub mod live;
pub mod parameters;
pub mod prediction;
pub mod request_response;
pub mod scenario;
pub mod send;
pub mod service;
mod shares;
pub mod station;
mod transaction;

use parameters::Values;
use prediction::Prediction;
use scenario::{Load, Scenario, Setting};

/// Returns what `scenario`'s load gets under `setting`.
pub fn predict(scenario: &Scenario, setting: &Setting, values: &Values) -> Prediction {
    let scenario = &*scenario.under(setting);
    match &scenario.load {
        Load::RequestResponse(load) => request_response::predict(scenario, load, setting, values),
        Load::Forward(load) => forward::predict(scenario, load, setting, values),
        Load::Send(load) => send::predict(scenario, load, values),
        Load::Service(load) => service::predict(scenario, load, setting, values),
    }
}
