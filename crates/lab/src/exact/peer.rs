//! The other end: waits until it is reachable.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, Protocol, SocketType, socket};

/// How long senders wait for their receiver.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Connects. Waits for a server that is not running yet.
pub(crate) fn connect(to: SocketAddr) -> Result<TcpStream> {
    until_there(to, || {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(3))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
}

/// The same by SCTP.
pub(crate) fn connect_sctp(to: SocketAddr) -> Result<TcpStream> {
    until_there(to, || {
        let socket = sctp()?;
        rustix::net::connect(&socket, &to)?;
        Ok(socket.into())
    })
}

fn until_there(
    to: SocketAddr,
    connect: impl Fn() -> std::io::Result<TcpStream>,
) -> Result<TcpStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect() {
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("cannot connect to {to}"));
            }
            // Refused, or no route yet: the server is about to start.
            Err(_) => sleep(Duration::from_millis(50)),
            Ok(stream) => return Ok(stream),
        }
    }
}

/// An IPv4 socket of SCTP.
pub(crate) fn sctp() -> rustix::io::Result<OwnedFd> {
    let protocol = NonZeroU32::new(132).map(Protocol::from_raw);
    socket(AddressFamily::INET, SocketType::STREAM, protocol)
}

/// Whether the receiver of a datagram was not reachable yet, or its host has no route or address.
pub(crate) fn is_not_there(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::ConnectionRefused
    )
}
