//! How to receive: the arguments of a consumer.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::traffic::socket::{self, CpuList, PATIENCE};

/// Receive streams.
#[derive(Debug, Clone, Args)]
pub struct ConsumeArgs {
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
    /// Bytes per read
    #[arg(long, default_value_t = 16384)]
    pub size: usize,
    /// Pin socket i to the i-th of these CPUs
    #[arg(long, value_parser = socket::cpu_list, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// Give up after this many seconds without a byte
    #[arg(long, default_value_t = PATIENCE.as_secs_f64())]
    pub idle: f64,
}

/// How to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// UDP: recvfrom, connected to the first sender after its first datagram
    UdpConnected,
    /// UDP: recvfrom
    UdpUnconnected,
    /// UDP: recvmmsg, up to 16 datagrams per call
    UdpRecvmmsg,
    /// UDP: each datagram twice, first with `MSG_PEEK`
    UdpPeek,
}

impl ConsumeArgs {
    /// Returns how long to wait for the next byte.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.idle)
    }

    pub(crate) fn pin(&self, socket: usize) -> Result<()> {
        let cpus = self.cpus.as_ref().map_or(&[][..], |cpus| &cpus.0);
        match cpus.get(socket % cpus.len().max(1)) {
            Some(cpu) => socket::pin(*cpu),
            None => Ok(()),
        }
    }

    pub(crate) fn is_udp(&self) -> bool {
        use Mode::{UdpConnected, UdpPeek, UdpRecvmmsg, UdpUnconnected};
        matches!(self.mode, UdpConnected | UdpUnconnected | UdpRecvmmsg | UdpPeek)
    }
}
