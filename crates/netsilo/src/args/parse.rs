//! Parsers of values that have no name: sets of CPUs, numbers, on or off.

use anyhow::Result;

/// Parsers that the command line shares with files that hold a goal.
pub(crate) use netsilo_decide::plan::goal_text::{cpus_or_off, entries_or_off, some_cpus};

/// Parses `on` or `off`.
pub(crate) fn on_or_off(text: &str) -> Result<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => anyhow::bail!("write on or off"),
    }
}
