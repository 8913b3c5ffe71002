//! What netsilo knows of a host: pure values, and functions from values to new values.
//!
//! Data walks forward. Kernel text becomes a [`Snapshot`](snapshot::host::Snapshot); two snapshots
//! and the eBPF counts between them an [`Observation`](snapshot::observation::Observation); from
//! these follow rates, silos and costs. Each folder uses only those before it in this order:
//! [`machine`], [`snapshot`], [`parse`], [`drivers`], [`change`], [`rss`], [`cost`], [`derive`];
//! `synthetic` makes hosts for tests.
//!
//! Must not come in: decisions (`netsilo-decide`), files, the clock, the
//! environment, the network, random numbers; `clippy.toml` forbids the last five.

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
