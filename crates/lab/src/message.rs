//! Messages on standard error, and commands in them.

use std::io::Write;

/// Prints a message on standard error and ignores failure.
pub(crate) fn note(message: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {message}");
}

/// Shortens a command for an error message.
pub(crate) fn one_line(command: &str) -> String {
    let mut line: String =
        command.chars().take(120).map(|c| if c == '\n' { ';' } else { c }).collect();
    if line.len() < command.len() {
        line.push_str("...");
    }
    line
}
