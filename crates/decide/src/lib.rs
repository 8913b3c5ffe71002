//! ROOMDOC

pub mod control;
pub mod judge;
pub mod place;
pub mod plan;
pub mod report;
