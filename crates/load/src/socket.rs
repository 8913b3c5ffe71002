//! The client's data sockets, and polling of many sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netsilo_trial::traffic::{Spec, Test};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Timeout for opening a connection.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Timeout until the peer's kernel acknowledges data. A machine saturated by softirqs may take many
/// seconds.
const UNHEARD: Duration = Duration::from_secs(60);

/// How often waiting threads check whether to stop.
pub(super) const STOP_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The data socket of one instance.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        }
    }
}

impl Socket {
    /// Opens the socket of an instance; `None` if the load opens a connection for each request.
    pub(super) fn open(spec: &Spec, to: SocketAddr) -> io::Result<Option<Self>> {
        if spec.test == Test::TcpCrr {
            return Ok(None);
        }
        if !spec.test.is_udp() {
            let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            // small sends of a stream are merged into full segments (Nagle), as in netperf and
            // iperf3
            stream.set_nodelay(spec.test.has_responses())?;
            // a crashed server machine sends nothing, not even a reset
            sockopt::set_tcp_user_timeout(&stream, UNHEARD.as_millis() as u32)?;
            // a program that is silent or does not read still acknowledges data
            stream.set_read_timeout(Some(UNHEARD))?;
            stream.set_write_timeout(Some(UNHEARD))?;
            return Ok(Some(Self::Tcp(stream)));
        }
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Ok(Some(Self::Udp(socket)))
    }
}

/// Sockets that are polled together, each with a key.
pub(super) struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(512) })
    }

    pub(super) fn add(&self, socket: impl AsFd, key: usize, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(key as u64), flags)?)
    }

    pub(super) fn change(
        &self,
        socket: BorrowedFd<'_>,
        key: usize,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(key as u64), flags)?)
    }

    /// The keys of the ready sockets; empty after [`STOP_CHECK_INTERVAL`].
    pub(super) fn wait(&mut self) -> io::Result<impl Iterator<Item = usize> + '_> {
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&STOP_CHECK_INTERVAL),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| event.data.u64() as usize))
    }
}

/// Raises the soft limit of open files to the hard limit, for thousands of sockets.
pub(super) fn allow_many_sockets() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // if this fails, opening the sockets reports it
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Whether a nonblocking socket has to wait.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
