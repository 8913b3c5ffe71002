//! How to receive: the arguments of a receiver.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::exact::pin::pin;

/// Receive flows.
#[derive(Debug, Clone, Args)]
pub struct Receive {
    /// How to receive
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// First port to listen on
    #[arg(long)]
    pub port: u16,
    /// Number of ports, each with its own socket
    #[arg(long, default_value_t = 1)]
    pub ports: u16,
    /// Number of flows to expect; flow i arrives at port + i modulo the number of ports
    #[arg(long, default_value_t = 1)]
    pub flows: u16,
    /// UDP: end after this many bytes of each flow [default: when nothing more arrives]
    #[arg(long)]
    pub bytes: Option<u64>,
    /// Read socket i on the i-th of these CPUs
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub cpus: Vec<usize>,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// Give up after this many seconds without a byte
    #[arg(long, default_value_t = 60)]
    pub idle: u64,
}

/// How to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// TCP: recv
    Recv,
    /// TCP: each byte twice, first with `MSG_PEEK`
    Peek,
    /// TCP: `MSG_TRUNC`, which removes bytes from the queue without copying them
    Trunc,
    /// TCP: splice to a pipe and from there to /dev/null
    Splice,
    /// TCP: `TCP_ZEROCOPY_RECEIVE`, and recv for the rest
    Zerocopy,
    /// TCP: `io_uring` recv
    #[value(name = "io_uring")]
    IoUring,
    /// TCP: recv, and the kernel decrypts
    Tls,
    /// SCTP: recv, of a one-to-one socket
    Sctp,
    /// UDP: recvfrom; connected to the first sender after its first datagram
    UdpConnected,
    /// UDP: recvfrom
    UdpUnconnected,
    /// UDP: recvmmsg, up to 16 datagrams per call
    UdpRecvmmsg,
    /// UDP: each datagram twice, first with `MSG_PEEK`
    UdpPeek,
}

impl Receive {
    /// How long to wait for the next byte.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.idle)
    }

    /// Pins the thread of this socket.
    pub(crate) fn pin(&self, socket: usize) -> Result<()> {
        self.cpus.get(socket % self.cpus.len().max(1)).map_or(Ok(()), |cpu| pin(*cpu))
    }

    pub(crate) fn is_udp(&self) -> bool {
        use Mode::{UdpConnected, UdpPeek, UdpRecvmmsg, UdpUnconnected};
        matches!(self.mode, UdpConnected | UdpUnconnected | UdpRecvmmsg | UdpPeek)
    }
}
