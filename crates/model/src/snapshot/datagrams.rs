//! UDP packets that enter and leave each network namespace.

use serde::{Deserialize, Serialize};

use crate::snapshot::count::count;

/// [`crate::snapshot::attribution::Hook::quantity`] of the hooks that count them.
pub const QUANTITY: &str = "udp packets";

/// UDP packets of one network namespace, as on the wire. Fragments count as the first of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Datagrams {
    /// Inode number of the namespace.
    pub netns: u32,
    /// Packets that a netdev of the namespace received, those of the loopback included.
    #[serde(deserialize_with = "count")]
    pub entered: u64,
    /// Packets that were read from sockets of the namespace. Estimated where reads were sampled.
    #[serde(deserialize_with = "count")]
    pub read: u64,
    /// Packets of any protocol that came out of a tunnel over UDP: consumed UDP packets.
    #[serde(deserialize_with = "count")]
    pub tunnelled: u64,
    /// Packets that were passed on to a netdev that sends them. A flooded packet counts several
    /// times.
    #[serde(deserialize_with = "count")]
    pub left: u64,
}
