//! ROOMDOC

pub mod load;
pub mod model;
pub mod rebalance;
pub mod toeplitz;
