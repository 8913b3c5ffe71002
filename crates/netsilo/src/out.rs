//! Where words go: results to stdout, everything else to stderr; a closed pipe ends quietly.

use std::io::{self, Write as _};

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints a result.
pub(crate) fn text(text: &str) -> Result<()> {
    quietly(io::stdout().lock().write_all(text.as_bytes()))
}

/// Prints a result as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string_pretty(value).context("rendering json")?;
    line.push('\n');
    text(&line)
}

/// Prints a result as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(value).context("rendering json")?;
    line.push('\n');
    text(&line)
}

/// Says something that is not the result.
pub(crate) fn note(message: &str) {
    // the terminal may be gone, which is no reason to end
    let _ = writeln!(io::stderr(), "netsilo: {message}");
}

/// `netsilo show | head` is not a failure.
fn quietly(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("writing to stdout"),
    }
}
