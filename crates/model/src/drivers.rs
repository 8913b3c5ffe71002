//! ROOMDOC

pub mod counters;
pub mod loss_stage;
pub mod table;
pub mod vectors;
