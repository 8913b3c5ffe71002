//! One thread's part of a load: its sockets, and how they send.

use std::io;
use std::net::SocketAddr;

use netsilo_trial::traffic::{InstancesAs, Spec, Test};

use crate::socket::Socket;
use crate::tally::Tally;
use crate::{crr, rr, stream, zero_copy};

/// Stack size of a worker in bytes. There may be thousands of workers.
pub(super) const STACK: usize = 96 << 10;

/// One thread's part of a load.
pub(super) struct Share {
    /// Target of its requests, if each request opens a connection.
    pub(super) to: SocketAddr,
    pub(super) instances: usize,
    /// One per instance, or empty.
    pub(super) sockets: Vec<Socket>,
}

/// Runs one thread's part of a load until it is stopped.
pub(super) fn work(share: Share, spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    let Share { to, instances, sockets } = share;
    let many = spec.instances_as == InstancesAs::Multiplexed;
    if spec.zero_copy {
        return zero_copy::stream(sockets, spec, tally);
    }
    match (spec.test, sockets.as_slice()) {
        (Test::TcpCrr, _) if many => crr::many(to, instances, spec, tally),
        (Test::TcpCrr, _) => crr::one(to, spec, tally),
        (Test::UdpStream | Test::Forward, all) => stream::udp(all, spec, tally),
        (Test::TcpRr, [Socket::Tcp(stream)]) if !many => rr::tcp(stream, spec, tally),
        (Test::UdpRr, [Socket::Udp(socket)]) if !many => rr::udp(socket, spec, tally),
        (Test::TcpRr | Test::UdpRr, _) => rr::many(sockets, spec, tally),
        (Test::TcpStream | Test::TcpSendfile, [Socket::Tcp(stream)]) if !many => {
            stream::tcp(stream, spec, tally)
        }
        (Test::TcpStream | Test::TcpSendfile, _) => stream::tcp_many(sockets, spec, tally),
    }
}
