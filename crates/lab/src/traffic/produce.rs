//! Sends an exact number of bytes on each of several flows.

use crate::traffic::proto::Proto;
use crate::traffic::socket;
use crate::traffic::socket::PATIENCE;
use crate::traffic::udp;
use anyhow::{Context, Result};
use clap::Args;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Send an exact number of bytes
#[derive(Debug, Clone, Args)]
pub struct ProduceArgs {
    /// Protocol
    #[arg(long, value_enum)]
    pub proto: Proto,
    /// Address of the consumer
    #[arg(long)]
    pub dest: IpAddr,
    /// First port of the consumer
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
    /// Writes or datagrams per second, all flows together [default: UDP 2000, TCP unlimited]
    #[arg(long)]
    pub rate: Option<f64>,
    /// TCP: send a file in memory, whose whole pages a receiver can map
    #[arg(long)]
    pub sendfile: bool,
}

/// What was sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Produced {
    /// Protocol.
    pub proto: Proto,
    /// Bytes on all flows.
    pub bytes: u64,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Each flow.
    pub flows: Vec<ProducedFlow>,
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducedFlow {
    /// Local port.
    pub local_port: u16,
    /// The consumer's port.
    pub port: u16,
    /// Bytes sent.
    pub bytes: u64,
}

pub(crate) fn run(produce: &ProduceArgs) -> Result<Produced> {
    socket::set_comm(&format!("produce-{}", produce.proto))?;
    let started = Instant::now();
    let flows = match produce.proto {
        Proto::Tcp => tcp(produce)?,
        Proto::Udp => udp(produce)?,
    };
    let bytes = flows.iter().map(|flow| flow.bytes).sum();
    Ok(Produced { proto: produce.proto, bytes, seconds: started.elapsed().as_secs_f64(), flows })
}

/// Spaces writes evenly; one that is late is made up for.
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
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
    }
}

impl ProduceArgs {
    fn destination(&self, flow: u16) -> SocketAddr {
        SocketAddr::new(self.dest, self.port + flow % self.ports.max(1))
    }
}

/// Runs a thread per flow after all are connected, so that none ends before another one starts.
fn tcp(produce: &ProduceArgs) -> Result<Vec<ProducedFlow>> {
    let connect = |flow| socket::connect(produce.destination(flow), PATIENCE);
    let streams = (0..produce.flows).map(connect).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let handles: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(move || tcp_flow(produce, stream)))
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<ProducedFlow>>| {
            handle.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a flow's thread panicked")))
        };
        handles.into_iter().map(join).collect()
    })
}

fn tcp_flow(produce: &ProduceArgs, mut stream: TcpStream) -> Result<ProducedFlow> {
    let to = stream.peer_addr()?;
    let mut sent = 0;
    if produce.sendfile {
        let file = File::from(memfd_create("produce", MemfdFlags::CLOEXEC)?);
        file.set_len(produce.bytes)?;
        while sent < produce.bytes {
            let rest = usize::try_from(produce.bytes - sent)?;
            sent += sendfile(&stream, &file, None, rest).context("cannot send")? as u64;
        }
    } else {
        let block = vec![0; produce.size.max(1)];
        let mut pace = produce.rate.map(|rate| Pace::new(rate / f64::from(produce.flows)));
        while sent < produce.bytes {
            let rest = usize::try_from(produce.bytes - sent)?.min(block.len());
            stream.write_all(&block[..rest]).with_context(|| format!("cannot send to {to}"))?;
            sent += rest as u64;
            pace.iter_mut().for_each(Pace::wait);
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // Wait until the consumer has read everything and closed: nothing is in flight then.
    std::io::copy(&mut stream, &mut std::io::sink())
        .with_context(|| format!("{to} broke the connection"))?;
    Ok(ProducedFlow { local_port: stream.local_addr()?.port(), port: to.port(), bytes: sent })
}

/// Sends on all flows in turn, one datagram each, at the given rate.
fn udp(produce: &ProduceArgs) -> Result<Vec<ProducedFlow>> {
    let connect = |flow| -> Result<_> {
        let to = produce.destination(flow);
        let socket = udp::open(to, PATIENCE)?;
        let local_port = socket.local_addr()?.port();
        Ok((socket, ProducedFlow { local_port, port: to.port(), bytes: 0 }))
    };
    let mut flows = (0..produce.flows).map(connect).collect::<Result<Vec<_>>>()?;
    let block = vec![0; produce.size.clamp(1, 65000)];
    let mut pace = Pace::new(produce.rate.unwrap_or(2000.0));
    while flows.iter().any(|(_, flow)| flow.bytes < produce.bytes) {
        for (socket, flow) in &mut flows {
            let rest = usize::try_from(produce.bytes - flow.bytes)?.min(block.len());
            if rest == 0 {
                continue;
            }
            flow.bytes += udp::send(socket, &block[..rest])
                .with_context(|| format!("cannot send to port {}", flow.port))?
                as u64;
            pace.wait();
        }
    }
    for (socket, _) in &flows {
        udp::close(socket)?;
    }
    Ok(flows.into_iter().map(|(_, flow)| flow).collect())
}
