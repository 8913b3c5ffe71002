//! Packet sockets (`AF_PACKET`) and `AF_XDP` sockets: programs that read what netdevs receive, past
//! the protocols.

use serde::{Deserialize, Serialize};

use crate::snapshot::count::count;
use crate::snapshot::sockets::Holder;

/// [`crate::snapshot::attribution::Hook::quantity`] of the hook that counts them.
pub const QUANTITY: &str = "packet sockets";

/// How a program gets its packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureKind {
    /// By calls of recv on a packet socket.
    #[default]
    Recv,
    /// From a ring that its packet socket shares with the kernel.
    Ring,
    /// From the ring of an `AF_XDP` socket.
    Xdp,
}

/// What one socket took and lost in the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PacketSocket {
    /// A thread group that holds it.
    pub holder: Holder,
    /// Inode number of its network namespace.
    pub netns: u32,
    /// The netdev to which it is bound; empty for all of its namespace.
    pub netdev: String,
    /// The rx queue of an `AF_XDP` socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// How it gets its packets.
    pub kind: CaptureKind,
    /// Packets that it took: of packet sockets, copies of what others receive, too (`tp_packets`
    /// without those that it lost).
    #[serde(deserialize_with = "count")]
    pub packets: u64,
    /// Packets that waited in its receive queue at the end, less those of the beginning.
    #[serde(default)]
    pub waiting: i64,
    /// Packets that found its ring or buffer full (`tp_drops`; `rx_dropped` and `rx_ring_full`). At
    /// least: a program that reads its `PACKET_STATISTICS` sets both to 0.
    #[serde(deserialize_with = "count")]
    pub lost: u64,
}
