//! Adds the number of the schema to a JSON result that does not have it.

use serde::Serialize;

/// A result in the form that is printed as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Versioned<T> {
    /// The number of this schema.
    schema: u32,
    #[serde(flatten)]
    pub(crate) result: T,
}

impl<T> Versioned<T> {
    /// A result of schema 1.
    pub(crate) fn first(result: T) -> Self {
        Self { schema: 1, result }
    }
}
