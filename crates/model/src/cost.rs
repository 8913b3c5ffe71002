//! ROOMDOC

pub mod calibration;
pub mod problem;
pub mod solver;
pub mod weights;
