//! Numbers as text: three digits with a prefix. An unknown value is a dash.

use netsilo_model::machine::words::decimal;

/// Formats a rate or count: `0`, `7.20`, `431`, `12.3k`, `1.20M`.
pub fn count(value: f64) -> String {
    let (scaled, prefix) = scale(value);
    format!("{}{prefix}", digits(scaled))
}

/// Formats bytes per second with decimal prefixes: `431 B/s`, `1.20 MB/s`.
pub fn bytes_per_s(value: f64) -> String {
    let (scaled, prefix) = scale(value);
    format!("{} {prefix}B/s", digits(scaled))
}

/// Formats an amount of data with binary prefixes: `512 B`, `1.20 KiB`, `6.00 MiB`.
pub fn bytes(value: u64) -> String {
    let value = value as f64;
    match value {
        v if v >= 1_073_741_824.0 => format!("{} GiB", digits(v / 1_073_741_824.0)),
        v if v >= 1_048_576.0 => format!("{} MiB", digits(v / 1_048_576.0)),
        v if v >= 1024.0 => format!("{} KiB", digits(v / 1024.0)),
        v => format!("{v:.0} B"),
    }
}

/// Formats a time in nanoseconds: `85.0 ns`, `5.40 us`, `1.20 ms`.
pub fn nanoseconds(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{} s", digits(v / 1e9)),
        v if v >= 1e6 => format!("{} ms", digits(v / 1e6)),
        v if v >= 1e3 => format!("{} us", digits(v / 1e3)),
        v => format!("{} ns", digits(v)),
    }
}

/// Formats a share from 0 to 1 as a percentage: `0%`, `0.4%`, `71%`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let places = if percent > 0.0 && percent < 0.95 { 1 } else { 0 };
    decimal(percent, places) + "%"
}

/// Formats a value with `render`; `None` as a dash.
pub fn or_dash<T>(value: Option<T>, render: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), render)
}

/// Formats a number with three digits, also below 1: `0`, `0.0123`, `1.20`, `12.3k`.
pub fn small(value: f64) -> String {
    match value {
        v if v >= 0.995 || v == 0.0 => count(v),
        v if v < 0.0001 => format!("{v:.1e}"),
        v => {
            let places = 2 - v.log10().floor() as i32;
            format!("{v:.*}", places.max(0) as usize)
        }
    }
}

fn scale(value: f64) -> (f64, &'static str) {
    match value {
        v if v >= 999_500_000.0 => (v / 1e9, "G"),
        v if v >= 999_500.0 => (v / 1e6, "M"),
        v if v >= 999.5 => (v / 1e3, "k"),
        v => (v, ""),
    }
}

fn digits(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let counts = [0.0, 7.25, 12.34, 431.0, 999.6, 12_345.0, 1_204_000.0, 9.9e9].map(count);
        assert_eq!(counts, ["0", "7.25", "12.3", "431", "1.00k", "12.3k", "1.20M", "9.90G"]);
        assert_eq!(bytes_per_s(1_204_000.0), "1.20 MB/s");
        assert_eq!([512, 6 << 20].map(bytes), ["512 B", "6.00 MiB"]);
        assert_eq!([85.0, 5400.0].map(nanoseconds), ["85.0 ns", "5.40 us"]);
        assert_eq!(
            [0.0, 0.0000123, 0.00123, 0.1, 1.2, 12_345.0].map(small),
            ["0", "1.2e-5", "0.00123", "0.100", "1.20", "12.3k"]
        );
        assert_eq!([-0.0, 0.004, 0.706, 1.0].map(percent), ["0%", "0.4%", "71%", "100%"]);
    }
}
