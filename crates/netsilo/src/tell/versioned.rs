//! The number of the schema in front of a result that has none itself, for JSON.

use serde::Serialize;

/// A result as it is printed as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Versioned<T> {
    /// The number of this schema.
    schema: u32,
    #[serde(flatten)]
    result: T,
}

impl<T> Versioned<T> {
    /// A result of schema 1.
    pub(crate) fn first(result: T) -> Self {
        Self { schema: 1, result }
    }
}
