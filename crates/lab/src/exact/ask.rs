//! Sends requests to servers other than `netsilo-bench serve`: those of [`crate::exact`], and
//! servers with a text protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread::{ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::exact::peer::{connect, is_not_there};

/// A UDP request or its response counts as lost after this time.
const LOST: Duration = Duration::from_millis(400);

/// Send requests one after another on each of several connections, with a thread for each
#[derive(Debug, Clone, Args)]
pub struct Ask {
    /// Send datagrams of one byte instead of streams
    #[arg(long)]
    pub udp: bool,
    /// Address of the server
    #[arg(long)]
    pub dest: IpAddr,
    /// Port of the first server
    #[arg(long)]
    pub port: u16,
    /// Number of servers: connection i goes to port + i modulo this
    #[arg(long, default_value_t = 1)]
    pub ports: u16,
    /// Number of concurrent connections, each with one request outstanding
    #[arg(long, default_value_t = 1)]
    pub connections: u16,
    /// Seconds to run; each connection makes at least one request
    #[arg(long, default_value_t = 5.0)]
    pub duration: f64,
    /// TCP: send this text and a newline as each request, instead of one byte
    #[arg(long, value_name = "TEXT", conflicts_with = "udp")]
    pub request_line: Option<String>,
    /// TCP: bytes of a response
    #[arg(long, default_value_t = 1)]
    pub response_bytes: usize,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Requests that were answered.
    pub transactions: u64,
    /// Transactions per second.
    pub transactions_per_second: f64,
    /// Median of the response times, in microseconds.
    pub p50_us: f64,
    /// Their 99th percentile.
    pub p99_us: f64,
}

impl Ask {
    pub(crate) fn run(&self) -> Result<Asked> {
        let started = Instant::now();
        let end = started + Duration::from_secs_f64(self.duration);
        let latencies = std::thread::scope(|scope| {
            let start = |at| {
                let to = SocketAddr::new(self.dest, self.port + at % self.ports.max(1));
                scope
                    .spawn(move || if self.udp { datagrams(to, end) } else { self.stream(to, end) })
            };
            let flows: Vec<_> = (0..self.connections).map(start).collect();
            let join = |flow: ScopedJoinHandle<'_, Result<_>>| {
                flow.join().unwrap_or_else(|_| Err(anyhow!("a connection's thread panicked")))
            };
            flows.into_iter().map(join).collect::<Result<Vec<Vec<Duration>>>>()
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let mut latencies = latencies.concat();
        latencies.sort_unstable();
        let quantile = |share: f64| {
            let at = (latencies.len() as f64 * share) as usize;
            latencies.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
        };
        Ok(Asked {
            transactions: latencies.len() as u64,
            transactions_per_second: latencies.len() as f64 / seconds,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
        })
    }

    fn stream(&self, to: SocketAddr, end: Instant) -> Result<Vec<Duration>> {
        let request =
            self.request_line.as_ref().map_or(vec![0], |line| format!("{line}\r\n").into_bytes());
        let mut response = vec![0; self.response_bytes];
        let mut stream = connect(to)?;
        until(end, || {
            stream.write_all(&request)?;
            stream.read_exact(&mut response).with_context(|| format!("no answer from {to}"))
        })
    }
}

/// Sends datagrams whose byte is a number, so that a late response is recognized. A lost datagram
/// is sent again.
fn datagrams(to: SocketAddr, end: Instant) -> Result<Vec<Duration>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
    let mut number = 0_u8;
    until(end, || {
        number = number.wrapping_add(1);
        let mut response = [0; 16];
        let mut sent = socket.send(&[number]);
        loop {
            match sent.and_then(|_| socket.recv(&mut response)) {
                Ok(_) if response[0] == number => return Ok(()),
                Ok(_) => sent = Ok(1),
                // The lab stops and continues clients.
                Err(error) if error.kind() == ErrorKind::Interrupted => sent = Ok(1),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    sent = socket.send(&[number]);
                }
                // There is no server yet.
                Err(error) if is_not_there(&error) => {
                    sleep(Duration::from_millis(50));
                    sent = socket.send(&[number]);
                }
                Err(error) => return Err(error).with_context(|| format!("no answer from {to}")),
            }
        }
    })
}

/// Repeats a transaction, at least once. Returns how long each took.
fn until(end: Instant, mut transact: impl FnMut() -> Result<()>) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    loop {
        let began = Instant::now();
        transact()?;
        latencies.push(began.elapsed());
        if Instant::now() >= end {
            return Ok(latencies);
        }
    }
}
