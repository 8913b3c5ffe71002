//! ROOMDOC

pub mod cache;
pub mod lines;
pub mod recorder;
pub mod root;
