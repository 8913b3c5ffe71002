//! The Toeplitz hash of receive side scaling: addresses and ports in, 32 bits out.
//!
//! Tested against the verification suite of the RSS specification. Module `rss` applies the hash.

use core::net::{IpAddr, SocketAddr};

/// How the fields are transformed before hashing, so that both directions of a connection have the
/// same hash (`RXH_XFRM_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    /// Both halves are source xor destination.
    SymmetricXor,
    /// The first half is source or destination, the second source xor destination.
    SymmetricOrXor,
}

impl Transform {
    /// Decodes `input_xfrm`; unknown bits are an error.
    pub fn from_input_xfrm(input_xfrm: u8) -> Result<Option<Self>, String> {
        match input_xfrm {
            0 => Ok(None),
            1 => Ok(Some(Self::SymmetricXor)),
            2 => Ok(Some(Self::SymmetricOrXor)),
            other => Err(format!("it transforms the hash input in an unknown way ({other:#x})")),
        }
    }
}

/// Computes the Toeplitz hash of `input`; `None` if the key is too short for it.
///
/// If bit n of the input is set, the 32 bits of the key that start at bit n are XORed into the
/// hash.
pub fn hash(key: &[u8], input: &[u8]) -> Option<u32> {
    let (start, rest) = key.split_first_chunk::<4>()?;
    let mut window = u32::from_be_bytes(*start);
    let mut hash = 0;
    if rest.len() < input.len() {
        return None;
    }
    for (byte, next) in input.iter().zip(rest) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    Some(hash)
}

/// Builds the hash input of a packet from `source` to `target`: addresses, then ports if `ports`.
/// Returns `None` if the addresses are of different families.
pub fn input(
    source: SocketAddr,
    target: SocketAddr,
    ports: bool,
    transform: Option<Transform>,
) -> Option<Vec<u8>> {
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut fields = vec![(octets(source), octets(target))];
    if ports {
        fields.push((source.port().to_be_bytes().to_vec(), target.port().to_be_bytes().to_vec()));
    }
    let mut input = Vec::with_capacity(36);
    for (source, target) in fields {
        if source.len() != target.len() {
            return None;
        }
        let both = |mix: fn(u8, u8) -> u8| {
            source.iter().zip(&target).map(|(a, b)| mix(*a, *b)).collect::<Vec<u8>>()
        };
        let (first, second) = match transform {
            None => (source, target),
            Some(Transform::SymmetricXor) => (both(|a, b| a ^ b), both(|a, b| a ^ b)),
            Some(Transform::SymmetricOrXor) => (both(|a, b| a | b), both(|a, b| a ^ b)),
        };
        input.extend(first);
        input.extend(second);
    }
    Some(input)
}

/// Parses `net.core.netdev_rss_key`: hexadecimal bytes separated by colons, all zero until a driver
/// requests the key.
pub fn parse_key(text: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> =
        text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.filter(|key| key.iter().any(|byte| *byte != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rss::suite::{KEY, SUITE};

    #[test]
    fn the_hash_is_that_of_the_rss_verification_suite() {
        for (source, destination, addresses, with_ports) in SUITE {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            let hash_of = |ports| hash(&KEY, &input(source, destination, ports, None).unwrap());
            assert_eq!(hash_of(false), Some(addresses), "{source}");
            assert_eq!(hash_of(true), Some(with_ports), "{source}");
        }
    }

    #[test]
    fn a_symmetric_hash_is_the_same_both_ways_and_the_two_kinds_differ() {
        let (a, b) = (SUITE[1].0.parse().unwrap(), SUITE[1].1.parse().unwrap());
        let hash_of = |a, b, transform| hash(&KEY, &input(a, b, true, transform).unwrap()).unwrap();
        let (xor, or_xor) = (Some(Transform::SymmetricXor), Some(Transform::SymmetricOrXor));
        assert_eq!(hash_of(a, b, xor), hash_of(b, a, xor));
        assert_eq!(hash_of(a, b, or_xor), hash_of(b, a, or_xor));
        assert_ne!(hash_of(a, b, None), hash_of(b, a, None));
        assert_ne!(hash_of(a, b, xor), hash_of(a, b, or_xor));
    }

    #[test]
    fn a_symmetric_input_follows_the_kernels_documentation() {
        let (a, b) = ("1.2.3.4:5".parse().unwrap(), "8.8.8.8:1".parse().unwrap());
        let made = |transform| input(a, b, true, Some(transform)).unwrap();
        assert_eq!(made(Transform::SymmetricXor), [9, 10, 11, 12, 9, 10, 11, 12, 0, 4, 0, 4]);
        assert_eq!(made(Transform::SymmetricOrXor), [9, 10, 11, 12, 9, 10, 11, 12, 0, 5, 0, 4]);
        assert_eq!(Transform::from_input_xfrm(2), Ok(Some(Transform::SymmetricOrXor)));
        assert!(Transform::from_input_xfrm(4).is_err());
    }

    #[test]
    fn addresses_of_two_families_have_no_input() {
        assert_eq!(
            input(SUITE[0].0.parse().unwrap(), SUITE[5].1.parse().unwrap(), false, None),
            None
        );
    }

    #[test]
    fn a_key_too_short_for_the_input_gives_no_hash() {
        assert!(hash(&KEY, &[0xff; 36]).is_some());
        assert_eq!(hash(&KEY, &[0xff; 37]), None);
        assert_eq!(hash(&[1, 2, 3], &[]), None);
    }

    #[test]
    fn an_rss_key_that_no_driver_asked_for_is_absent() {
        assert_eq!(parse_key("00:00:00"), None);
        assert_eq!(parse_key("0a:ff\n"), Some(vec![0x0a, 0xff]));
        assert_eq!(parse_key("0a:xx"), None);
    }
}
