//! Files that hold one value: a number, flags, or a word.

use crate::parse::error::ParseError;
use crate::parse::words::decimal;

/// Parses a decimal number (`mtu`, `ifindex`, `rps_flow_cnt`).
pub fn number<N: std::str::FromStr>(text: &str) -> Result<N, ParseError> {
    decimal(1, (0, text.trim()))
}

/// Parses a number where a negative value means "none" (`numa_node`, `speed`: -1).
pub fn number_or_none(text: &str) -> Result<Option<u32>, ParseError> {
    let value: i64 = number(text)?;
    Ok(u32::try_from(value).ok())
}

/// Parses a hexadecimal number with or without `0x` (`flags`).
pub fn hexadecimal(text: &str) -> Result<u32, ParseError> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| {
        ParseError::new(1, 1, format!("expected a hexadecimal number, found {text:?}"))
    })
}

/// The text without surrounding white space. Never fails.
pub fn word(text: &str) -> Result<String, ParseError> {
    Ok(text.trim().to_owned())
}

/// Major and minor version of a kernel release (`6.12.48+deb12-amd64`).
pub fn version(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_one_is_none_and_never_zero() {
        assert_eq!(number_or_none("-1\n"), Ok(None));
        assert_eq!(number_or_none("0\n"), Ok(Some(0)));
        assert_eq!(number::<u32>("1500\n"), Ok(1500));
        assert_eq!(hexadecimal("0x1003\n"), Ok(0x1003));
    }

    #[test]
    fn garbage_is_named() {
        let message = number::<u32>("fast\n").unwrap_err().to_string();
        assert_eq!(message, r#"line 1 column 1: expected a number, found "fast""#);
    }
}
