//! Rules that must hold for every input, and inputs made from seeds to try them on.
//!
//! A target is a file in `targets/` with a `TARGET`, and its name twice in `targets.rs`. Its seeds
//! are files in `seeds/TARGET/`, and what its function `seeds` makes. The tests in `tests.rs` try a
//! fixed number of changed seeds; `scripts/fuzz` tries many more with libFuzzer, which looks for
//! inputs that reach other code.

#![allow(clippy::expect_used, clippy::panic, reason = "a rule that does not hold panics")]

mod json;
mod properties;
mod target;
mod targets;

#[cfg(test)]
mod bytes;
#[cfg(test)]
mod tests;

pub use target::FuzzTarget;
pub use targets::TARGETS;
