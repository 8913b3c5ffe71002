//! Small files of `/sys/class/net/<dev>`.

use crate::parse::error::ParseError;

/// `IFF_UP` of `include/uapi/linux/if.h`, in `flags`.
pub const IFF_UP: u32 = 1;

/// `address`: the hardware address in lower case; `None` for a device without one (tun has an empty
/// line).
///
/// Ethernet has 6 bytes, InfiniBand 20.
pub fn address(text: &str) -> Result<Option<String>, ParseError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let mut at = 0;
    for byte in text.split(':') {
        if byte.len() != 2 || !byte.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseError::new(
                1,
                at + 1,
                format!("expected two hexadecimal digits, found {byte:?}"),
            ));
        }
        at += byte.len() + 1;
    }
    Ok(Some(text.to_ascii_lowercase()))
}

/// `speed` in Mbit/s; `None` for -1 and, from old drivers, 4294967295 and 65535 (unknown).
pub fn speed(text: &str) -> Result<Option<u32>, ParseError> {
    let speed = crate::parse::scalar::number_or_none(text)?;
    Ok(speed.filter(|&mbps| mbps != u32::MAX && mbps != u32::from(u16::MAX) && mbps != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_any_length() {
        assert_eq!(address("02:00:AA:00:00:01\n"), Ok(Some("02:00:aa:00:00:01".into())));
        assert_eq!(address("\n"), Ok(None));
        assert_eq!(address("02:0g\n").unwrap_err().column, 4);
    }

    #[test]
    fn unknown_speeds_are_none() {
        assert_eq!(speed("-1\n"), Ok(None));
        assert_eq!(speed("4294967295\n"), Ok(None));
        assert_eq!(speed("25000\n"), Ok(Some(25000)));
    }
}
