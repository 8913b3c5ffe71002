//! What `ethtool` would show of a netdev, as plain values that a bundle can hold.
//!
//! Field names are those of the kernel's `include/uapi/linux/ethtool.h`. Decoding the kernel's
//! bytes is in `ethtool_decode`; asking for them is the kernel edge's.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::machine::as_text::as_text;
use crate::machine::reading::Part;

/// All that a netdev's driver tells through ethtool; each part may be absent, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ethtool {
    /// Who drives the netdev.
    pub driver: Part<Driver>,
    /// Numbers of queues.
    pub channels: Part<Channels>,
    /// Descriptors per ring.
    pub rings: Part<Rings>,
    /// Interrupt moderation.
    pub coalesce: Part<Coalesce>,
    /// Offloads, in the kernel's order.
    pub features: Part<Vec<Feature>>,
    /// Receive side scaling, context 0.
    pub rss: Part<Rss>,
    /// How many rx rings RSS may use.
    pub rx_rings: Part<u32>,
    /// How many ntuple (flow steering) rules are installed.
    pub ntuple_rules: Part<u32>,
    /// What RSS hashes, for each type of flow.
    pub flow_hash: BTreeMap<FlowType, Part<HashFields>>,
    /// Speed and duplex.
    pub link: Part<Link>,
    /// The driver's own counters, in its order (a name may repeat).
    pub stats: Part<Vec<(String, u64)>>,
}

/// `struct ethtool_drvinfo`; an empty string of the driver is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Name, such as `igb`.
    pub driver: String,
    /// Version; the kernel's own where the driver gives none.
    pub version: Option<String>,
    /// Firmware version.
    pub fw_version: Option<String>,
    /// Address on its bus, such as `0000:01:00.0`.
    pub bus_info: Option<String>,
}

/// How many of something are in use, and how many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// In use.
    pub current: u32,
    /// The most that the driver accepts.
    pub max: u32,
}

/// `struct ethtool_channels`; `None`: the netdev has no such channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Channels that only receive.
    pub rx: Option<Limit>,
    /// Channels that only transmit.
    pub tx: Option<Limit>,
    /// Channels for something else (link events, a management queue).
    pub other: Option<Limit>,
    /// Channels that do both.
    pub combined: Option<Limit>,
}

/// `struct ethtool_ringparam`, in descriptors; `None`: the netdev has no such ring.
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

/// `struct ethtool_coalesce`. The ioctl can't tell "0" from "the driver has no such knob".
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
    /// Seconds between two samplings of the packet rate.
    pub rate_sample_interval: u32,
}

impl Ethtool {
    /// Nothing known of it, for one reason.
    pub fn untold(why: &str) -> Self {
        fn absent<T>(why: &str) -> Part<T> {
            Part::Absent(why.to_owned())
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

    /// An offload by its name.
    pub fn feature(&self, name: &str) -> Option<&Feature> {
        self.features.value()?.iter().find(|feature| feature.name == name)
    }

    /// An offload by its name, to be changed.
    pub fn feature_mut(&mut self, name: &str) -> Option<&mut Feature> {
        match &mut self.features {
            Part::Value(features) => features.iter_mut().find(|feature| feature.name == name),
            Part::Absent(_) => None,
        }
    }
}

/// One offload, such as `rx-gro` or `rx-ntuple-filter`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// The kernel's name (`netdev_features_strings`), not ethtool's older alias.
    pub name: String,
    /// The driver lets it be changed.
    pub available: bool,
    /// Wanted by the user.
    pub requested: bool,
    /// In effect.
    pub active: bool,
    /// The core never lets it be changed.
    pub never_changed: bool,
}

impl Feature {
    /// Whether it can't be changed (ethtool prints `[fixed]`).
    pub fn fixed(&self) -> bool {
        !self.available || self.never_changed
    }
}

/// RSS: hash of the packet, modulo the table's length, gives the entry; the entry gives the rx
/// queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rss {
    /// Which hash; `None` where the driver doesn't say.
    pub function: Option<HashFunction>,
    /// The hash key; `None` where the driver shows none (igb before 2026).
    pub key: Option<Vec<u8>>,
    /// The indirection table: rx queue of each bucket; empty where the driver has none.
    pub indirection: Vec<u32>,
    /// Bits of `input_xfrm` (since 6.8): 1 symmetric-xor, 2 symmetric-or-xor; 0 none or unknown to
    /// the kernel.
    pub input_xfrm: u8,
}

/// RSS hash functions that ethtool knows (`ETH_RSS_HASH_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HashFunction {
    /// Toeplitz: the one of the RSS specification.
    Toeplitz,
    /// Exclusive or.
    Xor,
    /// CRC32.
    Crc32,
    /// Another one, by its bit.
    Other(u8),
}

/// Types of flow whose RSS hash can be asked for; named as on ethtool's command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum FlowType {
    Tcp4,
    Udp4,
    Sctp4,
    /// AH and ESP over IPv4 together.
    AhEsp4,
    Tcp6,
    Udp6,
    Sctp6,
    /// AH and ESP over IPv6 together.
    AhEsp6,
}

impl FlowType {
    /// All of them.
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

    /// ethtool's word for it.
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

    /// The kernel's number (`TCP_V4_FLOW` and so on).
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

/// The packet fields that go into the RSS hash, written as ethtool does (`sdfn`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// All four.
    pub const ADDRESSES_AND_PORTS: HashFields = HashFields(1 << 4 | 1 << 5 | 1 << 6 | 1 << 7);

    /// From the kernel's bits.
    pub fn from_bits(bits: u64) -> Self {
        HashFields(bits)
    }

    /// The kernel's bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether all of `other`'s fields are hashed.
    pub fn contains(self, other: HashFields) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether nothing is hashed: such flows all take bucket 0.
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

/// A text that isn't a set of ethtool's hash letters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hash fields `{0}`: want letters of `mvtsdfnelr`, then perhaps `+0x<other bits>`")]
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

/// `struct ethtool_link_settings`, what placement cares about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Megabits per second; `None` where unknown (also 0, which drivers say while the link is
    /// down).
    pub speed_mbps: Option<u32>,
    /// Duplex; `None` where unknown.
    pub duplex: Option<Duplex>,
    /// Connector: `tp`, `fibre`, `da`, `none`, ...
    pub port: String,
    /// Whether speed and duplex are negotiated; `None` where unknown.
    pub autoneg: Option<bool>,
}

/// Duplex of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplex {
    /// One direction at a time.
    Half,
    /// Both at once.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_fields_are_written_as_ethtool_writes_them_and_read_back() {
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
    fn a_bundle_keeps_the_reason_of_an_absence() {
        let absent: Part<Channels> = Part::Absent("EOPNOTSUPP: no".into());
        let json = serde_json::to_string(&absent).unwrap();
        assert_eq!(json, r#"{"absent":"EOPNOTSUPP: no"}"#);
        assert_eq!(serde_json::from_str::<Part<Channels>>(&json).unwrap(), absent);
        let flow_hash = BTreeMap::from([(FlowType::Udp4, Part::Value(HashFields::ADDRESSES))]);
        let json = serde_json::to_string(&flow_hash).unwrap();
        assert_eq!(json, r#"{"udp4":{"value":"sd"}}"#);
        assert_eq!(
            serde_json::from_str::<BTreeMap<FlowType, Part<HashFields>>>(&json).unwrap(),
            flow_hash
        );
    }
}
