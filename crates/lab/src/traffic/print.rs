//! Prints results.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

/// Prints a result as one line of JSON.
pub(crate) fn print(report: &impl Serialize) -> Result<()> {
    // A single write: several workers may share this output.
    std::io::stdout().write_all(format!("{}\n", serde_json::to_string(report)?).as_bytes())?;
    Ok(())
}
