//! Requests and responses on the client. Each connection has one outstanding request.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use netsilo_trial::traffic::Spec;
use rustix::event::epoll::EventFlags;

use crate::shared_counters::add;
use crate::socket::{PATIENCE, Poll, Socket, is_later};
use crate::tally::Tally;

/// Maximum bytes per read or write.
const PIECE: usize = 64 << 10;

/// A thread that blocks in its connection.
pub(super) fn tcp(mut stream: &TcpStream, spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    let mut buffer = vec![0; spec.request_bytes.max(spec.response_bytes)];
    let mut sent_at = Instant::now();
    while !tally.is_stopped() {
        tally.request();
        stream.write_all(&buffer[..spec.request_bytes])?;
        tally.sent(spec.request_bytes);
        stream.read_exact(&mut buffer[..spec.response_bytes])?;
        tally.received(spec.response_bytes);
        let now = Instant::now();
        tally.response(sent_at, now);
        sent_at = now;
    }
    Ok(())
}

/// A thread that blocks in its datagram socket.
pub(super) fn udp(socket: &UdpSocket, spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    socket.set_read_timeout(Some(spec.lost_after))?;
    let mut buffer = vec![0; spec.request_bytes.max(spec.response_bytes)];
    let mut sequence = 0_u8;
    let mut now = Instant::now();
    while !tally.is_stopped() {
        sequence = sequence.wrapping_add(1);
        tally.request();
        let sent_at = now;
        let mut last_sent = sent_at;
        send(socket, &mut buffer[..spec.request_bytes], sequence, tally)?;
        loop {
            let received = socket.recv(&mut buffer);
            now = Instant::now();
            if is_response(received, &buffer, sequence, spec, tally)? {
                tally.response(sent_at, now);
                break;
            }
            if now.duration_since(last_sent) < spec.lost_after {
                continue;
            }
            if !spec.resend || tally.is_stopped() {
                add(&tally.row.lost, 1);
                break;
            }
            add(&tally.row.resent, 1);
            last_sent = now;
            send(socket, &mut buffer[..spec.request_bytes], sequence, tally)?;
        }
    }
    Ok(())
}

/// Sends a request, identified by its first byte. Without buffer space the request counts as lost.
fn send(socket: &UdpSocket, request: &mut [u8], sequence: u8, tally: &Tally<'_>) -> io::Result<()> {
    request[0] = sequence;
    match socket.send(request) {
        Ok(bytes) => {
            tally.sent(bytes);
            Ok(())
        }
        Err(error) if is_later(&error) || is_full(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the kernel or its device has no buffer left.
pub(super) fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

fn is_response(
    received: io::Result<usize>,
    buffer: &[u8],
    sequence: u8,
    spec: &Spec,
    tally: &Tally<'_>,
) -> io::Result<bool> {
    match received {
        Ok(bytes) => {
            tally.received(bytes);
            let fits = bytes == spec.response_bytes && buffer[0] == sequence;
            if !fits {
                add(&tally.row.late, 1);
            }
            Ok(fits)
        }
        Err(error) if is_later(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// One of many connections of a thread.
struct Flow {
    socket: Socket,
    sent_at: Instant,
    /// When its datagram was last sent.
    last_sent: Instant,
    unsent: usize,
    missing: usize,
    sequence: u8,
    /// Whether a request is outstanding.
    asked: bool,
}

/// A thread that serves many connections.
pub(super) fn many(sockets: Vec<Socket>, spec: &Spec, tally: &mut Tally<'_>) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut buffer = vec![0; PIECE.min(spec.request_bytes.max(spec.response_bytes))];
    let now = Instant::now();
    let flow = |socket| Flow {
        socket,
        sent_at: now,
        last_sent: now,
        unsent: 0,
        missing: 0,
        sequence: 0,
        asked: false,
    };
    let mut flows: Vec<Flow> = sockets.into_iter().map(flow).collect();
    for (key, flow) in flows.iter_mut().enumerate() {
        match &flow.socket {
            Socket::Tcp(stream) => stream.set_nonblocking(true)?,
            Socket::Udp(socket) => socket.set_nonblocking(true)?,
        }
        poll.add(&flow.socket, key, EventFlags::IN)?;
        flow.ask(key, Instant::now(), spec, &mut buffer, &poll, tally)?;
    }
    let mut looked_at = Instant::now();
    let look_every = (spec.lost_after / 8).max(Duration::from_millis(1));
    let mut stopped_at = None;
    loop {
        let ready: Vec<usize> = poll.wait()?.collect();
        let stopped = tally.is_stopped();
        for key in ready {
            let Some(flow) = flows.get_mut(key) else { continue };
            if flow.unsent > 0 {
                flow.go_on(key, &buffer, &poll, tally)?;
            }
            if flow.hear(spec, &mut buffer, tally)? && !stopped {
                let now = flow.sent_at;
                flow.ask(key, now, spec, &mut buffer, &poll, tally)?;
            }
        }
        if spec.test.is_udp() && looked_at.elapsed() >= look_every {
            looked_at = Instant::now();
            for (key, flow) in flows.iter_mut().enumerate() {
                flow.look_for_loss(key, looked_at, spec, &mut buffer, &poll, tally)?;
            }
        }
        if stopped && flows.iter().all(|flow| !flow.asked) {
            return Ok(());
        }
        if stopped && stopped_at.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"));
        }
    }
}

impl Flow {
    /// Sends the next request.
    fn ask(
        &mut self,
        key: usize,
        now: Instant,
        spec: &Spec,
        buffer: &mut [u8],
        poll: &Poll,
        tally: &Tally<'_>,
    ) -> io::Result<()> {
        tally.request();
        (self.sent_at, self.last_sent, self.asked) = (now, now, true);
        self.missing = spec.response_bytes;
        self.sequence = self.sequence.wrapping_add(1);
        if let Socket::Udp(socket) = &self.socket {
            return send(socket, &mut buffer[..spec.request_bytes], self.sequence, tally);
        }
        self.unsent = spec.request_bytes;
        self.go_on(key, buffer, poll, tally)
    }

    /// Sends the rest of a request. Waits for room in the send buffer if needed.
    fn go_on(
        &mut self,
        key: usize,
        buffer: &[u8],
        poll: &Poll,
        tally: &Tally<'_>,
    ) -> io::Result<()> {
        let Socket::Tcp(stream) = &mut self.socket else { return Ok(()) };
        while self.unsent > 0 {
            match stream.write(&buffer[..self.unsent.min(buffer.len())]) {
                Ok(bytes) => {
                    self.unsent -= bytes;
                    tally.sent(bytes);
                }
                Err(error) if is_later(&error) => {
                    return poll.change(stream.as_fd(), key, EventFlags::IN | EventFlags::OUT);
                }
                Err(error) => return Err(error),
            }
        }
        // Only a request longer than the socket's send buffer waits for room.
        if buffer.len() == PIECE {
            poll.change(stream.as_fd(), key, EventFlags::IN)
        } else {
            Ok(())
        }
    }

    /// Reads data. Returns true if that completes the response; then `sent_at` is the time of
    /// completion.
    fn hear(&mut self, spec: &Spec, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<bool> {
        let answered = match &mut self.socket {
            Socket::Tcp(stream) => match stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    tally.received(bytes);
                    self.missing = self.missing.saturating_sub(bytes);
                    self.missing == 0
                }
                Err(error) if is_later(&error) => false,
                Err(error) => return Err(error),
            },
            Socket::Udp(socket) => {
                is_response(socket.recv(buffer), buffer, self.sequence, spec, tally)?
            }
        };
        if !(answered && self.asked) {
            // only for datagrams: the request was already given up
            add(&tally.row.late, usize::from(answered));
            return Ok(false);
        }
        let now = Instant::now();
        tally.response(self.sent_at, now);
        (self.sent_at, self.asked) = (now, false);
        Ok(true)
    }

    /// Gives up a datagram that got no response in time, or sends it again.
    fn look_for_loss(
        &mut self,
        key: usize,
        now: Instant,
        spec: &Spec,
        buffer: &mut [u8],
        poll: &Poll,
        tally: &Tally<'_>,
    ) -> io::Result<()> {
        let Socket::Udp(socket) = &self.socket else { return Ok(()) };
        if !self.asked || now.saturating_duration_since(self.last_sent) < spec.lost_after {
            return Ok(());
        }
        if spec.resend && !tally.is_stopped() {
            add(&tally.row.resent, 1);
            self.last_sent = now;
            return send(socket, &mut buffer[..spec.request_bytes], self.sequence, tally);
        }
        add(&tally.row.lost, 1);
        self.asked = false;
        if tally.is_stopped() { Ok(()) } else { self.ask(key, now, spec, buffer, poll, tally) }
    }
}
