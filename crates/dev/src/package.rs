//! The manual pages of the packages, made from the command line and from `docs/`.

pub mod manual;
mod markdown;
pub mod program;
