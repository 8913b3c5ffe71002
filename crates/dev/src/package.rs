//! What the packages contain in addition to the programs, made from the command line and from
//! `docs/`: manual pages and completions.

pub mod completions;
pub mod manual;
mod markdown;
pub mod program;
