//! ROOMDOC

pub mod comparison;
pub mod experiment;
pub mod traffic;
pub mod workload;
