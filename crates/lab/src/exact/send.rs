//! Sends an exact number of bytes on each of several flows.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::thread::{ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};

use crate::exact::peer::{PATIENCE, connect, connect_sctp, is_not_there};
use crate::exact::tls::{self, Side};

/// Send an exact number of bytes; fail unless all were sent
#[derive(Debug, Clone, Args)]
pub struct Send {
    /// Send datagrams instead of streams
    #[arg(long)]
    pub udp: bool,
    /// Send by SCTP, a message per write
    #[arg(long, conflicts_with = "udp")]
    pub sctp: bool,
    /// Encrypt streams by the kernel, with a TLS record per write
    #[arg(long, conflicts_with_all = ["udp", "sctp"])]
    pub tls: bool,
    /// Address of the receiver
    #[arg(long)]
    pub dest: IpAddr,
    /// First port of the receiver
    #[arg(long)]
    pub port: u16,
    /// Number of ports: flow i goes to port + i modulo this
    #[arg(long, default_value_t = 1)]
    pub ports: u16,
    /// Number of flows
    #[arg(long, default_value_t = 1)]
    pub flows: u16,
    /// Bytes to send on each flow
    #[arg(long)]
    pub bytes: u64,
    /// Bytes per write, or per datagram
    #[arg(long, default_value_t = 1024)]
    pub size: usize,
    /// Writes or datagrams per second, all flows together, whether or not they arrive [default:
    /// UDP 2000, at most 64 of which the receiver has not acknowledged; TCP unlimited]
    #[arg(long)]
    pub rate: Option<f64>,
    /// UDP: do not wait for a receiver that answers
    #[arg(long, requires = "udp")]
    pub unanswered: bool,
    /// TCP: send a file in memory, so that the receiver can map its whole pages
    #[arg(long, conflicts_with = "udp")]
    pub sendfile: bool,
}

/// How often a datagram is repeated.
const REPEAT: Duration = Duration::from_millis(100);
/// Datagrams of all flows that may be on their way: fewer than the shortest ring has buffers, so
/// that a guest which stands still for a moment loses none.
const IN_FLIGHT: u16 = 64;
/// How long to wait for an acknowledgement before it, or the datagram, counts as lost.
const ACKNOWLEDGED: Duration = Duration::from_secs(5);
/// The first byte of a datagram that the receiver acknowledges by an empty one.
pub(super) const ACKNOWLEDGE: u8 = 1;

impl Send {
    pub(crate) fn run(&self) -> Result<()> {
        if self.udp { self.datagrams() } else { self.streams() }
    }

    fn destinations(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        (0..self.flows).map(|flow| SocketAddr::new(self.dest, self.port + flow % self.ports.max(1)))
    }

    /// Runs a thread per flow once all are connected, so that none ends before another one starts.
    fn streams(&self) -> Result<()> {
        let connect = if self.sctp { connect_sctp } else { connect };
        let streams = self.destinations().map(connect).collect::<Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let start = |stream| scope.spawn(move || self.stream(stream));
            let flows: Vec<_> = streams.into_iter().map(start).collect();
            let join = |flow: ScopedJoinHandle<'_, Result<()>>| {
                flow.join().unwrap_or_else(|_| Err(anyhow!("a flow's thread panicked")))
            };
            flows.into_iter().try_for_each(join)
        })
    }

    fn stream(&self, mut stream: TcpStream) -> Result<()> {
        let mut left = usize::try_from(self.bytes)?;
        if self.tls {
            tls::begin(&stream, Side::Sender)?;
        }
        if self.sendfile {
            let file = File::from(memfd_create("exact", MemfdFlags::CLOEXEC)?);
            file.set_len(self.bytes)?;
            while left > 0 {
                left -= sendfile(&stream, &file, None, left).context("cannot send")?;
            }
        }
        let block = vec![0; self.size.max(1)];
        let mut pace = self.rate.map(|rate| Pace::new(rate / f64::from(self.flows)));
        while left > 0 {
            let size = left.min(block.len());
            stream.write_all(&block[..size]).context("cannot send")?;
            left -= size;
            pace.iter_mut().for_each(Pace::wait);
        }
        stream.shutdown(Shutdown::Write)?;
        if self.sctp {
            return Ok(()); // it has no half-closed connections
        }
        // Wait until the receiver has read everything and closed: then nothing is in flight.
        std::io::copy(&mut stream, &mut std::io::sink()).context("the receiver has failed")?;
        Ok(())
    }

    /// Sends on all flows in turn, one datagram each, at the given rate.
    fn datagrams(&self) -> Result<()> {
        let mut flows = Vec::new();
        for to in self.destinations() {
            flows.push((open(to, self.unanswered)?, self.bytes));
        }
        let mut block = vec![0; self.size.clamp(1, 65000)];
        let mut pace = Pace::new(self.rate.unwrap_or(2000.0));
        let is_acknowledged = self.rate.is_none() && !self.unanswered;
        let in_flight = (IN_FLIGHT / self.flows.max(1)).max(1);
        let mut sent: u16 = 0;
        while flows.iter().any(|(_, left)| *left > 0) {
            sent = (sent + 1) % in_flight;
            let asks = is_acknowledged && sent == 0;
            block[0] = if asks { ACKNOWLEDGE } else { 0 };
            for (socket, left) in flows.iter_mut().filter(|(_, left)| *left > 0) {
                let size = block.len().min(usize::try_from(*left)?);
                *left -= send(socket, &block[..size])? as u64;
                pace.wait();
            }
            for (socket, _) in flows.iter().filter(|(_, left)| asks && *left > 0) {
                acknowledged(socket);
            }
        }
        Ok(())
    }
}

/// Spaces writes evenly. After a late write, the next ones catch up.
struct Pace {
    next: Instant,
    pause: Duration,
}

impl Pace {
    fn new(writes_per_s: f64) -> Self {
        Self { next: Instant::now(), pause: Duration::from_secs_f64(1.0 / writes_per_s.max(0.1)) }
    }

    fn wait(&mut self) {
        self.next += self.pause;
        sleep(self.next.saturating_duration_since(Instant::now()));
    }
}

/// Opens a socket to `to`, unless it is `unanswered` after a receiver there has answered an empty
/// datagram.
fn open(to: SocketAddr, unanswered: bool) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to).with_context(|| format!("cannot reach {to}"))?;
    if unanswered {
        return Ok(socket);
    }
    socket.set_read_timeout(Some(REPEAT))?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match socket.send(&[]).and_then(|_| socket.recv(&mut [0; 16])) {
            Ok(_) => return Ok(socket),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // No receiver yet, or no route to it.
            Err(_) => sleep(REPEAT),
        }
    }
    bail!("no receiver answers on {to}")
}

/// Waits for the receiver's acknowledgement. Whether all arrived is for the receiver to say.
fn acknowledged(socket: &UdpSocket) {
    let deadline = Instant::now() + ACKNOWLEDGED;
    while socket.recv(&mut [0; 16]).is_err() && Instant::now() < deadline {}
}

/// Sends a datagram. Repeats it while the destination is temporarily unreachable (ARP, a slow
/// guest). The kernel reports that once, on the sender's socket.
fn send(socket: &UdpSocket, datagram: &[u8]) -> Result<usize> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match socket.send(datagram) {
            Err(error) if is_not_there(&error) && Instant::now() < deadline => sleep(REPEAT),
            sent => return sent.context("cannot send"),
        }
    }
}
