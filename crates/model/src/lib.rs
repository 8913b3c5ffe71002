//! What netsilo knows and decides: pure values and functions.
//!
//! No files, no clock, no environment, no network, no randomness: `clippy.toml` forbids them. Data
//! walks forward, from kernel text to [`host::Snapshot`], rates, silos, plan and changes; each step
//! is a function from values to a new value.

pub mod change;
pub mod cost;
pub mod derive;
pub mod drivers;
pub mod machine;
pub mod parse;
pub mod rss;
pub mod snapshot;
#[cfg(any(test, feature = "synthetic"))]
pub mod synthetic;
