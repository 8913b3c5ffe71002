//! Receives flows in a given way and counts every byte.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{SpliceFlags, pipe, splice};
use serde::{Deserialize, Serialize};

use crate::exact::{pin, receive_udp, uring, zerocopy};

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
    /// UDP: bytes of each flow, after which to end [default: when nothing more arrives]
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
    /// UDP: recvfrom, connected to the first sender after its first datagram
    UdpConnected,
    /// UDP: recvfrom
    UdpUnconnected,
    /// UDP: recvmmsg, up to 16 datagrams per call
    UdpRecvmmsg,
    /// UDP: each datagram twice, first with `MSG_PEEK`
    UdpPeek,
}

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Process id of the receiver.
    pub pid: u32,
    /// Bytes on all sockets.
    pub bytes: u64,
    /// Counts of each socket.
    pub sockets: Vec<ReceivedSocket>,
}

/// One socket that received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedSocket {
    /// Bytes removed from the socket's queue, each counted once.
    pub bytes: u64,
    /// Bytes that were mapped instead of copied; included in `bytes`.
    pub mapped_bytes: u64,
    /// `SO_INCOMING_NAPI_ID` at the end: the NAPI instance that delivered last; 0 if none did.
    pub incoming_napi_id: u32,
}

/// Bytes per read.
const READ_BYTES: usize = 16384;

impl Receive {
    /// Receives until all flows have ended, or nothing more arrives.
    pub(crate) fn run(&self) -> Result<Received> {
        let Self { ports, flows, port, bind, .. } = *self;
        ensure!(
            ports > 0 && flows >= ports,
            "{ports} ports for {flows} flows: each port needs at least one flow"
        );
        let sockets = std::thread::scope(|scope| {
            let mut readers = Vec::new();
            if self.is_udp() {
                for at in 0..ports {
                    let flows = (0..flows).filter(|flow| flow % ports == at).count() as u64;
                    readers.push(scope.spawn(move || {
                        self.pin(at.into())?;
                        receive_udp::run(self, port + at, flows)
                    }));
                }
            } else {
                let listen = |at| {
                    let listener = TcpListener::bind((bind, port + at))?;
                    set_socket_timeout(&listener, Timeout::Recv, Some(self.patience()))?;
                    Ok(listener)
                };
                let listeners: Vec<TcpListener> = (0..ports)
                    .map(listen)
                    .collect::<std::io::Result<_>>()
                    .with_context(|| format!("cannot listen on tcp port {port}"))?;
                for flow in 0..flows {
                    let (stream, _) = listeners[usize::from(flow % ports)]
                        .accept()
                        .with_context(|| format!("only {flow} of {flows} flows arrived"))?;
                    readers.push(scope.spawn(move || {
                        self.pin(flow.into())?;
                        self.tcp(stream)
                    }));
                }
            }
            let join = |reader: ScopedJoinHandle<'_, Result<_>>| {
                reader.join().unwrap_or_else(|_| Err(anyhow!("a receiving thread panicked")))
            };
            readers.into_iter().map(join).collect::<Result<Vec<ReceivedSocket>>>()
        })?;
        let bytes = sockets.iter().map(|socket| socket.bytes).sum();
        Ok(Received { pid: std::process::id(), bytes, sockets })
    }

    /// How long to wait for the next byte.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.idle)
    }

    fn pin(&self, socket: usize) -> Result<()> {
        self.cpus.get(socket % self.cpus.len().max(1)).map_or(Ok(()), |cpu| pin(*cpu))
    }

    fn is_udp(&self) -> bool {
        use Mode::{UdpConnected, UdpPeek, UdpRecvmmsg, UdpUnconnected};
        matches!(self.mode, UdpConnected | UdpUnconnected | UdpRecvmmsg | UdpPeek)
    }

    fn tcp(&self, mut stream: TcpStream) -> Result<ReceivedSocket> {
        stream.set_read_timeout(Some(self.patience()))?;
        let mut counts = ReceivedSocket::default();
        let mut buffer = vec![0; READ_BYTES];
        match self.mode {
            Mode::Recv => while counts.count_read(stream.read(&mut buffer)?) {},
            Mode::Peek => loop {
                let (peeked, _) = recv(&stream, &mut buffer[..], RecvFlags::PEEK)?;
                // At the end of the stream both calls return 0.
                let (taken, _) = recv(&stream, &mut buffer[..peeked.max(1)], RecvFlags::empty())?;
                if !counts.count_read(taken) {
                    break;
                }
            },
            Mode::Trunc => {
                while counts.count_read(recv(&stream, &mut buffer[..], RecvFlags::TRUNC)?.1) {}
            }
            Mode::Splice => spliced(&stream, &mut counts)?,
            Mode::Zerocopy => zerocopy::receive(&stream, &mut buffer, &mut counts)?,
            Mode::IoUring => uring::receive(&stream, &mut buffer, &mut counts)?,
            other => bail!("{other:?} is not for TCP"),
        }
        counts.incoming_napi_id = incoming_napi_id(&stream)?;
        Ok(counts)
    }
}

impl ReceivedSocket {
    /// Adds the result of one call; returns `false` at the end of the stream.
    pub(crate) fn count_read(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        bytes > 0
    }
}

fn spliced(stream: &TcpStream, counts: &mut ReceivedSocket) -> Result<()> {
    let (out, into) = pipe()?;
    let null = File::options().write(true).open("/dev/null")?;
    loop {
        let taken = splice(stream, None, &into, None, READ_BYTES, SpliceFlags::MOVE)?;
        if !counts.count_read(taken) {
            return Ok(());
        }
        let mut left = taken;
        while left > 0 {
            left -= splice(&out, None, &null, None, left, SpliceFlags::MOVE)?;
        }
    }
}

/// Returns `SO_INCOMING_NAPI_ID`, which neither rustix nor nix offers.
#[allow(unsafe_code)]
pub(crate) fn incoming_napi_id(socket: impl AsFd) -> Result<u32> {
    let mut id = 0_u32;
    let mut length = libc::socklen_t::try_from(size_of_val(&id))?;
    // SAFETY: both pointers are to live locals, and `length` is the size of `id`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_NAPI_ID,
            (&raw mut id).cast(),
            &raw mut length,
        )
    };
    ensure!(failed == 0, "SO_INCOMING_NAPI_ID: {}", std::io::Error::last_os_error());
    Ok(id)
}
