//! Streams from the client to the server, as fast as possible.

use std::io::{self, Write as _};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netsilo_trial::traffic::{Spec, Test};
use rustix::event::epoll::EventFlags;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};

use crate::rr::is_full;
use crate::shared_counters::add;
use crate::socket::{Poll, Socket, is_later};
use crate::tally::Tally;

/// The source of the bytes.
enum Source {
    Buffer(Vec<u8>),
    /// A file in memory, with its length in bytes.
    File(OwnedFd, usize),
}

impl Source {
    fn of(spec: &Spec) -> io::Result<Self> {
        let buffer = vec![0; spec.send_bytes];
        if spec.test != Test::TcpSendfile {
            return Ok(Self::Buffer(buffer));
        }
        let file = std::fs::File::from(memfd_create("netsilo-sendfile", MemfdFlags::CLOEXEC)?);
        (&file).write_all(&buffer)?;
        Ok(Self::File(file.into(), spec.send_bytes))
    }

    /// Sends from this offset. Returns the number of bytes sent.
    fn send(&self, mut stream: &TcpStream, offset: usize) -> io::Result<usize> {
        match self {
            Self::Buffer(buffer) => stream.write(&buffer[offset..]),
            Self::File(file, length) => {
                let mut from = offset as u64;
                Ok(sendfile(stream, file, Some(&mut from), length - offset)?)
            }
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::File(_, length) => *length,
        }
    }
}

/// A thread with one connection.
pub(super) fn tcp(stream: &TcpStream, spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    let source = Source::of(spec)?;
    let mut offset = 0;
    while !tally.is_stopped() {
        let bytes = match source.send(stream, offset) {
            // a process that was stopped and continued
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            sent => sent?,
        };
        tally.sent(bytes);
        offset = (offset + bytes) % source.length();
    }
    stream.shutdown(Shutdown::Write)
}

/// A thread with many connections.
pub(super) fn tcp_many(sockets: Vec<Socket>, spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    let source = Source::of(spec)?;
    let mut poll = Poll::new()?;
    let streams = sockets
        .into_iter()
        .filter_map(|socket| if let Socket::Tcp(stream) = socket { Some(stream) } else { None });
    let mut flows: Vec<(TcpStream, usize)> = streams.map(|stream| (stream, 0)).collect();
    for (key, (stream, _)) in flows.iter().enumerate() {
        stream.set_nonblocking(true)?;
        poll.add(stream, key, EventFlags::OUT)?;
    }
    while !tally.is_stopped() {
        let ready: Vec<usize> = poll.wait()?.collect();
        for key in ready {
            let Some((stream, offset)) = flows.get_mut(key) else { continue };
            match source.send(stream, *offset) {
                Ok(bytes) => {
                    tally.sent(bytes);
                    *offset = (*offset + bytes) % source.length();
                }
                Err(error) if is_later(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    flows.iter().try_for_each(|(stream, _)| stream.shutdown(Shutdown::Write))
}

/// A thread with some datagram sockets in rotation. It sends at most its share of the rate.
pub(super) fn udp(sockets: &[Socket], spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    let buffer = vec![0; spec.send_bytes];
    let sockets: Vec<&UdpSocket> = sockets
        .iter()
        .filter_map(|socket| if let Socket::Udp(socket) = socket { Some(socket) } else { None })
        .collect();
    let mut pace =
        spec.rate_per_s.map(|rate| Pace::new(rate * sockets.len() as f64 / spec.instances as f64));
    for socket in sockets.iter().cycle() {
        if tally.is_stopped() {
            break;
        }
        match socket.send(&buffer) {
            Ok(bytes) => {
                tally.sent(bytes);
                add(&tally.row.datagrams_sent, 1);
            }
            // A full queue is not a loss in transit. The next send reports the error of an earlier
            // datagram that had no receiver.
            Err(error) if is_full(&error) || is_later(&error) => sleep(Duration::from_micros(50)),
            Err(error) => return Err(error),
        }
        if let Some(pace) = &mut pace {
            pace.keep();
        }
    }
    Ok(())
}

/// Limits the send rate. After a delay it does not catch up.
pub(super) struct Pace {
    per_s: f64,
    started: Instant,
    sent: f64,
}

impl Pace {
    pub(super) fn new(per_s: f64) -> Self {
        Self { per_s, started: Instant::now(), sent: 0.0 }
    }

    /// Waits after a send until the next one is due.
    pub(super) fn keep(&mut self) {
        self.sent += 1.0;
        let ahead = self.sent / self.per_s - self.started.elapsed().as_secs_f64();
        if ahead > 0.001 {
            sleep(Duration::from_secs_f64(ahead.min(0.02)));
        } else if ahead < -0.1 {
            *self = Self::new(self.per_s);
        }
    }
}
