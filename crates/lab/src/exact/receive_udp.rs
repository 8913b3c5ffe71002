//! Receives UDP flows. A flow opens with an empty datagram, which is answered by an empty one, as
//! is each datagram whose sender waits for that. Empty datagrams add nothing to counts of bytes.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recvfrom};

use crate::exact::peer::is_not_there;
use crate::exact::receive_args::{Mode, Receive};
use crate::exact::received::{ReceivedSocket, incoming_napi_id};
use crate::exact::send::ACKNOWLEDGE;

/// Maximum number of datagrams per call of recvmmsg.
const BATCH: usize = 16;
const DATAGRAM_BYTES: usize = 65536;

/// Receives on one port until all bytes of its flows have arrived, or nothing more arrives.
pub(crate) fn run(receive: &Receive, port: u16, flows: u64) -> Result<ReceivedSocket> {
    let socket = UdpSocket::bind((receive.bind, port))
        .with_context(|| format!("cannot listen on udp port {port}"))?;
    // Best effort: datagrams that do not fit are lost and not counted.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20);
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut counts = ReceivedSocket::default();
    let mut buffers = vec![0; BATCH * DATAGRAM_BYTES];
    let mut is_connected = false;
    let mut last_arrival = Instant::now();
    let all = receive.bytes.map_or(u64::MAX, |bytes| flows * bytes);
    while counts.bytes < all && last_arrival.elapsed() <= receive.patience() {
        for datagram in read(&socket, receive.mode, &mut buffers)? {
            let Datagram { length, from, first_byte } = datagram;
            last_arrival = Instant::now();
            counts.count_read(length);
            if first_byte.is_none_or(|byte| byte == ACKNOWLEDGE) {
                answer(&socket, from, is_connected)?;
            }
            if receive.mode == Mode::UdpConnected && !is_connected {
                socket.connect(from)?;
                is_connected = true;
            }
        }
    }
    counts.incoming_napi_id = incoming_napi_id(&socket)?;
    Ok(counts)
}

/// Answers a datagram. The sender repeats one that opens a flow if the answer is lost.
fn answer(socket: &UdpSocket, from: SocketAddr, is_connected: bool) -> Result<()> {
    let answered = if is_connected { socket.send(&[]) } else { socket.send_to(&[], from) };
    match answered {
        Err(error) if !is_not_there(&error) => Err(error).context("cannot answer"),
        _ => Ok(()),
    }
}

struct Datagram {
    length: usize,
    from: SocketAddr,
    first_byte: Option<u8>,
}

/// Receives once. No datagram if the socket times out.
fn read(socket: &UdpSocket, mode: Mode, buffers: &mut [u8]) -> Result<Vec<Datagram>> {
    let received = match mode {
        Mode::UdpRecvmmsg => return read_many(socket, buffers),
        Mode::UdpPeek => {
            let peeked = recvfrom(socket, &mut *buffers, RecvFlags::PEEK);
            peeked.and_then(|_| recvfrom(socket, &mut *buffers, RecvFlags::empty()))
        }
        _ => recvfrom(socket, &mut *buffers, RecvFlags::empty()),
    };
    match received {
        Ok((_, length, Some(from))) => {
            let first_byte = buffers[..length].first().copied();
            Ok(vec![Datagram { length, from: from.try_into()?, first_byte }])
        }
        Ok((_, _, None)) => bail!("a datagram without a sender"),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED) => Ok(Vec::new()),
        Err(error) => Err(error).context("cannot receive"),
    }
}

fn read_many(socket: &UdpSocket, buffers: &mut [u8]) -> Result<Vec<Datagram>> {
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut slices: Vec<[IoSliceMut<'_>; 1]> =
        buffers.chunks_mut(DATAGRAM_BYTES).map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let flags = MsgFlags::MSG_WAITFORONE;
    let received = match recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None) {
        Ok(received) => received,
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(Vec::new()),
        Err(error) => return Err(error).context("recvmmsg failed"),
    };
    received
        .map(|message| {
            let from = message.address.context("a datagram without a sender")?;
            let first_byte = message.iovs().next().and_then(|data| data.first().copied());
            let from = SocketAddr::from((from.ip(), from.port()));
            Ok(Datagram { length: message.bytes, from, first_byte })
        })
        .collect()
}
