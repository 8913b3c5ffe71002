//! Sockets that have lost something: what arrived for them and found no room.

use serde::{Deserialize, Serialize};

/// A socket that has dropped at least one packet or connection since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LosingSocket {
    /// What kind of socket.
    pub kind: SocketKind,
    /// Its own port.
    pub port: u16,
    /// Its inode: with the port, its identity.
    pub inode: u32,
    /// Packets (of a listener: connections) dropped since it was opened (`sk_drops`).
    pub drops: u64,
    /// What waits in it now: bytes of memory, of a listener connections.
    pub queued: u32,
    /// How many connections may wait at a listener; `None` for other sockets.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The thread group that holds it; `None` when none is known to.
    #[serde(default)]
    pub holder: Option<Holder>,
}

/// A kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketKind {
    /// Any UDP socket.
    Udp,
    /// A TCP socket that listens.
    TcpListen,
}

/// Who holds a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// Thread group id.
    pub tgid: u32,
    /// Its name.
    pub comm: String,
}

impl LosingSocket {
    /// Protocol and port, which several sockets may share (`SO_REUSEPORT`): `udp port 53`.
    pub fn port_label(&self) -> String {
        let kind = match self.kind {
            SocketKind::Udp => "udp",
            SocketKind::TcpListen => "tcp",
        };
        format!("{kind} port {}", self.port)
    }

    /// The same with who holds it: `udp port 53 of dnsmasq (pid 812)`.
    pub fn label(&self) -> String {
        let holder = self
            .holder
            .as_ref()
            .map(|it| format!(" of {} (pid {})", it.comm, it.tgid))
            .unwrap_or_default();
        self.port_label() + &holder
    }

    /// What it has dropped since the earlier look at all such sockets.
    ///
    /// One that is not among them had dropped nothing yet, or was not there.
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
    fn a_socket_that_had_lost_nothing_yet_has_lost_all_of_it_since() {
        assert_eq!(udp(7, 9).dropped_since(&[udp(7, 4)]), 5);
        assert_eq!(udp(7, 9).dropped_since(&[udp(8, 4)]), 9);
    }

    #[test]
    fn a_socket_is_called_by_its_holder() {
        assert_eq!(udp(7, 9).label(), "udp port 53");
        let holder = Some(Holder { tgid: 812, comm: "dnsmasq".into() });
        assert_eq!(
            LosingSocket { holder, ..udp(7, 9) }.label(),
            "udp port 53 of dnsmasq (pid 812)"
        );
    }
}
