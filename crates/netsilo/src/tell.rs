//! What netsilo prints and how: output and exit codes, common words, consent before a write, and
//! the status document that the daemon publishes.
//!
//! May use only the library crates. Nothing here knows a verb, an argument or a view.

pub mod consent;
pub mod exit;
pub mod out;
pub(crate) mod palette;
pub(crate) mod presentation;
pub(crate) mod printable;
pub(crate) mod status;
pub(crate) mod styled;
pub(crate) mod versioned;
pub mod words;
