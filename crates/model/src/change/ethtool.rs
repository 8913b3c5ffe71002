//! ROOMDOC

pub mod encode;
pub mod rule;
pub mod settings;
