//! What netsilo knows about a host: pure values, and functions from values to new values.
//!
//! Data moves forward. Kernel text becomes a [`Snapshot`](snapshot::host::Snapshot). Two snapshots
//! and the eBPF counts between them become an [`Observation`](snapshot::observation::Observation).
//! Rates, silos and costs follow from these. Each folder uses only those before it in this order:
//! [`machine`], [`snapshot`], [`parse`], [`drivers`], [`collection`], [`change`], [`rss`],
//! [`cost`], [`derive`]; `synthetic` makes hosts for tests.
//!
//! These do not belong here: decisions (`netsilo-decide`), files, the clock, the environment, the
//! network, random numbers. `clippy.toml` forbids the last five.

pub mod change;
pub mod collection;
pub mod cost;
pub mod derive;
pub mod drivers;
pub mod machine;
pub mod parse;
pub mod rss;
pub mod snapshot;
#[cfg(any(test, feature = "synthetic"))]
pub mod synthetic;
