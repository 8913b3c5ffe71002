//! Words that several messages need.

/// A number with its noun: `1 change`, `3 changes`.
pub(crate) use netsilo_model::machine::words::plural;
