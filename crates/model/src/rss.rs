//! The NIC's choice of an rx queue: hash, indirection table, predicted queues, an even table.
//!
//! Uses [`crate::snapshot`] for settings and flows, [`crate::change`] for tables and keys. Which
//! queue should get more traffic is decided in `netsilo-decide`.

pub mod load;
pub mod model;
pub mod rebalance;
pub mod toeplitz;

#[cfg(test)]
mod suite;
