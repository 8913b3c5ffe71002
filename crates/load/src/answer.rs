//! The server's workers. They read requests and answer them, or read streams.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Instant;

use netsilo_trial::traffic::{Spec, Test};
use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, SendFlags, recvfrom, sendto};

use crate::shared_counters::{SharedCounters, ThreadCounters, add};
use crate::socket::{PATIENCE, Poll, is_later};
use crate::work::Work;

/// Stack size of a worker in bytes. There may be thousands of workers.
pub(super) const STACK: usize = 64 << 10;

/// Maximum bytes per read or write of requests and responses.
const PIECE: usize = 128 << 10;

/// Maximum number of connections accepted before other sockets are served.
const ACCEPTED: usize = 16;

/// The listener's key among the polled sockets.
const LISTENER: usize = usize::MAX;

/// How a worker handles incoming data.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) counters: &'a SharedCounters,
    pub(super) row: &'a ThreadCounters,
    /// Only this client is served.
    pub(super) client: IpAddr,
    work: Work,
    request: usize,
    /// 0: no response is sent.
    response: usize,
    /// Length of a worker's buffer.
    buffer: usize,
    closes: bool,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        spec: &Spec,
        work: Work,
        client: IpAddr,
        counters: &'a SharedCounters,
        row: &'a ThreadCounters,
    ) -> Self {
        let (request, response) = if spec.test.has_responses() {
            (spec.request_bytes, spec.response_bytes)
        } else {
            (usize::MAX, 0)
        };
        Self {
            counters,
            row,
            client,
            work,
            request,
            response,
            buffer: buffer_bytes(spec),
            closes: spec.test == Test::TcpCrr,
        }
    }

    fn buffer(&self) -> Vec<u8> {
        vec![0; self.buffer]
    }
}

/// Length of the buffer in which a worker reads requests or a stream, and sends responses.
pub(super) fn buffer_bytes(spec: &Spec) -> usize {
    let Spec { test, request_bytes, response_bytes, send_bytes, recv_bytes, .. } = spec;
    match (test.has_responses(), test.is_udp()) {
        (true, false) => PIECE.min(*request_bytes.max(response_bytes)),
        (false, false) => *recv_bytes,
        // one byte more, so that a longer datagram is not mistaken for a valid one
        (true, true) => *request_bytes.max(response_bytes) + 1,
        (false, true) => *send_bytes + 1,
    }
}

/// A connection: the bytes received of its request, and the bytes of the response that are still to
/// be sent.
struct Flow {
    stream: Arc<TcpStream>,
    received: usize,
    owed: usize,
    /// Waiting for room in the send buffer.
    full: bool,
}

impl Flow {
    fn new(stream: Arc<TcpStream>) -> Self {
        Self { stream, received: 0, owed: 0, full: false }
    }

    /// Reads once and answers a complete request. Returns false when the connection is over.
    fn go_on(&mut self, buffer: &mut [u8], job: &Job<'_>) -> io::Result<bool> {
        if self.owed == 0 {
            let wanted = (job.request - self.received).min(buffer.len());
            match (&*self.stream).read(&mut buffer[..wanted]) {
                Ok(0) => return Ok(false),
                Ok(bytes) => {
                    add(&job.row.received_bytes, bytes);
                    self.received += bytes;
                }
                Err(error) if is_later(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
            if job.response == 0 {
                self.received = 0;
                job.work.burn();
                return Ok(true);
            }
            if self.received < job.request {
                return Ok(true);
            }
            add(&job.row.requests, 1);
            (self.received, self.owed) = (0, job.response);
            job.work.burn();
        }
        while self.owed > 0 {
            match (&*self.stream).write(&buffer[..self.owed.min(buffer.len())]) {
                Ok(bytes) => {
                    add(&job.row.sent_bytes, bytes);
                    self.owed -= bytes;
                }
                Err(error) if is_later(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        add(&job.row.responses, 1);
        Ok(!job.closes)
    }
}

/// A thread that blocks in its connection until the connection is closed.
pub(super) fn tcp(stream: Arc<TcpStream>, job: &Job<'_>) {
    let (mut flow, mut buffer) = (Flow::new(stream), job.buffer());
    // the client reports a failure here
    while matches!(flow.go_on(&mut buffer, job), Ok(true)) {}
}

/// A thread with many connections, and those that it accepts from a listener.
///
/// Once stopped, it ends when all connections are closed, or after [`PATIENCE`].
pub(super) fn tcp_many(
    streams: Vec<Arc<TcpStream>>,
    listener: Option<&TcpListener>,
    job: &Job<'_>,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut buffer = job.buffer();
    let mut flows: Vec<Option<Flow>> = Vec::new();
    let mut free = Vec::new();
    for stream in streams {
        take(stream, &mut flows, &mut free, &poll)?;
    }
    if let Some(listener) = listener {
        poll.add(listener, LISTENER, EventFlags::IN | EventFlags::EXCLUSIVE)?;
    }
    let mut stopped_at = None;
    loop {
        let ready: Vec<usize> = poll.wait()?.collect();
        if job.counters.is_stopped() {
            let since: &mut Instant = stopped_at.get_or_insert_with(Instant::now);
            if free.len() == flows.len() || since.elapsed() > PATIENCE {
                return Ok(());
            }
        }
        for key in ready {
            if let (LISTENER, Some(listener)) = (key, listener) {
                accept(listener, job.client, &mut flows, &mut free, &poll)?;
                continue;
            }
            let Some(Some(flow)) = flows.get_mut(key) else { continue };
            if matches!(flow.go_on(&mut buffer, job), Ok(true)) {
                let full = flow.owed > 0;
                if full != flow.full {
                    flow.full = full;
                    let flags = if full { EventFlags::OUT } else { EventFlags::IN };
                    poll.change(flow.stream.as_fd(), key, flags)?;
                }
            } else {
                flows[key] = None;
                free.push(key);
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    client: IpAddr,
    flows: &mut Vec<Option<Flow>>,
    free: &mut Vec<usize>,
    poll: &Poll,
) -> io::Result<()> {
    for _ in 0..ACCEPTED {
        match listener.accept() {
            Ok((stream, from)) if from.ip() == client => {
                stream.set_nodelay(true)?;
                take(Arc::new(stream), flows, free, poll)?;
            }
            // an unknown client, or one that has already closed the connection
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) if is_later(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn take(
    stream: Arc<TcpStream>,
    flows: &mut Vec<Option<Flow>>,
    free: &mut Vec<usize>,
    poll: &Poll,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let key = free.pop().unwrap_or(flows.len());
    poll.add(&*stream, key, EventFlags::IN)?;
    if key == flows.len() {
        flows.push(None);
    }
    flows[key] = Some(Flow::new(stream));
    Ok(())
}

/// A thread that blocks in a datagram socket until it is stopped and the socket is shut down.
pub(super) fn udp(socket: &UdpSocket, job: &Job<'_>) {
    let mut buffer = job.buffer();
    while !job.counters.is_stopped() {
        // std's recv_from panics without a sender address, which a shut-down socket does not have
        let Ok((bytes, _, from)) = recvfrom(socket, &mut buffer[..], RecvFlags::empty()) else {
            continue;
        };
        let Some(from) = from
            .and_then(|from| SocketAddr::try_from(from).ok())
            .filter(|from| from.ip() == job.client)
        else {
            continue;
        };
        add(&job.row.received_bytes, bytes);
        add(&job.row.datagrams_received, 1);
        let is_request = job.response > 0 && bytes == job.request;
        if is_request || job.response == 0 {
            job.work.burn();
        }
        if !is_request {
            continue;
        }
        add(&job.row.requests, 1);
        // the response keeps the first byte of the request, by which the client matches it to the
        // request
        if let Ok(bytes) = sendto(socket, &buffer[..job.response], SendFlags::empty(), &from) {
            add(&job.row.sent_bytes, bytes);
            add(&job.row.datagrams_sent, 1);
            add(&job.row.responses, 1);
        }
    }
}
