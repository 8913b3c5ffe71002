//! Sockets that have dropped packets or connections.

use serde::{Deserialize, Serialize};

/// A socket that has dropped at least one packet or connection since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LosingSocket {
    /// Kind of socket.
    pub kind: SocketKind,
    /// Local port.
    pub port: u16,
    /// Inode. Together with the port it identifies the socket.
    pub inode: u32,
    /// Packets (for a listener: connections) dropped since the socket was opened (`sk_drops`).
    pub drops: u64,
    /// Memory of the queued packets, in bytes. For a listener, the number of queued connections.
    pub queued: u32,
    /// Maximum number of queued connections of a listener; `None` for other sockets.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The thread group that holds it; `None` if unknown.
    #[serde(default)]
    pub holder: Option<Holder>,
}

/// A kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SocketKind {
    /// Any UDP socket.
    Udp,
    /// A TCP socket that listens.
    TcpListen,
}

/// The thread group that holds a socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Holder {
    /// Thread group id.
    pub tgid: u32,
    /// Its name.
    pub comm: String,
}

impl LosingSocket {
    /// Drops since an earlier list of all losing sockets.
    ///
    /// A socket that is missing from `before` had no drops yet, or did not exist.
    pub fn dropped_since(&self, before: &[Self]) -> u64 {
        let same = |other: &&Self| {
            (other.kind, other.port, other.inode) == (self.kind, self.port, self.inode)
        };
        self.drops.saturating_sub(before.iter().find(same).map_or(0, |socket| socket.drops))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(inode: u32, drops: u64) -> LosingSocket {
        LosingSocket {
            kind: SocketKind::Udp,
            port: 53,
            inode,
            drops,
            queued: 0,
            limit: None,
            holder: None,
        }
    }

    #[test]
    fn a_socket_missing_from_the_earlier_list_counts_all_its_drops() {
        assert_eq!(udp(7, 9).dropped_since(&[udp(7, 4)]), 5);
        assert_eq!(udp(7, 9).dropped_since(&[udp(8, 4)]), 9);
    }

    #[test]
    fn the_label_names_the_holder() {
        assert_eq!(udp(7, 9).subject().to_string(), "udp port 53");
        let holder = Some(Holder { tgid: 812, comm: "dnsmasq".into() });
        assert_eq!(
            LosingSocket { holder, ..udp(7, 9) }.subject().to_string(),
            "udp port 53 of dnsmasq (pid 812)"
        );
    }
}
