//! PCIe links and virtio features in sysfs.

use crate::parse::error::ParseError;

/// `current_link_speed`, `max_link_speed` in MT/s: `8.0 GT/s PCIe`, on older kernels `8 GT/s`.
///
/// `None` for values that are not a PCIe speed (`Unknown`, `66 MHz PCI`); see
/// `drivers/pci/probe.c:pci_speed_string`.
pub fn link_speed(text: &str) -> Result<Option<u32>, ParseError> {
    let text = text.trim();
    let Some((number, _)) = text.split_once(" GT/s") else { return Ok(None) };
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(tenth) || tenth.len() != 1 {
        return Err(expected(text));
    }
    let whole: u32 = whole.parse().map_err(|_| expected(text))?;
    let tenth: u32 = tenth.parse().map_err(|_| expected(text))?;
    let mtps = whole
        .checked_mul(1000)
        .and_then(|mtps| mtps.checked_add(tenth * 100))
        .ok_or_else(|| expected(text))?;
    Ok((mtps > 0).then_some(mtps))
}

fn expected(text: &str) -> ParseError {
    ParseError::new(
        1,
        1,
        format!("expected a link speed such as \"8.0 GT/s PCIe\", found {text:?}"),
    )
}

/// `current_link_width`, `max_link_width`: 0 (virtual functions) and 255 (unknown) are `None`.
pub fn link_width(text: &str) -> Result<Option<u32>, ParseError> {
    let width: u32 = crate::parse::scalar::number(text)?;
    Ok(Some(width).filter(|&width| width != 0 && width < 255))
}

/// The set bits of a virtio device's `features`. Each digit is one bit; the first digit is bit 0
/// (`drivers/virtio/virtio.c:features_show`).
pub fn virtio_features(text: &str) -> Result<Vec<u32>, ParseError> {
    let text = text.trim();
    if let Some(at) = text.bytes().position(|b| !matches!(b, b'0' | b'1')) {
        return Err(ParseError::new(1, at + 1, "expected 0 or 1"));
    }
    Ok((0..).zip(text.bytes()).filter(|(_, digit)| *digit == b'1').map(|(bit, _)| bit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_spellings_of_a_speed() {
        assert_eq!(link_speed("8.0 GT/s PCIe\n"), Ok(Some(8_000)));
        assert_eq!(link_speed("2.5 GT/s\n"), Ok(Some(2_500)));
        assert_eq!(link_speed("16 GT/s\n"), Ok(Some(16_000)));
        assert_eq!(link_speed("Unknown\n"), Ok(None));
        assert_eq!(link_speed("66 MHz PCI\n"), Ok(None));
        assert!(
            link_speed("fast GT/s\n").is_err()
                && link_speed("-2.5 GT/s").is_err()
                && link_speed("1.25 GT/s").is_err()
        );
    }

    #[test]
    fn a_virtual_functions_width_is_none_and_not_0() {
        assert_eq!(link_width("8\n"), Ok(Some(8)));
        assert_eq!(link_width("0\n"), Ok(None));
        assert_eq!(link_width("255\n"), Ok(None));
    }

    #[test]
    fn the_first_digit_is_bit_0() {
        assert_eq!(virtio_features("1010\n"), Ok(vec![0, 2]));
        assert_eq!(virtio_features("12").unwrap_err().column, 2);
    }
}
