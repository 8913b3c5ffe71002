//! An exported file, and the text in it: comments, quoted words, and values as the kernel's files
//! take them.

use netsilo_model::change::{Change, Target, Value};

/// A file for another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedFile {
    /// ExportedFile name, without folder.
    pub name: String,
    /// Content.
    pub text: String,
    /// Whether the file is executable.
    pub executable: bool,
}

/// The count as the kernel stores it: flow counts are rounded up to a power of two, 0 stays 0.
pub(super) fn rounded(count: u32) -> u32 {
    if count == 0 { 0 } else { count.checked_next_power_of_two().unwrap_or(count) }
}

/// The new value in the format of its file.
pub(super) fn text_of(change: &Change) -> String {
    match (&change.target, &change.new) {
        (_, Value::Cpus(cpus)) => cpus.to_mask(1),
        (Target::RpsFlowCnt { .. } | Target::RpsSockFlowEntries, Value::Count(count)) => {
            rounded(*count).to_string()
        }
        (_, other) => other.to_string(),
    }
}

/// Joins a text into one line, for a comment.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Quotes any text as one shell word.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
