//! What the programs of the lab print: results on standard output, progress on standard error.

use std::io::{Write, stderr, stdout};

use anyhow::Result;

/// Prints a result.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    out.flush()?;
    Ok(())
}

/// Prints what is being done; a failure does not matter.
pub(crate) fn progress(text: &str) {
    let _ = writeln!(stderr(), "lab: {text}");
}
