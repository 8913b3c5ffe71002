//! What netsilo knows and decides: pure values and functions.
//!
//! No files, no clock, no environment, no network, no randomness: `clippy.toml` forbids them. Data walks forward, from
//! kernel text to [`host::Snapshot`], rates, silos, plan and changes; each step is a function from values to a new value.

pub mod ab;
pub mod algorithm;
pub mod announced;
pub mod assignment;
pub mod attribution;
pub mod calibration;
pub mod change;
pub mod concentration;
pub mod controller;
pub mod cost;
pub mod cpuset;
pub mod ethtool;
pub mod ethtool_decode;
pub mod export;
pub mod forwards;
pub mod grid;
pub mod host;
pub mod join;
pub mod load;
pub mod netdev_genl;
mod notes;
pub mod parse;
pub mod part;
pub mod pin;
pub mod plan;
pub mod proc_task;
pub mod queue_irq;
pub mod rates;
pub mod report;
pub mod scene;
pub mod silo;
pub mod sock_diag;
pub mod stages;
pub mod stats;
pub mod toeplitz;
pub mod topology;
mod wakeups;
pub mod workload;
