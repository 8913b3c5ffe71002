//! Parsers of values that have no name: sets of CPUs, numbers, times, on or off.

use std::time::Duration;

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

/// Parses a time (`500ms`, `2s`, `1m`) that can be added to any clock.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(30 * 24 * 3600);
    match humantime::parse_duration(text) {
        Ok(time) if time <= MOST => Ok(time),
        Ok(_) => Err("write at most 30 days".into()),
        Err(error) => Err(error.to_string()),
    }
}
