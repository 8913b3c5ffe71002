//! An exported file, and the text in it: comments of one line.

/// A file for another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedFile {
    /// File name, without folder.
    pub name: String,
    /// Content.
    pub text: String,
    /// Whether the file is executable.
    pub executable: bool,
}

/// Joins a text into one line, for a comment.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
