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

/// A rate, as `1.2 MB/s`.
pub fn bytes_per_s(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.1} GB/s", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB/s", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB/s", b / 1e3),
        b => format!("{b:.0} B/s"),
    }
}
