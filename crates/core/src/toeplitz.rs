//! Receive side scaling reckoned by hand: addresses and ports -> Toeplitz hash -> indirection table -> rx queue.
//!
//! For flows whose NAPI the kernel doesn't tell. Checked against the verification suite of the RSS specification.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use crate::ethtool::{Ethtool, FlowType, HashFields, HashFunction};
use crate::host::NapiId;

/// Bytes of key that the kernel hands to drivers (`NETDEV_RSS_KEY_LEN` is 52 or 256; igb and igc take 40).
const INTEL_KEY_LEN: usize = 40;
/// `RXH_XFRM_SYM_XOR`: source and destination are xored, and both copies hashed.
const SYM_XOR: u8 = 1;

/// The Toeplitz hash of `input`; `None` where the key is too short for it.
///
/// Bit n of the input, if set, adds (xor) the 32 bits of the key that begin at bit n.
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

/// What is hashed of a packet from `remote` to `local`: addresses, then ports if `ports`; both of one family.
fn input(remote: SocketAddr, local: SocketAddr, ports: bool, xor: bool) -> Option<Vec<u8>> {
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut fields = vec![(octets(remote), octets(local))];
    if ports {
        fields.push((remote.port().to_be_bytes().to_vec(), local.port().to_be_bytes().to_vec()));
    }
    let mut input = Vec::with_capacity(36);
    for (source, destination) in fields {
        if source.len() != destination.len() {
            return None;
        }
        if xor {
            let mixed: Vec<u8> = source.iter().zip(&destination).map(|(a, b)| a ^ b).collect();
            input.extend_from_slice(&mixed);
            input.extend_from_slice(&mixed);
        } else {
            input.extend(source);
            input.extend(destination);
        }
    }
    Some(input)
}

/// How one netdev steers packets that arrive for one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steering {
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// The NAPI of each rx queue, where known.
    pub napis: BTreeMap<u32, NapiId>,
    key: Vec<u8>,
    indirection: Vec<u32>,
    input_xfrm: u8,
    tcp4: Option<HashFields>,
    tcp6: Option<HashFields>,
}

impl Steering {
    /// From what ethtool tells; `None` where hash, key or table are unknown, or the hash is another one.
    ///
    /// `netdev_rss_key` is the sysctl `net.core.netdev_rss_key`, as printed: the key of drivers that show none.
    pub fn new(addresses: Vec<IpAddr>, ethtool: &Ethtool, netdev_rss_key: &str) -> Option<Self> {
        let rss = ethtool.rss.value()?;
        if rss.indirection.is_empty() || !matches!(rss.function, None | Some(HashFunction::Toeplitz)) {
            return None;
        }
        let driver = ethtool.driver.value().map(|driver| driver.driver.as_str());
        let key = match (&rss.key, driver) {
            (Some(key), _) => key.clone(),
            // igb_setup_mrqc, igc_setup_mrqc: netdev_rss_key_fill()
            (None, Some("igb" | "igc")) => parse_key(netdev_rss_key)?.get(..INTEL_KEY_LEN)?.to_vec(),
            (None, _) => return None,
        };
        let fields = |flow| ethtool.flow_hash.get(&flow).and_then(|fields| fields.value()).copied();
        Some(Steering {
            addresses,
            napis: BTreeMap::new(),
            key,
            indirection: rss.indirection.clone(),
            input_xfrm: rss.input_xfrm,
            tcp4: fields(FlowType::Tcp4),
            tcp6: fields(FlowType::Tcp6),
        })
    }

    /// The rx queue of TCP packets from `remote` to `local`; `None` where this can't be reckoned.
    pub fn tcp_queue(&self, remote: SocketAddr, local: SocketAddr) -> Option<u32> {
        let fields = if local.is_ipv4() { self.tcp4 } else { self.tcp6 }?;
        if !fields.contains(HashFields::ADDRESSES) || self.input_xfrm & !SYM_XOR != 0 {
            return None;
        }
        let ports = fields.contains(HashFields::PORTS);
        let input = input(remote, local, ports, self.input_xfrm == SYM_XOR)?;
        let bucket = hash(&self.key, &input)? as usize % self.indirection.len();
        self.indirection.get(bucket).copied()
    }
}

/// `net.core.netdev_rss_key`: bytes in hexadecimal, with colons; all zero until a driver asked for it.
pub fn parse_key(text: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.filter(|key| key.iter().any(|byte| *byte != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethtool::{Driver, Rss};
    use crate::part::Part;

    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    /// The verification suite of the RSS specification: source, destination, hash of addresses, hash with ports.
    const SUITE: [(&str, &str, u32, u32); 8] = [
        ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
        ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x4b61_e985, 0x02d1_feef),
    ];

    #[test]
    fn the_hash_is_that_of_the_rss_verification_suite() {
        for (source, destination, addresses, with_ports) in SUITE {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            let hash_of = |ports| hash(&KEY, &input(source, destination, ports, false).unwrap());
            assert_eq!(hash_of(false), Some(addresses), "{source}");
            assert_eq!(hash_of(true), Some(with_ports), "{source}");
        }
    }

    fn steering(driver: &str, key: Option<&[u8]>, fields: &str, xfrm: u8) -> Option<Steering> {
        let absent = || "not asked".to_owned();
        let driver = Driver { driver: driver.into(), version: None, fw_version: None, bus_info: None };
        let rss = Rss {
            function: Some(HashFunction::Toeplitz),
            key: key.map(<[u8]>::to_vec),
            indirection: (0..128).map(|bucket| bucket % 8).collect(),
            input_xfrm: xfrm,
        };
        let ethtool = Ethtool {
            driver: Part::Value(driver),
            rss: Part::Value(rss),
            flow_hash: BTreeMap::from([(FlowType::Tcp4, Part::Value(fields.parse().unwrap()))]),
            channels: Part::Absent(absent()),
            rings: Part::Absent(absent()),
            coalesce: Part::Absent(absent()),
            features: Part::Absent(absent()),
            rx_rings: Part::Absent(absent()),
            ntuple_rules: Part::Absent(absent()),
            link: Part::Absent(absent()),
            stats: Part::Absent(absent()),
        };
        let printed: Vec<String> = KEY.iter().chain(&[0; 12]).map(|byte| format!("{byte:02x}")).collect();
        Steering::new(vec![], &ethtool, &printed.join(":"))
    }

    #[test]
    fn the_queue_is_the_table_entry_of_the_hash() {
        let (remote, local) = (SUITE[0].0.parse().unwrap(), SUITE[0].1.parse().unwrap());
        let with_ports = steering("ice", Some(&KEY), "sdfn", 0).unwrap();
        assert_eq!(with_ports.tcp_queue(remote, local), Some(0x78 % 8));
        let addresses = steering("ice", Some(&KEY), "sd", 0).unwrap();
        assert_eq!(addresses.tcp_queue(remote, local), Some(0x42 % 8));
        assert_eq!(addresses.tcp_queue(SUITE[5].0.parse().unwrap(), SUITE[5].1.parse().unwrap()), None);
    }

    #[test]
    fn igb_hides_its_key_which_is_the_kernels_and_others_without_a_key_stay_unknown() {
        assert_eq!(steering("igb", None, "sdfn", 0).unwrap().key, KEY);
        assert_eq!(steering("vmxnet3", None, "sdfn", 0), None);
    }

    #[test]
    fn a_symmetric_hash_is_the_same_both_ways() {
        let (a, b) = (SUITE[1].0.parse().unwrap(), SUITE[1].1.parse().unwrap());
        let symmetric = steering("ice", Some(&KEY), "sdfn", SYM_XOR).unwrap();
        assert!(symmetric.tcp_queue(a, b).is_some());
        assert_eq!(symmetric.tcp_queue(a, b), symmetric.tcp_queue(b, a));
        assert_eq!(steering("ice", Some(&KEY), "sdfn", 2).unwrap().tcp_queue(a, b), None);
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
