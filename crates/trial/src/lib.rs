//! What is measured in an experiment or a comparison, in which order, and what the numbers say.
//!
//! Plans, records and results as values: [`traffic`] specifies a load and its result, [`workload`]
//! measures a live system, [`comparison`] compares two settings (`netsilo ab`), [`experiment`] many
//! (`netsilo-bench`), [`race`] searches the best of many (`netsilo tune`), and [`stats`] has the
//! statistics of all three. May use `netsilo-model`. Must not come in: running a load or applying a
//! setting (`netsilo-load`, `netsilo-sys`), rendering (`netsilo`), files, the clock, the
//! environment, the network; `clippy.toml` forbids the last four.

pub mod comparison;
pub mod experiment;
pub mod race;
pub mod stats;
pub mod traffic;
pub mod workload;
