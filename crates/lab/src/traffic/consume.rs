//! Receives streams in a given way and counts every byte.

use super::PATIENCE;
use super::socket;
use super::socket::CpuList;
use super::udp;
use super::uring;
use super::zerocopy;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{SpliceFlags, pipe, splice};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Receive streams.
#[derive(Debug, Clone, Args)]
pub struct Consume {
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

/// What was received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Consumed {
    /// How it was received.
    pub mode: Mode,
    /// Process id of the consumer.
    pub pid: u32,
    /// Name of the consumer's process.
    pub comm: String,
    /// Bytes on all sockets.
    pub bytes: u64,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Counts of each socket.
    pub sockets: Vec<ConsumedSocket>,
}

/// One socket that received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumedSocket {
    /// Local port.
    pub local_port: u16,
    /// The sender's port; 0 if there were several senders.
    pub peer_port: u16,
    /// Bytes removed from the socket's queue, each counted once.
    pub bytes: u64,
    /// Calls that returned data.
    pub calls: u64,
    /// Bytes that were mapped instead of copied; included in `bytes`.
    pub mapped_bytes: u64,
    /// `SO_INCOMING_NAPI_ID` at the end.
    pub incoming_napi_id: u32,
    /// `SO_INCOMING_CPU` at the end.
    pub incoming_cpu: Option<u32>,
    /// UDP: bytes by the sender's port.
    pub flows: BTreeMap<u16, u64>,
}

impl Consume {
    /// Returns how long to wait for the next byte.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.idle)
    }

    fn pin(&self, socket: usize) -> Result<()> {
        let cpus = self.cpus.as_ref().map_or(&[][..], |cpus| &cpus.0);
        match cpus.get(socket % cpus.len().max(1)) {
            Some(cpu) => socket::pin(*cpu),
            None => Ok(()),
        }
    }

    fn is_udp(&self) -> bool {
        use Mode::{UdpConnected, UdpPeek, UdpRecvmmsg, UdpUnconnected};
        matches!(self.mode, UdpConnected | UdpUnconnected | UdpRecvmmsg | UdpPeek)
    }
}

pub(crate) fn run(consume: &Consume) -> Result<Consumed> {
    if consume.ports == 0 || consume.flows < consume.ports {
        bail!(
            "{} ports for {} flows: each port needs at least one flow",
            consume.ports,
            consume.flows
        );
    }
    let mode = clap::ValueEnum::to_possible_value(&consume.mode);
    let comm = format!("c-{}", mode.map(|mode| mode.get_name().to_owned()).unwrap_or_default());
    socket::set_comm(&comm)?;
    let started = Instant::now();
    let flows_of =
        |index: u16| (0..consume.flows).filter(|flow| flow % consume.ports == index).count();
    let sockets = std::thread::scope(|scope| {
        let listen = |index: u16| {
            scope.spawn(move || {
                let port = consume.port + index;
                if consume.is_udp() {
                    consume.pin(index.into())?;
                    return udp::consume(consume, port, flows_of(index)).map(|socket| vec![socket]);
                }
                tcp(consume, port, index.into(), flows_of(index))
            })
        };
        let handles: Vec<_> = (0..consume.ports).map(listen).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<Vec<_>>>| {
            handle.join().unwrap_or_else(|_| Err(anyhow!("a receiving thread panicked")))
        };
        handles.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let sockets = sockets.concat();
    Ok(Consumed {
        mode: consume.mode,
        pid: std::process::id(),
        comm: comm.chars().take(15).collect(),
        bytes: sockets.iter().map(|socket| socket.bytes).sum(),
        seconds: started.elapsed().as_secs_f64(),
        sockets,
    })
}

/// Accepts `flows` connections and runs a thread for each.
fn tcp(consume: &Consume, port: u16, first: usize, flows: usize) -> Result<Vec<ConsumedSocket>> {
    let listener = TcpListener::bind((consume.bind, port))
        .with_context(|| format!("cannot listen on tcp port {port}"))?;
    rustix::net::sockopt::set_socket_timeout(
        &listener,
        rustix::net::sockopt::Timeout::Recv,
        Some(consume.patience()),
    )?;
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for flow in 0..flows {
            let (stream, _) = listener
                .accept()
                .with_context(|| format!("only {flow} of {flows} flows arrived"))?;
            handles.push(scope.spawn(move || {
                consume.pin(first + flow * usize::from(consume.ports))?;
                stream.set_read_timeout(Some(consume.patience()))?;
                receive(consume, stream)
            }));
        }
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<_>>| {
            handle.join().unwrap_or_else(|_| Err(anyhow!("a receiving thread panicked")))
        };
        handles.into_iter().map(join).collect()
    })
}

fn receive(consume: &Consume, mut stream: TcpStream) -> Result<ConsumedSocket> {
    let mut counts = ConsumedSocket {
        local_port: stream.local_addr()?.port(),
        peer_port: stream.peer_addr()?.port(),
        ..ConsumedSocket::default()
    };
    let mut buffer = vec![0; consume.size.max(1)];
    match consume.mode {
        Mode::Recv => while counts.took(stream.read(&mut buffer)?) {},
        Mode::Peek => loop {
            let (peeked, _) = recv(&stream, &mut buffer[..], RecvFlags::PEEK)?;
            // At the end of the stream both calls return 0.
            let (taken, _) = recv(&stream, &mut buffer[..peeked.max(1)], RecvFlags::empty())?;
            if !counts.took(taken) {
                break;
            }
        },
        Mode::Trunc => while counts.took(recv(&stream, &mut buffer[..], RecvFlags::TRUNC)?.1) {},
        Mode::Splice => spliced(&stream, consume.size, &mut counts)?,
        Mode::Zerocopy => zerocopy::receive(&stream, &mut buffer, &mut counts)?,
        Mode::IoUring => uring::receive(&stream, &mut buffer, &mut counts)?,
        other => bail!("{other:?} is not for TCP"),
    }
    counts.incoming_napi_id = socket::incoming_napi_id(&stream)?;
    counts.incoming_cpu = socket::incoming_cpu(&stream)?;
    Ok(counts)
}

fn spliced(stream: &TcpStream, size: usize, counts: &mut ConsumedSocket) -> Result<()> {
    let (out, into) = pipe()?;
    let null = File::options().write(true).open("/dev/null")?;
    loop {
        let taken = splice(stream, None, &into, None, size.max(1), SpliceFlags::MOVE)?;
        if !counts.took(taken) {
            return Ok(());
        }
        let mut left = taken;
        while left > 0 {
            left -= splice(&out, None, &null, None, left, SpliceFlags::MOVE)?;
        }
    }
}

impl ConsumedSocket {
    /// Adds the result of one call; returns `false` at the end of the stream.
    pub(crate) fn took(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        self.calls += u64::from(bytes > 0);
        bytes > 0
    }
}
