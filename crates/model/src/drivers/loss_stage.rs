//! Stages of the receive path at which packets are lost.

use serde::{Deserialize, Serialize};

/// A stage of the receive path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LossStage {
    /// Frames arrived damaged.
    Wire,
    /// The NIC's own buffer was full.
    Nic,
    /// The receive ring had no free descriptor, or the driver had no buffer for it.
    Ring,
    /// An XDP program dropped the packet on purpose.
    Xdp,
    /// The backlog of a CPU was full (RPS, loopback, veth).
    Backlog,
    /// NET_RX stopped with work left: the packets were late, not lost.
    Squeeze,
    /// The ring or buffer of a packet socket or an AF_XDP socket was full.
    PacketSocket,
    /// Connection tracking could not track the packet.
    Conntrack,
    /// An NFQUEUE or the buffer of its program was full.
    Nfqueue,
    /// IP, IPsec, fragment reassembly or checksum validation dropped the packet.
    Protocol,
    /// The address of the next hop was not known.
    Neighbour,
    /// A queueing discipline was full.
    Qdisc,
    /// The queue of a virtual netdev (tun, tap, veth, GRO cells of a tunnel) was full, or nobody
    /// reads it.
    VirtualDevice,
    /// The queue of a listening socket was full.
    Listen,
    /// The buffer of a socket was full.
    Socket,
    /// Another part of the kernel dropped the packet.
    Other,
}

impl LossStage {
    /// All stages, in the order of the receive path.
    pub const ALL: [Self; 16] = [
        Self::Wire,
        Self::Nic,
        Self::Ring,
        Self::Xdp,
        Self::Backlog,
        Self::Squeeze,
        Self::PacketSocket,
        Self::Conntrack,
        Self::Nfqueue,
        Self::Protocol,
        Self::Neighbour,
        Self::Qdisc,
        Self::VirtualDevice,
        Self::Listen,
        Self::Socket,
        Self::Other,
    ];

    /// The label as printed in the ledger.
    pub fn label(self) -> &'static str {
        match self {
            Self::Wire => "wire: damaged frames",
            Self::Nic => "NIC: buffer full",
            Self::Ring => "ring: no free descriptor",
            Self::Xdp => "XDP: dropped on purpose",
            Self::Backlog => "backlog full",
            Self::Squeeze => "squeeze: late, not lost",
            Self::PacketSocket => "packet or AF_XDP socket full",
            Self::Conntrack => "connection tracking",
            Self::Nfqueue => "NFQUEUE full",
            Self::Protocol => "protocol",
            Self::Neighbour => "next hop unknown",
            Self::Qdisc => "qdisc full",
            Self::VirtualDevice => "virtual netdev full",
            Self::Listen => "listen queue full",
            Self::Socket => "socket buffer full",
            Self::Other => "elsewhere",
        }
    }

    /// Whether packets counted at this stage are lost unintentionally.
    pub fn loses(self) -> bool {
        !matches!(self, Self::Xdp | Self::Squeeze)
    }

    /// Whether its counters are those of all network namespaces together.
    pub fn is_of_whole_machine(self) -> bool {
        matches!(self, Self::Backlog | Self::Squeeze | Self::PacketSocket)
    }

    /// The next step for losses of `subject` at this stage. Empty for a stage that loses nothing.
    pub fn next(self, subject: &str) -> String {
        match self {
            Self::Wire => {
                format!(
                    "{subject}: frames arrive damaged: check cable, transceiver and switch port"
                )
            }
            Self::Nic | Self::Ring => {
                format!(
                    "{subject}: find the cpus that poll it (netsilo explain {subject}), then run \
                     netsilo plan --fix nic-drops:{subject}"
                )
            }
            Self::Backlog => {
                format!(
                    "{subject}: find what fills its backlog (netsilo explain {subject}), then run \
                     netsilo plan --fix backlog-overflow:{subject}"
                )
            }
            Self::Protocol => {
                "the protocol counters show the reason: see netsilo explain protocol-drops"
                    .to_owned()
            }
            Self::Listen => {
                format!(
                    "{subject}: connections arrive faster than they are accepted: see netsilo \
                     explain listen-overflow"
                )
            }
            Self::Socket => {
                format!(
                    "{subject}: packets arrive faster than they are read: see netsilo explain \
                     socket-buffer-overflow"
                )
            }
            Self::PacketSocket
            | Self::Conntrack
            | Self::Nfqueue
            | Self::Neighbour
            | Self::Qdisc
            | Self::VirtualDevice
            | Self::Other => {
                "the table below has the reason and the place: see netsilo explain packets-dropped"
                    .to_owned()
            }
            Self::Xdp | Self::Squeeze => String::new(),
        }
    }
}
