//! Servers whose threads, processes and sleeps are known.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};

use crate::exact::pin::pin;

/// A request on its way from the first to the second process: address, port, first byte.
const RECORD: usize = 7;

/// Send back what arrives, in one thread that sleeps only until something arrives; serve TCP
/// connections one after another
#[derive(Debug, Clone, Args)]
pub struct Echo {
    /// Answer datagrams instead of streams
    #[arg(long)]
    pub udp: bool,
    /// Port
    #[arg(long)]
    pub port: u16,
    /// Run on this CPU
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// Answer UDP requests with two processes that are connected by a pipe
#[derive(Debug, Clone, Args)]
pub struct Pipeline {
    /// Port
    #[arg(long)]
    pub port: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// CPU of the process that reads
    #[arg(long)]
    pub cpu: usize,
    /// CPU of the process that answers
    #[arg(long)]
    pub second_cpu: usize,
    /// CPU time that the second process burns per request, in microseconds
    #[arg(long, default_value_t = 0)]
    pub work_usecs: u64,
    /// Be the second process: requests come on standard input, and standard output is the socket
    #[arg(long, hide = true)]
    pub second: bool,
}

impl Echo {
    /// Runs until it is killed.
    pub(crate) fn run(&self) -> Result<()> {
        self.cpu.map_or(Ok(()), pin)?;
        let at = (Ipv4Addr::UNSPECIFIED, self.port);
        let mut buffer = [0; 65536];
        if self.udp {
            let socket = UdpSocket::bind(at)?;
            loop {
                let (length, from) = socket.recv_from(&mut buffer)?;
                // A client that is gone does not wait for it.
                let _ = socket.send_to(&buffer[..length], from);
            }
        }
        let listener = TcpListener::bind(at)?;
        loop {
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            // If the client breaks the connection, it ends as if the client had closed it.
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let _ = stream.write_all(&buffer[..length]);
            }
        }
    }
}

impl Pipeline {
    /// Runs until it is killed. The second process ends together with the first.
    pub(crate) fn run(&self) -> Result<()> {
        let Self { port, bind, cpu, second_cpu, work_usecs, second } = self;
        if *second {
            pin(*second_cpu)?;
            return answer(*work_usecs);
        }
        let at = (*bind, *port);
        let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at:?}"))?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["exact", "pipeline", "--second", "--port", &port.to_string()])
            .args(["--cpu", &cpu.to_string(), "--second-cpu", &second_cpu.to_string()])
            .args(["--work-usecs", &work_usecs.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::from(OwnedFd::from(socket.try_clone()?)))
            .spawn()
            .context("cannot start the second process")?;
        pin(*cpu)?;
        let mut pipe = child.stdin.take().context("no pipe")?;
        let mut request = [0; 65536];
        loop {
            if let (1.., SocketAddr::V4(from)) = socket.recv_from(&mut request)? {
                pipe.write_all(&record(from, request[0]))
                    .context("the second process has ended")?;
            }
        }
    }
}

/// Answers the requests that the first process passes to it, until the first process ends.
fn answer(work_usecs: u64) -> Result<()> {
    let socket = UdpSocket::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let mut input = std::io::stdin().lock();
    let mut handed = [0; RECORD];
    while input.read_exact(&mut handed).is_ok() {
        let (to, byte) = request(handed);
        take_time(work_usecs);
        // A client that is gone does not wait for it.
        let _ = socket.send_to(&[byte], to);
    }
    Ok(())
}

fn record(from: SocketAddrV4, byte: u8) -> [u8; RECORD] {
    let ([a, b, c, d], [high, low]) = (from.ip().octets(), from.port().to_be_bytes());
    [a, b, c, d, high, low, byte]
}

fn request([a, b, c, d, high, low, byte]: [u8; RECORD]) -> (SocketAddrV4, u8) {
    (SocketAddrV4::new([a, b, c, d].into(), u16::from_be_bytes([high, low])), byte)
}

/// Burns CPU time in user mode, like a service that computes.
fn take_time(usecs: u64) {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let end = used() + Duration::from_micros(usecs);
    while usecs > 0 && used() < end {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_at_the_other_end_of_the_pipe() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 79, 0, 1), 54321);
        assert_eq!(request(record(from, 7)), (from, 7));
    }
}
