//! ROOMDOC

pub mod arrivals;
pub mod grid;
pub mod scene;
