//! Packet sockets (`AF_PACKET`): programs that capture what netdevs receive.

use serde::{Deserialize, Serialize};

use crate::snapshot::count::count;
use crate::snapshot::sockets::Holder;

/// [`crate::snapshot::attribution::Hook::quantity`] of the hook that counts them.
pub const QUANTITY: &str = "packet sockets";

/// What one packet socket took and lost in the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PacketSocket {
    /// A thread group that holds it.
    pub holder: Holder,
    /// Inode number of its network namespace.
    pub netns: u32,
    /// The netdev to which it is bound; empty for all of its namespace.
    pub netdev: String,
    /// Whether the program reads a ring that it shares with the kernel, instead of calling recv.
    pub ring: bool,
    /// Packets that it took (`tp_packets` without those that it lost). Each is a copy of what
    /// others receive, too.
    #[serde(deserialize_with = "count")]
    pub packets: u64,
    /// Packets that found its ring or buffer full (`tp_drops`). At least: a program that reads its
    /// `PACKET_STATISTICS` sets both to 0.
    #[serde(deserialize_with = "count")]
    pub lost: u64,
}
