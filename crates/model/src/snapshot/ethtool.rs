//! The state of a netdev that `ethtool` shows, as plain values that a bundle can store.
//!
//! Field names are those of the kernel's `include/uapi/linux/ethtool.h`. `ethtool_decode` decodes
//! the kernel's bytes; the `sys` crate reads them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::machine::as_text::as_text;
use crate::machine::reading::Reading;

/// Everything that a driver reports through ethtool. A part may be absent, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ethtool {
    /// Driver and firmware.
    pub driver: Reading<Driver>,
    /// Channel counts (queues).
    pub channels: Reading<Channels>,
    /// Descriptors per ring.
    pub rings: Reading<Rings>,
    /// Interrupt moderation.
    pub coalesce: Reading<Coalesce>,
    /// Offloads, in the kernel's order.
    pub features: Reading<Vec<Feature>>,
    /// Receive side scaling, context 0.
    pub rss: Reading<Rss>,
    /// Number of rx rings that RSS may use.
    pub rx_rings: Reading<u32>,
    /// Number of installed ntuple (flow steering) rules.
    pub ntuple_rules: Reading<u32>,
    /// Packet fields in the RSS hash, for each flow type.
    pub flow_hash: BTreeMap<FlowType, Reading<HashFields>>,
    /// Speed and duplex.
    pub link: Reading<Link>,
    /// The driver's own counters, in its order. A name may repeat.
    pub stats: Reading<Vec<(String, u64)>>,
}

/// `struct ethtool_drvinfo`; `None` for an empty string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Name, such as `igb`.
    pub driver: String,
    /// Version. If the driver gives none, this is the kernel's version.
    pub version: Option<String>,
    /// Firmware version.
    pub fw_version: Option<String>,
    /// Address on its bus, such as `0000:01:00.0`.
    pub bus_info: Option<String>,
}

/// A current value and its maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Current value.
    pub current: u32,
    /// Maximum that the driver accepts.
    pub max: u32,
}

/// `struct ethtool_channels`; `None` if the netdev does not have this channel type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Channels that only receive.
    pub rx: Option<Limit>,
    /// Channels that only transmit.
    pub tx: Option<Limit>,
    /// Channels for other purposes (link events, a management queue).
    pub other: Option<Limit>,
    /// Channels that receive and transmit.
    pub combined: Option<Limit>,
}

/// `struct ethtool_ringparam`, in descriptors; `None` if the netdev does not have this ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
    /// Receive ring.
    pub rx: Option<Limit>,
    /// Receive ring of small buffers.
    pub rx_mini: Option<Limit>,
    /// Receive ring of large buffers.
    pub rx_jumbo: Option<Limit>,
    /// Transmit ring.
    pub tx: Option<Limit>,
}

/// `struct ethtool_coalesce`. The ioctl also reports 0 for a setting that the driver lacks.
#[allow(missing_docs)] // the kernel's header documents each field under the same name
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalesce {
    pub rx_coalesce_usecs: u32,
    pub rx_max_coalesced_frames: u32,
    pub rx_coalesce_usecs_irq: u32,
    pub rx_max_coalesced_frames_irq: u32,
    pub tx_coalesce_usecs: u32,
    pub tx_max_coalesced_frames: u32,
    pub tx_coalesce_usecs_irq: u32,
    pub tx_max_coalesced_frames_irq: u32,
    pub stats_block_coalesce_usecs: u32,
    pub use_adaptive_rx_coalesce: bool,
    pub use_adaptive_tx_coalesce: bool,
    /// Packets per second below which the `_low` fields apply.
    pub pkt_rate_low: u32,
    pub rx_coalesce_usecs_low: u32,
    pub rx_max_coalesced_frames_low: u32,
    pub tx_coalesce_usecs_low: u32,
    pub tx_max_coalesced_frames_low: u32,
    /// Packets per second above which the `_high` fields apply.
    pub pkt_rate_high: u32,
    pub rx_coalesce_usecs_high: u32,
    pub rx_max_coalesced_frames_high: u32,
    pub tx_coalesce_usecs_high: u32,
    pub tx_max_coalesced_frames_high: u32,
    /// Seconds between two samples of the packet rate.
    pub rate_sample_interval: u32,
}

impl Ethtool {
    /// All parts absent, for the same reason.
    pub fn unavailable(why: &str) -> Self {
        fn absent<T>(why: &str) -> Reading<T> {
            Reading::Absent(why.to_owned())
        }
        Self {
            driver: absent(why),
            channels: absent(why),
            rings: absent(why),
            coalesce: absent(why),
            features: absent(why),
            rss: absent(why),
            rx_rings: absent(why),
            ntuple_rules: absent(why),
            flow_hash: BTreeMap::new(),
            link: absent(why),
            stats: absent(why),
        }
    }

    /// The offload with this name.
    pub fn feature(&self, name: &str) -> Option<&Feature> {
        self.features.value()?.iter().find(|feature| feature.name == name)
    }

    /// The offload with this name, mutable.
    pub fn feature_mut(&mut self, name: &str) -> Option<&mut Feature> {
        match &mut self.features {
            Reading::Value(features) => features.iter_mut().find(|feature| feature.name == name),
            Reading::Absent(_) => None,
        }
    }
}

/// One offload, such as `rx-gro` or `rx-ntuple-filter`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// The kernel's name (`netdev_features_strings`), not ethtool's older alias.
    pub name: String,
    /// Whether the driver allows changes.
    pub available: bool,
    /// Whether the user requested it.
    pub requested: bool,
    /// Whether it is in effect.
    pub active: bool,
    /// Whether the core forbids changes.
    pub never_changed: bool,
}

impl Feature {
    /// Whether it cannot be changed (ethtool prints `[fixed]`).
    pub fn fixed(&self) -> bool {
        !self.available || self.never_changed
    }
}

/// RSS: the packet hash modulo the table length selects an entry, and the entry is the rx queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rss {
    /// The hash function; `None` if the driver does not report it.
    pub function: Option<HashFunction>,
    /// The hash key; `None` if the driver does not report it (igb before 2026).
    pub key: Option<Vec<u8>>,
    /// The indirection table: the rx queue of each entry. Empty if the driver has no table.
    pub indirection: Vec<u32>,
    /// Bits of `input_xfrm` (since 6.8): 1 symmetric-xor, 2 symmetric-or-xor. 0 for none, or on
    /// older kernels.
    pub input_xfrm: u8,
}

/// RSS hash functions that ethtool knows (`ETH_RSS_HASH_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HashFunction {
    /// Toeplitz, the hash of the RSS specification.
    Toeplitz,
    /// Exclusive or.
    Xor,
    /// CRC32.
    Crc32,
    /// Another function, by its bit number.
    Other(u8),
}

/// Flow types whose RSS hash can be queried, named as on ethtool's command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum FlowType {
    Tcp4,
    Udp4,
    Sctp4,
    /// AH and ESP over IPv4.
    AhEsp4,
    Tcp6,
    Udp6,
    Sctp6,
    /// AH and ESP over IPv6.
    AhEsp6,
}

impl FlowType {
    /// All flow types.
    pub const ALL: [FlowType; 8] = [
        FlowType::Tcp4,
        FlowType::Udp4,
        FlowType::Sctp4,
        FlowType::AhEsp4,
        FlowType::Tcp6,
        FlowType::Udp6,
        FlowType::Sctp6,
        FlowType::AhEsp6,
    ];

    /// The name on ethtool's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            FlowType::Tcp4 => "tcp4",
            FlowType::Udp4 => "udp4",
            FlowType::Sctp4 => "sctp4",
            FlowType::AhEsp4 => "ah4",
            FlowType::Tcp6 => "tcp6",
            FlowType::Udp6 => "udp6",
            FlowType::Sctp6 => "sctp6",
            FlowType::AhEsp6 => "ah6",
        }
    }

    /// The kernel's number (`TCP_V4_FLOW` etc.).
    pub fn number(self) -> u32 {
        match self {
            FlowType::Tcp4 => 1,
            FlowType::Udp4 => 2,
            FlowType::Sctp4 => 3,
            FlowType::AhEsp4 => 4,
            FlowType::Tcp6 => 5,
            FlowType::Udp6 => 6,
            FlowType::Sctp6 => 7,
            FlowType::AhEsp6 => 8,
        }
    }
}

impl fmt::Display for FlowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The packet fields in the RSS hash, in ethtool's form (`sdfn`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub struct HashFields(u64);

/// ethtool's letters and the kernel's bits (`RXH_*`).
const LETTERS: [(char, u64); 10] = [
    ('m', 1 << 1),
    ('v', 1 << 2),
    ('t', 1 << 3),
    ('s', 1 << 4),
    ('d', 1 << 5),
    ('f', 1 << 6),
    ('n', 1 << 7),
    ('e', 1 << 8),
    ('l', 1 << 9),
    ('r', 1 << 31),
];

impl HashFields {
    /// Source and destination address.
    pub const ADDRESSES: HashFields = HashFields(1 << 4 | 1 << 5);
    /// Source and destination port.
    pub const PORTS: HashFields = HashFields(1 << 6 | 1 << 7);
    /// Source and destination address and port.
    pub const ADDRESSES_AND_PORTS: HashFields = HashFields(1 << 4 | 1 << 5 | 1 << 6 | 1 << 7);

    /// Makes a set from the kernel's bits.
    pub fn from_bits(bits: u64) -> Self {
        HashFields(bits)
    }

    /// The kernel's bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether the hash uses all of `other`'s fields.
    pub fn contains(self, other: HashFields) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the hash uses no field. Then all flows use entry 0.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for HashFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for (letter, bit) in LETTERS {
            if self.0 & bit != 0 {
                write!(f, "{letter}")?;
                rest &= !bit;
            }
        }
        if rest != 0 {
            write!(f, "+{rest:#x}")?;
        }
        Ok(())
    }
}

/// A text that is not a set of ethtool's hash letters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "hash fields `{0}`: expected letters of `mvtsdfnelr`, optionally followed by `+0x<other bits>`"
)]
pub struct HashFieldsError(String);

impl FromStr for HashFields {
    type Err = HashFieldsError;

    fn from_str(text: &str) -> Result<Self, HashFieldsError> {
        let refuse = || HashFieldsError(text.to_owned());
        let (letters, other) = text.split_once("+0x").map_or((text, None), |(l, o)| (l, Some(o)));
        let mut bits = match other {
            Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| refuse())?,
            None => 0,
        };
        for letter in letters.chars() {
            bits |= LETTERS.iter().find(|(l, _)| *l == letter).ok_or_else(refuse)?.1;
        }
        Ok(HashFields(bits))
    }
}

as_text!(HashFields);

/// `struct ethtool_link_settings`: the fields that placement uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Speed in Mbit/s; `None` if it is unknown, or 0, which drivers report while the link is down.
    pub speed_mbps: Option<u32>,
    /// Duplex; `None` when unknown.
    pub duplex: Option<Duplex>,
    /// Connector: `tp`, `fibre`, `da`, `none`, ...
    pub port: String,
    /// Whether speed and duplex are negotiated; `None` if unknown.
    pub autoneg: Option<bool>,
}

/// Duplex of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplex {
    /// One direction at a time.
    Half,
    /// Both directions at once.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_fields_round_trip_in_ethtools_notation() {
        let both = HashFields(HashFields::ADDRESSES.0 | HashFields::PORTS.0);
        assert_eq!(both.to_string(), "sdfn");
        for bits in [0, 0x30, 0xf0, 1 << 31 | 2, 0xf0 | 1 << 20] {
            let fields = HashFields::from_bits(bits);
            assert_eq!(fields.to_string().parse(), Ok(fields));
        }
        assert!(both.contains(HashFields::PORTS));
        assert!(!HashFields::ADDRESSES.contains(HashFields::PORTS));
        assert!("sdx".parse::<HashFields>().is_err());
        assert!("sd+0xzz".parse::<HashFields>().is_err());
    }

    #[test]
    fn a_bundle_keeps_the_reason_for_an_absent_part() {
        let absent: Reading<Channels> = Reading::Absent("EOPNOTSUPP: no".into());
        let json = serde_json::to_string(&absent).unwrap();
        assert_eq!(json, r#"{"absent":"EOPNOTSUPP: no"}"#);
        assert_eq!(serde_json::from_str::<Reading<Channels>>(&json).unwrap(), absent);
        let flow_hash = BTreeMap::from([(FlowType::Udp4, Reading::Value(HashFields::ADDRESSES))]);
        let json = serde_json::to_string(&flow_hash).unwrap();
        assert_eq!(json, r#"{"udp4":{"value":"sd"}}"#);
        assert_eq!(
            serde_json::from_str::<BTreeMap<FlowType, Reading<HashFields>>>(&json).unwrap(),
            flow_hash
        );
    }
}
