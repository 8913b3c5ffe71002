//! Code that only developers use: the order of the [`layers`], synthetic fleets ([`synth`]), and
//! the manual pages and completions of the packages (`package`). No other crate needs it, except
//! tests.

pub mod layers;
#[cfg(feature = "package")]
pub mod package;
pub mod synth;
