//! What an experiment or a comparison measures, in which order, and what the numbers mean.
//!
//! Plans, records and results as values: [`traffic`] specifies a load and its result, [`workload`]
//! measures a live system, [`comparison`] compares two settings (`netsilo ab`), [`experiment`] many
//! (`netsilo-bench`), [`race`] searches for the best of many (`netsilo tune`), and [`stats`] has
//! the statistics of all three. May use `netsilo-model`. These do not belong here: running a load
//! or applying a setting (`netsilo-load`, `netsilo-sys`), rendering (`netsilo`), files, the clock,
//! the environment, the network. `clippy.toml` forbids the last four.

pub mod comparison;
pub mod experiment;
pub mod race;
pub mod stats;
pub mod traffic;
pub mod workload;
