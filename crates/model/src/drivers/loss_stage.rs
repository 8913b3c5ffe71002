//! FILEDOC

use serde::{Deserialize, Serialize};

/// A place on a packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Frames that arrive damaged.
    Wire,
    /// The NIC's own buffer was full.
    Nic,
    /// No free descriptor in the receive ring, or no buffer for it.
    Ring,
    /// An XDP program dropped it: meant, not lost.
    Xdp,
    /// The backlog of a CPU was full (RPS, loopback, veth).
    Backlog,
    /// NET_RX stopped with work left: late, not lost.
    Squeeze,
    /// IP, fragments, checksums.
    Protocol,
    /// The queue of a listening socket was full.
    Listen,
    /// The buffer of a socket was full.
    Socket,
}

impl Place {
    /// All of them, in the order of a packet's way.
    pub const ALL: [Self; 9] = [
        Self::Wire,
        Self::Nic,
        Self::Ring,
        Self::Xdp,
        Self::Backlog,
        Self::Squeeze,
        Self::Protocol,
        Self::Listen,
        Self::Socket,
    ];

    /// In words.
    pub fn label(self) -> &'static str {
        match self {
            Self::Wire => "wire: damaged frames",
            Self::Nic => "NIC: its buffer full",
            Self::Ring => "ring: no descriptor free",
            Self::Xdp => "XDP: dropped on purpose",
            Self::Backlog => "backlog of a cpu full",
            Self::Squeeze => "squeeze: late, not lost",
            Self::Protocol => "protocol",
            Self::Listen => "listen queue full",
            Self::Socket => "socket buffer full",
        }
    }

    /// Whether what is counted there is lost against anyone's will.
    pub fn loses(self) -> bool {
        !matches!(self, Self::Xdp | Self::Squeeze)
    }

    /// What to do about losses there, of this subject.
    pub fn next(self, subject: &str) -> String {
        match self {
            Self::Wire => {
                format!("{subject}: frames arrive damaged: cable, transceiver, switch port")
            }
            Self::Nic | Self::Ring => {
                format!(
                    "{subject}: see who polls it (netsilo why {subject}), then netsilo plan --fix nic-drops:{subject}"
                )
            }
            Self::Backlog => {
                format!(
                    "{subject}: see what feeds its backlog (netsilo why {subject}), then netsilo plan --fix backlog-overflow:{subject}"
                )
            }
            Self::Protocol => {
                "the protocol counters name the reason: netsilo explain protocol-drops".to_owned()
            }
            Self::Listen => {
                format!(
                    "{subject}: connections come faster than they are accepted: netsilo explain listen-overflow"
                )
            }
            Self::Socket => {
                format!(
                    "{subject}: its reader is slower than its packets: netsilo explain socket-buffer-overflow"
                )
            }
            Self::Xdp | Self::Squeeze => String::new(),
        }
    }
}
