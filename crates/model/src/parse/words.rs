//! Words and numbers of a line.

use crate::parse::error::ParseError;

/// The words of a line, each with the byte offset at which it starts (from 0).
pub(super) fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    line.split_ascii_whitespace()
        .map(move |word| (word.as_ptr() as usize - line.as_ptr() as usize, word))
}

/// Parses one word of a line as a decimal number.
pub(super) fn decimal<N: std::str::FromStr>(
    line: usize,
    (at, word): (usize, &str),
) -> Result<N, ParseError> {
    word.parse()
        .map_err(|_| ParseError::new(line, at + 1, format!("expected a number, found {word:?}")))
}
