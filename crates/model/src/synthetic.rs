//! Synthetic hosts for tests, cases, simulations and benchmarks (feature `synthetic`).
//!
//! Uses every folder of this crate. No other folder uses this one, except tests.

pub mod arrivals;
pub mod grid;
pub mod scene;
