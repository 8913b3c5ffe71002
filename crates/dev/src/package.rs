//! What the packages contain besides the programs, made of the command line and of `docs/`: manual
//! pages and completions.

pub mod completions;
pub mod manual;
mod markdown;
pub mod program;
