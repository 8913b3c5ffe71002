//! An exported file, and the text in it, line by line: a plan from a file may hold any name.

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

/// Adds a line. A line break in it, from a name or a reason, becomes a blank.
pub(super) fn add_line(text: &mut String, line: &str) {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}');
    text.extend(line.chars().map(|c| if breaks(c) { ' ' } else { c }));
    text.push('\n');
}

/// Whether a name or value means itself in each format: no quotes, patterns, variables, folders.
pub(super) fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:@+".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain)
}
