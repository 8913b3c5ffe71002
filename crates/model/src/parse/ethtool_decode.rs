//! Decodes the buffers that `SIOCETHTOOL` fills. No input panics.
//!
//! Layouts and numbers are those of `include/uapi/linux/ethtool.h`, 64-bit ABI, native byte order.
//! `offset` counts bytes from the start of the struct, whose first u32 is always the command.

use crate::snapshot::ethtool::{
    Channels, Coalesce, Driver, Duplex, Feature, HashFields, HashFunction, Limit, Link, Rings, Rss,
};

/// Size of `struct ethtool_drvinfo`.
pub const DRVINFO_LEN: usize = 196;
/// Size of `struct ethtool_channels`.
pub const CHANNELS_LEN: usize = 36;
/// Size of `struct ethtool_ringparam`.
pub const RINGPARAM_LEN: usize = 36;
/// Size of `struct ethtool_coalesce`.
pub const COALESCE_LEN: usize = 92;
/// Size of `struct ethtool_rxnfc`.
pub const RXNFC_LEN: usize = 192;
/// Size of `struct ethtool_rxfh` before `rss_config`.
pub const RXFH_LEN: usize = 24;
/// Size of `struct ethtool_link_settings` before `link_mode_masks`.
pub const LINK_SETTINGS_LEN: usize = 48;
/// Size of `struct ethtool_sset_info` with one count.
pub const SSET_INFO_LEN: usize = 20;
/// Size of `struct ethtool_gstrings` before its strings.
pub const GSTRINGS_LEN: usize = 12;
/// `ETH_GSTRING_LEN`: bytes of each string, NUL-padded.
pub const GSTRING_LEN: usize = 32;
/// Size of `struct ethtool_stats` before its counters and of `struct ethtool_gfeatures` before its
/// blocks.
pub const HEADER_LEN: usize = 8;
/// Size of `struct ethtool_get_features_block`: four masks of 32 features.
pub const FEATURES_BLOCK_LEN: usize = 16;

/// A buffer that is shorter than its struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel's answer is too short: no byte {offset} in {len} bytes")]
pub struct TooShort {
    offset: usize,
    len: usize,
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], TooShort> {
    let found = bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or(TooShort { offset: offset.saturating_add(N - 1), len: bytes.len() })
}

fn byte(bytes: &[u8], offset: usize) -> Result<u8, TooShort> {
    array::<1>(bytes, offset).map(|[byte]| byte)
}

fn word(bytes: &[u8], offset: usize) -> Result<u32, TooShort> {
    array(bytes, offset).map(u32::from_ne_bytes)
}

fn long(bytes: &[u8], offset: usize) -> Result<u64, TooShort> {
    array(bytes, offset).map(u64::from_ne_bytes)
}

/// Reads a NUL-padded field; `None` if it is empty.
fn text(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Decodes `struct ethtool_drvinfo`. Drivers write "N/A" for an unknown firmware.
pub fn driver(bytes: &[u8]) -> Result<Driver, TooShort> {
    let field = |offset| array::<32>(bytes, offset).map(|field| text(&field));
    let known = |text: Option<String>| text.filter(|text| text != "N/A");
    Ok(Driver {
        driver: field(4)?.unwrap_or_default(),
        version: known(field(36)?),
        fw_version: known(field(68)?),
        bus_info: known(field(100)?),
    })
}

/// Decodes a limit; `None` if maximum and current value are 0, because then the netdev lacks the
/// object.
fn limit(bytes: &[u8], max: usize, current: usize) -> Result<Option<Limit>, TooShort> {
    let limit = Limit { current: word(bytes, current)?, max: word(bytes, max)? };
    Ok((limit.max != 0 || limit.current != 0).then_some(limit))
}

/// Decodes `struct ethtool_channels`.
pub fn channels(bytes: &[u8]) -> Result<Channels, TooShort> {
    Ok(Channels {
        rx: limit(bytes, 4, 20)?,
        tx: limit(bytes, 8, 24)?,
        other: limit(bytes, 12, 28)?,
        combined: limit(bytes, 16, 32)?,
    })
}

/// Decodes `struct ethtool_ringparam`.
pub fn rings(bytes: &[u8]) -> Result<Rings, TooShort> {
    Ok(Rings {
        rx: limit(bytes, 4, 20)?,
        rx_mini: limit(bytes, 8, 24)?,
        rx_jumbo: limit(bytes, 12, 28)?,
        tx: limit(bytes, 16, 32)?,
    })
}

/// Decodes `struct ethtool_coalesce`.
pub fn coalesce(bytes: &[u8]) -> Result<Coalesce, TooShort> {
    let mut numbers = [0; 22];
    for (at, number) in numbers.iter_mut().enumerate() {
        *number = word(bytes, 4 * (at + 1))?;
    }
    Ok(Coalesce::from_numbers(numbers))
}

/// The count in `struct ethtool_sset_info`; `None` if the kernel cleared the requested bit, because
/// the netdev does not have this string set.
pub fn sset_count(bytes: &[u8]) -> Result<Option<u32>, TooShort> {
    let mask = long(bytes, 8)?;
    Ok(if mask == 0 { None } else { Some(word(bytes, 16)?) })
}

/// Decodes `struct ethtool_gstrings`. The number of strings is limited by the kernel's count and by
/// the buffer.
pub fn strings(bytes: &[u8]) -> Result<Vec<String>, TooShort> {
    let count = word(bytes, 8)? as usize;
    let strings = bytes.get(GSTRINGS_LEN..).unwrap_or_default().chunks_exact(GSTRING_LEN);
    Ok(strings.take(count).map(|name| text(name).unwrap_or_default()).collect())
}

/// Decodes `struct ethtool_stats`, with the names of the string set `ETH_SS_STATS`.
pub fn stats(bytes: &[u8], names: &[String]) -> Result<Vec<(String, u64)>, TooShort> {
    let count = word(bytes, 4)? as usize;
    let values = bytes.get(HEADER_LEN..).unwrap_or_default().chunks_exact(8).take(count);
    names.iter().zip(values).map(|(name, value)| Ok((name.clone(), long(value, 0)?))).collect()
}

/// Decodes `struct ethtool_gfeatures`, with the names of the string set `ETH_SS_FEATURES`. A bit
/// without a name is reserved.
pub fn features(bytes: &[u8], names: &[String]) -> Result<Vec<Feature>, TooShort> {
    let named = names.iter().enumerate().filter(|(_, name)| !name.is_empty());
    named
        .map(|(index, name)| {
            let block = HEADER_LEN + index / 32 * FEATURES_BLOCK_LEN;
            let bit = |mask: usize| Ok(word(bytes, block + 4 * mask)? >> (index % 32) & 1 != 0);
            Ok(Feature {
                name: name.clone(),
                available: bit(0)?,
                requested: bit(1)?,
                active: bit(2)?,
                never_changed: bit(3)?,
            })
        })
        .collect()
}

/// The sizes in `struct ethtool_rxfh` after a query without table and key: table entries, key
/// bytes.
pub fn rss_sizes(bytes: &[u8]) -> Result<(u32, u32), TooShort> {
    Ok((word(bytes, 8)?, word(bytes, 12)?))
}

/// Decodes `struct ethtool_rxfh` with table and key.
pub fn rss(bytes: &[u8]) -> Result<Rss, TooShort> {
    let (entries, key_len) = rss_sizes(bytes)?;
    let end = (entries as usize).saturating_mul(4).saturating_add(RXFH_LEN);
    let short = |offset| TooShort { offset, len: bytes.len() };
    let table = bytes.get(RXFH_LEN..end).ok_or(short(end))?;
    let key_end = end.saturating_add(key_len as usize);
    let key = bytes.get(end..key_end).ok_or(short(key_end))?;
    Ok(Rss {
        function: hash_function(byte(bytes, 16)?),
        key: (!key.is_empty()).then(|| key.to_vec()),
        indirection: table.chunks_exact(4).map(|entry| word(entry, 0)).collect::<Result<_, _>>()?,
        // rsvd8[0] before 6.8: the kernel requires 0 and returns 0
        input_xfrm: byte(bytes, 17)?,
    })
}

fn hash_function(bits: u8) -> Option<HashFunction> {
    match bits {
        0 => None,
        1 => Some(HashFunction::Toeplitz),
        2 => Some(HashFunction::Xor),
        4 => Some(HashFunction::Crc32),
        bits => Some(HashFunction::Other(bits)),
    }
}

/// The hashed fields in `struct ethtool_rxnfc` after `ETHTOOL_GRXFH`.
pub fn flow_hash(bytes: &[u8]) -> Result<HashFields, TooShort> {
    long(bytes, 8).map(HashFields::from_bits)
}

/// The number of rx rings in `struct ethtool_rxnfc` after `ETHTOOL_GRXRINGS`.
pub fn rx_rings(bytes: &[u8]) -> Result<u32, TooShort> {
    long(bytes, 8).map(|rings| u32::try_from(rings).unwrap_or(u32::MAX))
}

/// The number of ntuple rules in `struct ethtool_rxnfc` after `ETHTOOL_GRXCLSRLCNT`.
pub fn rule_count(bytes: &[u8]) -> Result<u32, TooShort> {
    word(bytes, 184)
}

/// The number of words in each link mode mask. For a request with 0 words, the kernel answers with
/// the negated number.
pub fn link_mode_words(bytes: &[u8]) -> Result<u8, TooShort> {
    byte(bytes, 15).map(|words| (words as i8).unsigned_abs())
}

/// Decodes `struct ethtool_link_settings`.
pub fn link(bytes: &[u8]) -> Result<Link, TooShort> {
    let speed = word(bytes, 4)?;
    Ok(Link {
        // SPEED_UNKNOWN is -1
        speed_mbps: (speed != 0 && speed != u32::MAX).then_some(speed),
        duplex: match byte(bytes, 8)? {
            0 => Some(Duplex::Half),
            1 => Some(Duplex::Full),
            _ => None,
        },
        port: match byte(bytes, 9)? {
            0x00 => "tp".into(),
            0x01 => "aui".into(),
            0x02 => "mii".into(),
            0x03 => "fibre".into(),
            0x04 => "bnc".into(),
            0x05 => "da".into(),
            0xef => "none".into(),
            0xff => "other".into(),
            number => format!("{number:#04x}"),
        },
        autoneg: match byte(bytes, 11)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes of a struct after its command, from u32 fields in order.
    fn words(fields: &[u32]) -> Vec<u8> {
        [0].iter().chain(fields).flat_map(|field| field.to_ne_bytes()).collect()
    }

    #[test]
    fn a_channel_type_with_maximum_zero_is_absent() {
        // igb with 8 queue pairs: max rx tx other combined, then counts in the same order
        let channels = channels(&words(&[0, 0, 1, 8, 0, 0, 1, 4])).unwrap();
        assert_eq!(channels.rx, None);
        assert_eq!(channels.other, Some(Limit { current: 1, max: 1 }));
        assert_eq!(channels.combined, Some(Limit { current: 4, max: 8 }));
    }

    #[test]
    fn rss_table_comes_before_the_key() {
        let mut bytes = words(&[0, 4, 2, u32::from_ne_bytes([1, 0, 0, 0]), 0, 0, 1, 2, 3]);
        bytes.extend([0xab, 0xcd]);
        let rss = rss(&bytes).unwrap();
        assert_eq!(rss.function, Some(HashFunction::Toeplitz));
        assert_eq!(rss.indirection, [0, 1, 2, 3]);
        assert_eq!(rss.key.as_deref(), Some(&[0xab, 0xcd][..]));
        assert!(super::rss(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn no_key_is_absent() {
        let bytes = words(&[0, 1, 0, 0, 0, 7]);
        let rss = rss(&bytes).unwrap();
        assert_eq!((rss.key, rss.indirection, rss.function), (None, vec![7], None));
    }

    #[test]
    fn a_feature_is_a_bit_in_its_block_of_32() {
        let mut names = vec![String::new(); 34];
        names[1] = "tx-checksum-ipv4".into();
        names[33] = "rx-gro-hw".into();
        let bytes = words(&[2, 2, 2, 0, 0, 2, 0, 2, 2]);
        let features = features(&bytes, &names).unwrap();
        assert_eq!(features.len(), 2);
        assert!(features[0].available && features[0].requested && !features[0].active);
        assert!(!features[0].fixed());
        assert!(features[1].available && !features[1].requested && features[1].active);
        assert!(features[1].fixed());
    }

    #[test]
    fn an_unknown_speed_is_absent() {
        let mut bytes = vec![0; LINK_SETTINGS_LEN];
        bytes[4..8].fill(0xff);
        bytes[8] = 0xff;
        bytes[9] = 0xff;
        let unknown = link(&bytes).unwrap();
        assert_eq!(
            (unknown.speed_mbps, unknown.duplex, unknown.port.as_str()),
            (None, None, "other")
        );
        bytes[4..8].copy_from_slice(&10_000u32.to_ne_bytes());
        bytes[8] = 1;
        assert_eq!(link(&bytes).unwrap().speed_mbps, Some(10_000));
        assert_eq!(link(&bytes).unwrap().duplex, Some(Duplex::Full));
    }

    #[test]
    fn link_mode_words_come_back_negated() {
        let mut bytes = vec![0; LINK_SETTINGS_LEN];
        bytes[15] = -4i8 as u8;
        assert_eq!(link_mode_words(&bytes), Ok(4));
    }

    #[test]
    fn strings_end_at_their_nul_and_at_the_count() {
        let mut bytes = words(&[1, 2]);
        for name in ["rx_packets", "a_name_that_fills_all_32_bytes__", "beyond the count"] {
            let mut field = [0; GSTRING_LEN];
            field[..name.len()].copy_from_slice(name.as_bytes());
            bytes.extend(field);
        }
        let names = strings(&bytes).unwrap();
        assert_eq!(names, ["rx_packets", "a_name_that_fills_all_32_bytes__"]);
        let mut counters = words(&[2]);
        counters.extend([7u64, 1 << 40].into_iter().flat_map(u64::to_ne_bytes));
        let stats = stats(&counters, &names).unwrap();
        assert_eq!(stats, [("rx_packets".to_owned(), 7), (names[1].clone(), 1 << 40)]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let names = strings(&bytes).unwrap_or_default();
            let _ = (driver(&bytes), channels(&bytes), rings(&bytes), coalesce(&bytes));
            let _ = sset_count(&bytes);
            let _ = (stats(&bytes, &names), features(&bytes, &names));
            let _ = (rss(&bytes), flow_hash(&bytes));
            let _ = (rx_rings(&bytes), rule_count(&bytes), link_mode_words(&bytes), link(&bytes));
        }

        #[test]
        fn the_claimed_table_size_is_checked_against_the_buffer(entries: u32, key: u32) {
            let decoded = rss(&words(&[0, entries, key, 0, 0]));
            prop_assert!(decoded.is_ok() == (entries == 0 && key == 0));
        }
    }
}
