//! IP packets that enter and leave each network namespace.

use serde::{Deserialize, Serialize};

use crate::snapshot::count::count;

/// [`crate::snapshot::attribution::Hook::quantity`] of the hooks that count them.
pub const QUANTITY: &str = "ip packets";

/// The packets of one class in one network namespace, as on the wire. Fragments count as the first
/// of them. What entered has a row for each netdev and rx queue; the rest has one row without.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IpPackets {
    /// Inode number of the namespace.
    pub netns: u32,
    /// What they carry.
    pub class: IpClass,
    /// Interface index of the netdev that received them; 0 for the row without.
    pub ifindex: u32,
    /// The rx queue that the driver recorded; `None` for virtual netdevs.
    pub rx_queue: Option<u32>,
    /// Packets that a netdev of the namespace received, those of the loopback included.
    #[serde(deserialize_with = "count")]
    pub entered: u64,
    /// Their payload in bytes, after the header of TCP or UDP; of others, after that of IP.
    #[serde(deserialize_with = "count")]
    pub entered_bytes: u64,
    /// Packets that were read from sockets of the namespace (0 for TCP), or from a macvtap or
    /// ipvtap. Estimated where reads were sampled.
    #[serde(deserialize_with = "count")]
    pub read: u64,
    /// Packets of any class that came out of a tunnel over this class: consumed packets.
    #[serde(deserialize_with = "count")]
    pub tunnelled: u64,
    /// Their bytes.
    #[serde(deserialize_with = "count")]
    pub tunnelled_bytes: u64,
    /// Packets that were passed on to a netdev that sends them. A flooded packet counts several
    /// times.
    #[serde(deserialize_with = "count")]
    pub left: u64,
    /// Their payload in bytes.
    #[serde(deserialize_with = "count")]
    pub left_bytes: u64,
}

/// What an IP packet carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IpClass {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// A protocol that the kernel takes for a tunnel's netdev only, if at all: GRE, IP in IP, and
    /// those of programs with raw sockets (OSPF, VRRP).
    Other,
}

impl IpClass {
    /// The class of an IP protocol. `None` for protocols that the kernel takes without a netdev:
    /// ICMP, IGMP, ESP, AH, L2TP, SCTP, PIM, and the extension headers of IPv6.
    pub fn of(protocol: u8) -> Option<Self> {
        match protocol {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            0..=2 | 43 | 44 | 50 | 51 | 58..=60 | 103 | 115 | 132 | 135 => None,
            _ => Some(Self::Other),
        }
    }
}
