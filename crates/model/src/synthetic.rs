//! Synthetic hosts for tests, cases, simulations and benchmarks (feature `synthetic`).
//!
//! Uses every folder of this crate; no other folder uses this one outside of tests.

pub mod arrivals;
pub mod grid;
pub mod scene;
