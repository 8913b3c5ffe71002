//! Statistics of measured differences: intervals, stopping rules, checks of the measurement.
//!
//! Functions from numbers to numbers. Only numeric libraries may be used: nothing here knows
//! networks, experiments, files or the clock, and the caller passes the seed of random numbers. The
//! integration tests simulate the coverage of each interval with [`simulate`]. `docs/ab.md`
//! explains the choice of methods.

pub mod bootstrap;
mod estimate;
mod means;
pub(crate) mod normal;
mod order;
pub mod sequential;
pub mod signed_rank;
#[cfg(feature = "simulate")]
pub mod simulate;
pub mod steadiness;
mod summary;

pub use estimate::Estimate;
pub use means::difference_of_means;
pub use order::rank_below_quantile;
pub use summary::{mean, median, quantile};
