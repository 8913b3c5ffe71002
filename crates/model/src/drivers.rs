//! ROOMDOC

pub mod counters;
pub mod table;
pub mod vectors;
