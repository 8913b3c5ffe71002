//! Words of messages.

use crate::machine::cpuset::CpuSet;

/// `1 rx queue`, `3 rx queues`.
pub fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Formats CPUs as `cpu 3`, `cpus 0-3` or `no cpu`.
pub fn cpus(set: &CpuSet) -> String {
    match set.single() {
        Some(cpu) => format!("cpu {cpu}"),
        None if set.is_empty() => "no cpu".to_owned(),
        None => format!("cpus {set}"),
    }
}

/// A share in whole percent: only nothing is `0%`.
pub fn whole_percent(share: f64) -> String {
    match share * 100.0 {
        it if it > 0.0 && it < 0.5 => "less than 1%".to_owned(),
        it => format!("{it:.0}%"),
    }
}

/// A number with this many decimals, and 0 instead of -0, which is the sum of no addends.
pub fn decimal(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|b| matches!(b, b'0' | b'.')) => zero.to_owned(),
        _ => text,
    }
}

/// A rate, as `1.2 MB/s`.
pub fn bytes_per_s(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.1} GB/s", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB/s", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB/s", b / 1e3),
        b => format!("{} B/s", decimal(b, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_as_minus_zero() {
        let written = [-0.0, -0.004, -0.06, 0.0, -7.0].map(|value| decimal(value, 1));
        assert_eq!(written, ["0.0", "0.0", "-0.1", "0.0", "-7.0"]);
        assert_eq!(bytes_per_s(-0.0), "0 B/s");
    }
}
