//! How the NIC chooses an rx queue: hash, indirection table, predicted queues, an even table.
//!
//! Uses [`crate::snapshot`] for settings and flows, and [`crate::change`] for tables and keys.
//! `netsilo-decide` decides which queue should get more traffic.

pub mod load;
pub mod model;
pub mod rebalance;
pub mod toeplitz;

#[cfg(test)]
mod suite;
