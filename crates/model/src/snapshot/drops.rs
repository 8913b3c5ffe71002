//! Packets that the kernel dropped, as `skb:kfree_skb` reports them.

use serde::{Deserialize, Serialize};

use crate::snapshot::count::count;

/// [`crate::snapshot::attribution::Hook::quantity`] of the hook that counts them.
pub const QUANTITY: &str = "dropped packets";

/// Packets that one function dropped for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DroppedPackets {
    /// The kernel function that dropped them (`nf_hook_slow`); empty if its name is hidden.
    pub function: String,
    /// The module that has this function; `None` for the kernel image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The kernel's name of the reason (`NETFILTER_DROP`, `enum skb_drop_reason`); empty before
    /// Linux 5.17.
    pub reason: String,
    /// The device through which they entered, or were to leave; empty if it is not known by name.
    pub netdev: String,
    /// Its interface index; 0 if unknown.
    pub ifindex: u32,
    /// Inode number of the network namespace, of the socket if there is one; 0 if unknown.
    pub netns: u32,
    /// The EtherType (0x0800 IPv4, 0x86dd IPv6).
    pub ethertype: u16,
    /// The transport protocol (6 TCP, 17 UDP); 0 if unknown.
    pub protocol: u8,
    /// The local port: the target's of packets that arrive, the socket's of those that are sent. 0
    /// if unknown, or one of the range for clients, or one of too many.
    pub port: u16,
    /// The cgroup of the socket, as its path; `None` if there was none, or for the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Whether they had not entered the network stack by a device: this machine sent them, or a
    /// device was about to pass them to it.
    pub sent: bool,
    /// Packets on the wire. A large packet counts as its segments.
    #[serde(deserialize_with = "count")]
    pub packets: u64,
    /// Bytes of what is left of them, with the headers that are not removed yet.
    #[serde(deserialize_with = "count")]
    pub bytes: u64,
}

impl DroppedPackets {
    /// Whether this machine sent them. Others that had not entered were to wait for a CPU, or an
    /// XDP program of a veth dropped them.
    pub fn is_sent(&self) -> bool {
        let arrives = ["enqueue_to_backlog", "veth_xdp_rcv_skb"].contains(&self.function.as_str());
        self.sent && !arrives && self.reason != "CPU_BACKLOG"
    }
}
