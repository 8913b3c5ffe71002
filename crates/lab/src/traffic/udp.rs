//! UDP flows with a start and an end, and the ways to receive them.
//!
//! An empty datagram opens a flow, and after data ends it. The consumer answers each with an empty
//! one, so that the producer can repeat a lost one. Empty datagrams add nothing to byte counts.

use crate::traffic::consume_args::ConsumeArgs;
use crate::traffic::consume_args::Mode;
use crate::traffic::consumed::ConsumedSocket;
use crate::traffic::socket;
use crate::traffic::socket::PATIENCE;
use anyhow::{Context, Result, bail};
use rustix::net::{RecvFlags, recvfrom};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const REPEAT: Duration = Duration::from_millis(100);

/// Opens a socket to `to` after a consumer there has answered.
pub(crate) fn open(to: SocketAddr, patience: Duration) -> Result<UdpSocket> {
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse()?;
    let socket = UdpSocket::bind(any)?;
    socket.connect(to).with_context(|| format!("cannot reach {to}"))?;
    if shake(&socket, patience, false)? != Answer::Came {
        bail!("no consumer answers on {to}");
    }
    Ok(socket)
}

/// Sends a datagram; repeats it while the destination is temporarily unreachable (ARP, a slow
/// guest), which the kernel reports once, on the sender's socket.
pub(crate) fn send(socket: &UdpSocket, datagram: &[u8]) -> std::io::Result<usize> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match socket.send(datagram) {
            Err(error) if is_passing(&error) && Instant::now() < deadline => {
                std::thread::sleep(REPEAT)
            }
            sent => return sent,
        }
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::ConnectionRefused
    )
}

/// Ends a flow; a consumer that is gone has already ended all its flows.
pub(crate) fn close(socket: &UdpSocket) -> Result<()> {
    shake(socket, PATIENCE / 3, true).map(|_| ())
}

#[derive(PartialEq)]
enum Answer {
    Came,
    Refused,
    None,
}

/// Sends empty datagrams until one is answered; with `refusal_ends` a refusal is an answer too.
fn shake(socket: &UdpSocket, patience: Duration, refusal_ends: bool) -> Result<Answer> {
    socket.set_read_timeout(Some(REPEAT))?;
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        match socket.send(&[]).and_then(|_| socket.recv(&mut [0; 16])) {
            Ok(_) => return Ok(Answer::Came),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if refusal_ends && error.kind() == ErrorKind::ConnectionRefused => {
                return Ok(Answer::Refused);
            }
            // No consumer yet, or no route to it.
            Err(_) => std::thread::sleep(REPEAT),
        }
    }
    Ok(Answer::None)
}

/// State of one flow of a socket.
#[derive(Default)]
struct Flow {
    bytes: u64,
    ended: bool,
}

struct Receiver {
    socket: UdpSocket,
    connected: bool,
    flows: HashMap<SocketAddr, Flow>,
    counts: ConsumedSocket,
}

/// Receives until `flows` flows have ended, or nothing more arrives.
pub(crate) fn consume(consume: &ConsumeArgs, port: u16, flows: usize) -> Result<ConsumedSocket> {
    let socket = UdpSocket::bind((consume.bind, port))
        .with_context(|| format!("cannot listen on udp port {port}"))?;
    // Best effort: datagrams that do not fit are lost and not counted.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20);
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let counts = ConsumedSocket { local_port: port, ..ConsumedSocket::default() };
    let mut receiver = Receiver { socket, connected: false, flows: HashMap::new(), counts };
    let mut buffer = vec![0; consume.size.max(65536)];
    let mut last_arrival = Instant::now();
    while receiver.flows.values().filter(|flow| flow.ended).count() < flows {
        if receiver.receive(consume.mode, &mut buffer)? {
            last_arrival = Instant::now();
        } else if last_arrival.elapsed() > consume.patience() {
            break;
        }
    }
    let Receiver { socket, mut counts, flows, .. } = receiver;
    counts.incoming_napi_id = socket::incoming_napi_id(&socket)?;
    counts.incoming_cpu = socket::incoming_cpu(&socket)?;
    counts.flows = flows.into_iter().map(|(from, flow)| (from.port(), flow.bytes)).collect();
    // A socket with several flows has no single peer.
    counts.peer_port =
        if let [(port, _)] = counts.flows.iter().collect::<Vec<_>>()[..] { *port } else { 0 };
    answer_repeats(&socket);
    Ok(counts)
}

/// Answers repeated closing datagrams for a while, in case the last answer was lost.
fn answer_repeats(socket: &UdpSocket) {
    let end = Instant::now() + 3 * REPEAT;
    while Instant::now() < end {
        if let Ok((0, from)) = socket.recv_from(&mut [0; 16]) {
            let _ = socket.send_to(&[], from).or_else(|_| socket.send(&[]));
        }
    }
}

impl Receiver {
    /// Receives once; returns `false` if nothing arrived before the socket's timeout.
    fn receive(&mut self, mode: Mode, buffer: &mut [u8]) -> Result<bool> {
        let received = match mode {
            Mode::UdpRecvmmsg => return self.receive_many(),
            Mode::UdpPeek => {
                let peeked = recvfrom(&self.socket, &mut *buffer, RecvFlags::PEEK);
                peeked.and_then(|_| recvfrom(&self.socket, &mut *buffer, RecvFlags::empty()))
            }
            _ => recvfrom(&self.socket, &mut *buffer, RecvFlags::empty()),
        };
        match received {
            Ok((_, length, from)) => {
                let from = from
                    .map(SocketAddr::try_from)
                    .transpose()?
                    .context("a datagram without a sender")?;
                self.take(length, from)?;
                if mode == Mode::UdpConnected && !self.connected {
                    self.socket.connect(from)?;
                    self.connected = true;
                }
                Ok(true)
            }
            Err(
                rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNREFUSED,
            ) => Ok(false),
            Err(error) => Err(error).context("cannot receive"),
        }
    }

    fn receive_many(&mut self) -> Result<bool> {
        let received = crate::traffic::recvmmsg::receive(&self.socket)?;
        for (length, from) in &received {
            self.take(*length, *from)?;
        }
        Ok(!received.is_empty())
    }

    fn take(&mut self, length: usize, from: SocketAddr) -> Result<()> {
        let flow = self.flows.entry(from).or_default();
        flow.bytes += length as u64;
        self.counts.bytes += length as u64;
        self.counts.calls += 1;
        if length == 0 {
            flow.ended = flow.bytes > 0;
            let answered =
                if self.connected { self.socket.send(&[]) } else { self.socket.send_to(&[], from) };
            // If the answer is lost, the producer repeats its request.
            if answered.is_err_and(|error| !is_passing(&error)) {
                bail!("cannot answer {from}");
            }
        }
        Ok(())
    }
}
