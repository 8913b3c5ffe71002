//! The cost of a placement in CPU time: weights, assumptions, calibration, the assignment problem,
//! its solver.
//!
//! The problem is abstract: items, places and prices, no netdevs. `netsilo-decide` builds it from a
//! host. Uses [`crate::machine`]; measuring the weights is in `netsilo-sys`.

pub mod assumed;
pub mod calibration;
pub mod problem;
pub mod solver;
pub mod weights;
