//! Answers UDP requests by two processes: the first one reads, the second one works and answers.

use crate::traffic::rr_server::take_time;
use crate::traffic::socket;
use crate::traffic::socket::CpuList;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

/// A request on its way from the first to the second process: address, port, first byte.
const RECORD: usize = 7;

/// Answer UDP requests by two processes, which a pipe connects
#[derive(Debug, Clone, Args)]
pub struct Pipeline {
    /// Port
    #[arg(long)]
    pub port: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// CPU of the process that reads, and of the one that answers
    #[arg(long, value_parser = socket::cpu_list, value_name = "LIST")]
    pub cpus: CpuList,
    /// CPU time that the second process burns per request, in microseconds
    #[arg(long, default_value_t = 0)]
    pub work_usecs: u64,
    /// Be the second process: requests come on standard input, standard output is the socket
    #[arg(long, hide = true)]
    pub second: bool,
}

/// Runs until it is killed; the second process ends with the first.
pub(crate) fn run(pipeline: &Pipeline) -> Result<()> {
    let [first, second] = pipeline.cpus.0[..] else { bail!("a pipeline has two CPUs") };
    if pipeline.second {
        socket::pin(second)?;
        socket::set_comm("pipeline-2")?;
        return answer(pipeline.work_usecs);
    }
    let at = (pipeline.bind, pipeline.port);
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at:?}"))?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["traffic", "pipeline", "--second", "--port", &pipeline.port.to_string()])
        .args(["--cpus", &format!("{first},{second}")])
        .args(["--work-usecs", &pipeline.work_usecs.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::from(OwnedFd::from(socket.try_clone()?)))
        .spawn()
        .context("cannot start the second process")?;
    socket::pin(first)?;
    socket::set_comm("pipeline-1")?;
    let mut pipe = child.stdin.take().context("no pipe")?;
    let mut request = [0; 65536];
    loop {
        let (length, from) = socket.recv_from(&mut request)?;
        if length == 0 {
            // An empty datagram asks whether a server is there.
            let _ = socket.send_to(&[], from);
        } else if let SocketAddr::V4(from) = from {
            pipe.write_all(&record(from, request[0])).context("the second process has ended")?;
        }
    }
}

/// Answers what the first process hands over, until that ends.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_at_the_other_end_of_the_pipe() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 79, 0, 1), 54321);
        assert_eq!(request(record(from, 7)), (from, 7));
    }
}
