//! An experiment: settings compared under loads, in rounds; its plan and its files.
//!
//! In each round every setting meets every load once. The order of the loads, and of the settings
//! under each load, is random, so that drift affects all settings alike. Trials are compared only
//! if they belong to the same load and round, because those ran directly after each other. A run on
//! disk is a folder: [`EXPERIMENT`] is an [`Experiment`]; [`RECORDS`] has one [`Record`] per line
//! in order of completion.
//!
//! Files, each using only those before it: `folder`, `plan`, `records`; from a record `measure` and
//! `latency`; from all rounds of a load `compared` and `stage_costs`; from these `expected`; then
//! `results`. Running a trial, files and rendering do not belong here.

pub mod compared;
pub mod expected;
mod folder;
pub mod latency;
pub mod measure;
mod plan;
mod records;
pub mod results;
pub mod stage_costs;

pub use folder::{COMMANDS, EXPERIMENT, MACHINE, RECORDS};
pub use plan::{Experiment, Load, MachineSummary, SCHEMA, Setting, Step, order};
pub use records::{Expectation, ExpectedChange, Failed, Record, Sampled, SiloMap, Trial};

#[cfg(test)]
mod samples;
