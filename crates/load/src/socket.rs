//! The client's data sockets, and waiting for many of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netsilo_trial::traffic::{Spec, Test};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How long a connection may take to be made.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// For so long a machine may leave what was sent without an answer of its kernel: one that is full
/// of softirqs does for many seconds.
const UNHEARD: Duration = Duration::from_secs(60);

/// How often those who wait look whether they shall stop.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

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
    /// Opens what an instance of this load needs; nothing if it opens a connection for each
    /// request.
    pub(super) fn open(spec: &Spec, to: SocketAddr) -> io::Result<Option<Self>> {
        if spec.test == Test::TcpCrr {
            return Ok(None);
        }
        if !spec.test.is_udp() {
            let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            // what streams in small sends goes out in full segments (Nagle), as with netperf and
            // iperf3
            stream.set_nodelay(spec.test.has_responses())?;
            // a server's machine that is gone says nothing any more
            sockopt::set_tcp_user_timeout(&stream, UNHEARD.as_millis() as u32)?;
            return Ok(Some(Self::Tcp(stream)));
        }
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Ok(Some(Self::Udp(socket)))
    }
}

/// Sockets that are waited for together, each with a number.
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

    /// The numbers of those that are ready; none when it is time to look around.
    pub(super) fn wait(&mut self) -> io::Result<impl Iterator<Item = usize> + '_> {
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&LOOK),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| event.data.u64() as usize))
    }
}

/// Thousands of sockets are wanted: as many as may be had without asking.
pub(super) fn allow_many_sockets() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // where it is refused, opening the sockets will tell
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Whether nothing more can be had from a socket for now.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
