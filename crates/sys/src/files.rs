//! ROOMDOC

pub mod cache;
pub mod error;
pub mod lines;
pub mod recorder;
pub mod root;
pub mod tree_facts;
