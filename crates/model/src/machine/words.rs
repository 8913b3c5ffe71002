//! Words of messages.

use crate::machine::cpuset::CpuSet;
use crate::machine::ids::Irq;

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

/// Formats interrupts as `27-29 31`.
pub fn irqs<'a>(irqs: impl IntoIterator<Item = &'a Irq>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for Irq(number) in irqs {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let word = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.into_iter().map(word).collect::<Vec<_>>().join(" ")
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
    fn interrupts_in_a_row_are_one_word() {
        let numbers = [27, 28, 29, 31, u32::MAX].map(Irq);
        assert_eq!(irqs(&numbers), "27-29 31 4294967295");
    }

    #[test]
    fn nothing_is_written_as_minus_zero() {
        let written = [-0.0, -0.004, -0.06, 0.0, -7.0].map(|value| decimal(value, 1));
        assert_eq!(written, ["0.0", "0.0", "-0.1", "0.0", "-7.0"]);
        assert_eq!(bytes_per_s(-0.0), "0 B/s");
    }
}
