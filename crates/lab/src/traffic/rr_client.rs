//! Sends a request and waits for the response, repeatedly, on many connections at once, for a given
//! time.

use crate::traffic::latency::Latencies;
use crate::traffic::proto::Proto;
use crate::traffic::socket;
use crate::traffic::socket::PATIENCE;
use crate::traffic::udp;
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::event::{Timespec, epoll};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A UDP request or its response counts as lost after this time.
const LOST: Duration = Duration::from_millis(400);
/// How long to wait for outstanding responses at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Send requests
#[derive(Debug, Clone, Args)]
pub struct RrClient {
    /// Protocol
    #[arg(long, value_enum)]
    pub proto: Proto,
    /// Address of the server
    #[arg(long)]
    pub dest: IpAddr,
    /// Port of the first worker
    #[arg(long)]
    pub port: u16,
    /// Number of workers: connection i goes to port + i modulo this
    #[arg(long, default_value_t = 1)]
    pub ports: u16,
    /// Number of concurrent connections, each with one request outstanding
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Seconds to run
    #[arg(long, default_value_t = 5.0)]
    pub duration: f64,
    /// Bytes of a request
    #[arg(long, default_value_t = 1)]
    pub request_bytes: usize,
    /// TCP: send this text and the end of a line as each request, instead of zeros
    #[arg(long, value_name = "TEXT", conflicts_with = "request_bytes")]
    pub request_line: Option<String>,
    /// Bytes of a response
    #[arg(long, default_value_t = 1)]
    pub response_bytes: usize,
}

/// Counts of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RrReport {
    /// Protocol.
    pub proto: Proto,
    /// Seconds from the first request to the end of the last response.
    pub seconds: f64,
    /// Requests that were answered.
    pub transactions: u64,
    /// Transactions per second.
    pub transactions_per_second: f64,
    /// Median of the response times, in microseconds; repeated requests count from their last
    /// repetition.
    pub p50_us: f64,
    /// Their 99th percentile.
    pub p99_us: f64,
    /// Bytes passed to the kernel, including repeated requests.
    pub sent_bytes: u64,
    /// Bytes read from the kernel, including late responses.
    pub received_bytes: u64,
    /// UDP requests sent again because no response came in time.
    pub retries: u64,
    /// Each connection.
    pub connections: Vec<Connection>,
}

/// Counts of one connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Local port.
    pub local_port: u16,
    /// The server's port.
    pub port: u16,
    /// Requests that were answered.
    pub transactions: u64,
}

impl RrClient {
    /// The bytes of each request.
    fn request(&self) -> Vec<u8> {
        match &self.request_line {
            Some(line) => format!("{line}\r\n").into_bytes(),
            None => vec![0; self.request_bytes],
        }
    }
}

enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

struct Flow {
    socket: Socket,
    counts: Connection,
    /// Time when the outstanding request was sent; `None` if there is none.
    sent_at: Option<Instant>,
    /// Bytes at the end of the request that the kernel has not taken yet.
    unsent: usize,
    missing: usize,
    sequence: u8,
}

pub(crate) fn run(client: &RrClient) -> Result<RrReport> {
    if client.ports == 0 || client.request_bytes == 0 || client.response_bytes == 0 {
        bail!("ports, request and response bytes must be at least 1");
    }
    if client.request_line.is_some() && client.proto == Proto::Udp {
        bail!("--request-line is for TCP: a UDP request begins with a sequence number");
    }
    socket::set_comm(&format!("rr-client-{}", client.proto))?;
    let ports = (0..client.ports).cycle().map(|offset| client.port.saturating_add(offset));
    let to = ports.map(|port| SocketAddr::new(client.dest, port));
    let mut flows =
        to.take(client.connections).map(|to| Flow::new(client, to)).collect::<Result<Vec<_>>>()?;
    let mut report = RrReport {
        proto: client.proto,
        seconds: 0.0,
        transactions: 0,
        transactions_per_second: 0.0,
        p50_us: 0.0,
        p99_us: 0.0,
        sent_bytes: 0,
        received_bytes: 0,
        retries: 0,
        connections: Vec::new(),
    };
    let started = Instant::now();
    let mut latencies = Latencies::new();
    exchange(client, &mut flows, (&mut report, &mut latencies), started)?;
    report.seconds = started.elapsed().as_secs_f64();
    report.transactions_per_second = report.transactions as f64 / report.seconds;
    (report.p50_us, report.p99_us) = (latencies.quantile_us(0.5), latencies.quantile_us(0.99));
    report.connections = flows.into_iter().map(|flow| flow.counts).collect();
    Ok(report)
}

fn exchange(
    client: &RrClient,
    flows: &mut [Flow],
    (report, latencies): (&mut RrReport, &mut Latencies),
    started: Instant,
) -> Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let request = client.request();
    for (key, flow) in (0..).zip(flows.iter_mut()) {
        epoll::add(&poll, &*flow, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        flow.request(client, &request, report)?;
    }
    let end = started + Duration::from_secs_f64(client.duration);
    let mut events = Vec::with_capacity(256);
    let mut last_check = started;
    loop {
        let now = Instant::now();
        let waiting = flows.iter().any(|flow| flow.sent_at.is_some());
        if now >= end && (!waiting || now >= end + DRAIN) {
            return Ok(());
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let open = Instant::now() < end;
        for event in &events {
            let flow = usize::try_from(event.data.u64()).ok().and_then(|key| flows.get_mut(key));
            if let Some(flow) = flow
                && let Some(latency) = flow.response(client, report)?
            {
                latencies.add(latency);
                if open {
                    flow.request(client, &request, report)?;
                }
            }
        }
        if last_check.elapsed() >= Duration::from_millis(50) {
            last_check = Instant::now();
            repeat_lost(&request, flows, report)?;
        }
    }
}

fn repeat_lost(request: &[u8], flows: &mut [Flow], report: &mut RrReport) -> Result<()> {
    for flow in flows {
        let late = flow.sent_at.is_some_and(|at| at.elapsed() > LOST);
        if late && matches!(flow.socket, Socket::Udp(_)) {
            report.retries += 1;
            flow.send(request, report)?;
        } else if flow.unsent > 0 {
            flow.flush(request, report)?;
        }
    }
    Ok(())
}

impl Flow {
    fn new(client: &RrClient, to: SocketAddr) -> Result<Self> {
        let (socket, local) = match client.proto {
            Proto::Tcp => {
                let stream = socket::connect(to, PATIENCE)?;
                stream.set_nonblocking(true)?;
                let local = stream.local_addr()?;
                (Socket::Tcp(stream), local)
            }
            Proto::Udp => {
                let socket = udp::open(to, PATIENCE)?;
                socket.set_nonblocking(true)?;
                let local = socket.local_addr()?;
                (Socket::Udp(socket), local)
            }
        };
        let counts = Connection { local_port: local.port(), port: to.port(), transactions: 0 };
        Ok(Self { socket, counts, sent_at: None, unsent: 0, missing: 0, sequence: 0 })
    }

    fn request(&mut self, client: &RrClient, request: &[u8], report: &mut RrReport) -> Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        self.missing = client.response_bytes;
        self.send(request, report)
    }

    fn send(&mut self, request: &[u8], report: &mut RrReport) -> Result<()> {
        self.sent_at = Some(Instant::now());
        if let Socket::Udp(socket) = &self.socket {
            let mut request = request.to_vec();
            request[0] = self.sequence;
            // On an error (no server yet, no buffer) the request will be repeated.
            report.sent_bytes += socket.send(&request).unwrap_or(0) as u64;
            return Ok(());
        }
        self.unsent = request.len();
        self.flush(request, report)
    }

    fn flush(&mut self, request: &[u8], report: &mut RrReport) -> Result<()> {
        let Socket::Tcp(stream) = &mut self.socket else {
            return Ok(());
        };
        while self.unsent > 0 {
            match stream.write(&request[request.len() - self.unsent..]) {
                Ok(length) => {
                    self.unsent -= length;
                    report.sent_bytes += length as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("the server broke a connection"),
            }
        }
        Ok(())
    }

    /// Reads what has arrived; returns the response time if that completes a transaction.
    fn response(&mut self, client: &RrClient, report: &mut RrReport) -> Result<Option<Duration>> {
        let mut buffer = [0; 65536];
        let received = match &mut self.socket {
            Socket::Tcp(stream) => stream.read(&mut buffer),
            Socket::Udp(socket) => socket.recv(&mut buffer),
        };
        let length = match (received, &self.socket) {
            (Ok(0), Socket::Tcp(_)) => {
                bail!("the server on port {} closed a connection", self.counts.port)
            }
            (Ok(length), _) => length,
            (Err(error), _) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            // There is no server on that port yet.
            (Err(error), Socket::Udp(_)) if error.kind() == ErrorKind::ConnectionRefused => {
                return Ok(None);
            }
            (Err(error), _) => return Err(error).context("cannot receive a response"),
        };
        report.received_bytes += length as u64;
        match &self.socket {
            Socket::Tcp(_) => self.missing = self.missing.saturating_sub(length),
            Socket::Udp(_) if length == client.response_bytes && buffer[0] == self.sequence => {
                self.missing = 0
            }
            Socket::Udp(_) => {}
        }
        let sent_at = if self.missing == 0 { self.sent_at.take() } else { None };
        if sent_at.is_some() {
            self.counts.transactions += 1;
            report.transactions += 1;
        }
        Ok(sent_at.map(|sent_at| sent_at.elapsed()))
    }
}

impl AsFd for Flow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        }
    }
}
