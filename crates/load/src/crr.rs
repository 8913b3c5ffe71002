//! One connection per request.
//!
//! The server closes first, so that the ports in TIME_WAIT are on the server's side. Otherwise the
//! client would soon run out of ports.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Instant;

use netsilo_trial::traffic::Spec;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use crate::socket::{PATIENCE, Poll, is_later};
use crate::tally::Tally;

/// A thread that makes one connection after another.
pub(super) fn one(to: SocketAddr, spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    let mut buffer = vec![0; spec.request_bytes.max(spec.response_bytes) + 1];
    while !tally.is_stopped() {
        tally.request();
        let sent_at = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&buffer[..spec.request_bytes])?;
        tally.sent(spec.request_bytes);
        stream.read_exact(&mut buffer[..spec.response_bytes])?;
        tally.received(spec.response_bytes);
        if stream.read(&mut buffer)? > 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a response is longer than requested",
            ));
        }
        tally.response(sent_at, Instant::now());
    }
    Ok(())
}

/// One of many connections of a thread.
struct Flow {
    stream: TcpStream,
    sent_at: Instant,
    unsent: usize,
    missing: usize,
    done: bool,
}

/// A thread with many concurrent connections.
pub(super) fn many(
    to: SocketAddr,
    instances: usize,
    spec: &Spec,
    tally: &mut Tally<'_>,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut buffer = vec![0; (64 << 10).min(spec.request_bytes.max(spec.response_bytes) + 1)];
    let mut flows = (0..instances)
        .map(|key| Flow::open(key, to, spec, &poll, tally))
        .collect::<io::Result<Vec<Flow>>>()?;
    loop {
        let ready: Vec<usize> = poll.wait()?.collect();
        let stopped = tally.is_stopped();
        for key in ready {
            let Some(flow) = flows.get_mut(key) else { continue };
            if !flow.done && flow.go_on(key, &mut buffer, &poll, tally)? {
                flow.done = true;
                tally.response(flow.sent_at, Instant::now());
                if !stopped {
                    *flow = Flow::open(key, to, spec, &poll, tally)?;
                }
            }
        }
        if stopped && flows.iter().all(|flow| flow.done) {
            return Ok(());
        }
    }
}

impl Flow {
    /// Starts to connect.
    fn open(
        key: usize,
        to: SocketAddr,
        spec: &Spec,
        poll: &Poll,
        tally: &Tally<'_>,
    ) -> io::Result<Self> {
        tally.request();
        let sent_at = Instant::now();
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        poll.add(&socket, key, EventFlags::OUT)?;
        Ok(Self {
            stream: socket.into(),
            sent_at,
            unsent: spec.request_bytes,
            missing: spec.response_bytes,
            done: false,
        })
    }

    /// Sends and receives as much as possible. Returns true when the server has answered and
    /// closed.
    fn go_on(
        &mut self,
        key: usize,
        buffer: &mut [u8],
        poll: &Poll,
        tally: &Tally<'_>,
    ) -> io::Result<bool> {
        if self.unsent > 0 {
            sockopt::socket_error(&self.stream)??;
            while self.unsent > 0 {
                match self.stream.write(&buffer[..self.unsent.min(buffer.len())]) {
                    Ok(bytes) => {
                        self.unsent -= bytes;
                        tally.sent(bytes);
                    }
                    Err(error) if is_later(&error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            poll.change(self.stream.as_fd(), key, EventFlags::IN)?;
            return Ok(false);
        }
        loop {
            match self.stream.read(buffer) {
                Ok(0) if self.missing == 0 => return Ok(true),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    tally.received(bytes);
                    self.missing = self.missing.saturating_sub(bytes);
                }
                Err(error) if is_later(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}
