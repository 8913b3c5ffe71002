//! ROOMDOC

pub mod measure;
pub mod store;
