//! The error of all parsers.

/// The position in a kernel file where required text is missing or malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} column {column}: {what}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// Byte offset within the line, from 1.
    pub column: usize,
    /// The problem at this position.
    pub what: String,
}

impl ParseError {
    pub(crate) fn new(line: usize, column: usize, what: impl Into<String>) -> Self {
        Self { line, column, what: what.into() }
    }
}
