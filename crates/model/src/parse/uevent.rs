//! `uevent` files of sysfs: `KEY=value` lines.

use std::collections::BTreeMap;

/// The pairs; ignores lines without `=`.
pub fn uevent(text: &str) -> BTreeMap<String, String> {
    // not lines(), which also strips a carriage return before the newline
    text.split('\n')
        .filter_map(|line| line.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_equal_signs() {
        let read = uevent("DEVTYPE=bridge\nOF=a=b\njunk\n");
        assert_eq!(
            (read["DEVTYPE"].as_str(), read["OF"].as_str(), read.len()),
            ("bridge", "a=b", 2)
        );
        assert_eq!(uevent("A=b\r\n")["A"], "b\r");
    }
}
