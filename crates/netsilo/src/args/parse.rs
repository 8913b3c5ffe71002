//! Parsers of values that have no name: sets of CPUs, numbers, times, percentages, on or off.

use std::time::Duration;

use anyhow::Result;

/// Parsers that the command line shares with files that contain a goal.
pub use netsilo_decide::plan::goal_text::{cpus_or_off, entries_or_off, some_cpus};

/// Parses `on` or `off`.
pub(crate) fn on_or_off(text: &str) -> Result<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => anyhow::bail!("write on or off"),
    }
}

/// Parses a time (`500ms`, `2s`, `1m`) that can be added to any clock.
pub fn duration(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(30 * 24 * 3600);
    match humantime::parse_duration(text) {
        Ok(time) if time <= MOST => Ok(time),
        Ok(_) => Err("write at most 30 days".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a time that is long enough to count in.
pub(crate) fn counting_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < Duration::from_millis(1) => Err("write at least 1ms".into()),
        time => Ok(time),
    }
}

/// Parses a percentage as a share from 0 to 1: `1%`, `0.5 %`, `2`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim().parse::<f64>();
    number
        .ok()
        .filter(|it| (0.0..100.0).contains(it))
        .map(|it| it / 100.0)
        .ok_or_else(|| "write a percentage (1%)".into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_counted_in_no_time() {
        for text in ["0s", "900us"] {
            assert_eq!(super::counting_time(text), Err("write at least 1ms".into()));
        }
        assert!(super::counting_time("1ms").is_ok() && super::counting_time("31d").is_err());
    }

    #[test]
    fn a_percentage_is_read_with_or_without_its_sign() {
        assert_eq!(
            (super::percent("1%"), super::percent("0.5 %"), super::percent("2")),
            (Ok(0.01), Ok(0.005), Ok(0.02))
        );
        assert!(
            super::percent("-1").is_err()
                && super::percent("x").is_err()
                && super::percent("nan").is_err()
        );
    }
}
