//! Counts of one window, as they are read.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A count of one window. 2^53 and more is refused: sums of such numbers would not fit.
pub(crate) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    const BEYOND: u64 = 1 << 53;
    match u64::deserialize(deserializer)? {
        count @ 0..BEYOND => Ok(count),
        count => Err(D::Error::custom(format!("{count} is more than any window counts"))),
    }
}

/// The same of a count that may be absent.
pub(crate) fn optional_count<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Counted(#[serde(deserialize_with = "count")] u64);
    Ok(Option::deserialize(deserializer)?.map(|Counted(count)| count))
}

#[cfg(test)]
mod tests {
    use crate::snapshot::attribution::Poll;

    #[test]
    fn a_count_whose_sums_would_not_fit_is_refused() {
        let poll = |packets: u64| {
            let text = format!(
                r#"{{ "napi": 1, "netdev": "", "ifindex": 2, "netns": 0, "cpu": 0, "polls": 1,
                    "packets": {packets}, "ns": {packets} }}"#
            );
            serde_json::from_str::<Poll>(&text).map_err(|error| error.to_string())
        };
        assert_eq!(poll((1 << 53) - 1).unwrap().packets, (1 << 53) - 1);
        let why = poll(u64::MAX).unwrap_err();
        assert!(why.contains("is more than any window counts"), "{why}");
    }
}
