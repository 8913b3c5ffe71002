//! Finds which file of the workspace refers to which. The test of the layers uses it.
//!
//! [`source`] reads one file: its modules, its `use` lines and its paths. [`modules`] resolves them
//! to the files that they name. [`circles`] finds the circles among them. The rules themselves, and
//! the order of crates and folders, are in `tests/workspace.rs`. Code for tests does not count.

pub mod circles;
pub mod modules;
pub mod source;
