//! The client: agrees on a load with a server, generates it, and collects the counts of both.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use netsilo_trial::traffic::{EndMachine, InstancesAs, LoadResult, Spec, Test, Totals};
use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::control::{Lines, Reply, Request, SERVER_LINE, VERSION};
use crate::process::Instance;
use crate::side::{Before, Hurry};
use crate::socket::{PATIENCE, Socket, allow_many_sockets};
use crate::tally::{Latencies, Tally};
use crate::{crr, rr, stream, zero_copy};

/// Stack size of a worker in bytes; there may be thousands.
const STACK: usize = 96 << 10;

/// Timeout for a server's reply: it takes snapshots, and waits for data in flight.
pub(super) const ANSWER: Duration = Duration::from_secs(60);

/// Options of a run that are not part of the load.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Measure hardirq and softirq times with eBPF, at both ends.
    pub bpf: bool,
}

/// Progress, about once a second and when counting begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// Time counted so far; `None` while warming up.
    pub counted: Option<Duration>,
    /// Transactions, or bytes sent, in the last second.
    pub last_second: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The load is invalid.
    #[error("{0}")]
    Spec(String),
    /// No server answers at the address.
    #[error("no server at {address} ({source}): start one there with `netsilo bench serve`")]
    NoServer {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The other end is not a netsilo server.
    #[error("{0} is not a `netsilo bench serve` server; check the port")]
    Stranger(SocketAddr),
    /// The server refuses.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The server closed the connection.
    #[error("the server has closed the control connection")]
    Gone,
    /// The control connection failed.
    #[error("cannot talk to the server: {0}")]
    Control(io::Error),
    /// Sockets, threads or processes could not be created.
    #[error("cannot start instance {instance}: {source}")]
    Start {
        /// Its number, from 1.
        instance: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// `watch` returned break.
    #[error("interrupted")]
    Interrupted,
    /// A data connection failed.
    #[error("the load failed: {0}")]
    Broken(String),
    /// This machine's counters cannot be read.
    #[error("cannot read this machine's counters: {0}")]
    EndMachine(#[from] netsilo_sys::files::root::ReadError),
    /// Shared memory could not be created.
    #[error("cannot create the counters: {0}")]
    Board(io::Error),
}

/// Receives the progress of a load; break ends the load.
pub type Watch<'a> = dyn FnMut(Tick) -> ControlFlow<()> + 'a;

/// Generates a load and measures it.
pub fn run(
    spec: &Spec,
    server: SocketAddr,
    options: Options,
    watch: &mut Watch<'_>,
) -> Result<LoadResult, LoadError> {
    spec.check().map_err(LoadError::Spec)?;
    allow_many_sockets();
    let mut control = Control::connect(server)?;
    let ports = control.prepare(spec)?;
    let mut to = ports.iter().map(|port| SocketAddr::new(server.ip(), *port)).cycle();
    let targets: Vec<SocketAddr> = to.by_ref().take(spec.instances).collect();
    let rows = if spec.instances_as == InstancesAs::Multiplexed {
        spec.workers.min(spec.instances)
    } else {
        spec.instances
    };
    let board = Board::new(rows).map_err(LoadError::Board)?;
    let latencies =
        Latencies::new().ok_or_else(|| LoadError::Board(io::ErrorKind::OutOfMemory.into()))?;
    let made = if spec.instances_as == InstancesAs::Processes {
        processes(spec, &targets, &board, &latencies, || {
            count(spec, options, &board, &mut control, watch)
        })?
    } else {
        threads(spec, &targets, &board, &latencies, || {
            count(spec, options, &board, &mut control, watch)
        })?
    };
    let mut counted = made.counted;
    counted.client.netsilo_cpus += made.children_cpu.as_secs_f64() / counted.seconds;
    let done = control.ask(&Request::Stop)?;
    let Reply::Done(served) = done else { return Err(LoadError::Stranger(server)) };
    Ok(LoadResult {
        schema: 1,
        spec: spec.clone(),
        address: server.to_string(),
        seconds: counted.seconds,
        totals: board.totals(),
        counted: counted.totals,
        per_second: counted.per_second,
        latency: latencies.told(),
        client: counted.client,
        server: *served,
    })
}

/// The client's end of the control connection.
pub(super) struct Control {
    pub(super) lines: Lines,
    server: SocketAddr,
}

impl Control {
    pub(super) fn connect(server: SocketAddr) -> Result<Self, LoadError> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)
            .map_err(|source| LoadError::NoServer { address: server, source })?;
        stream.set_read_timeout(Some(ANSWER)).map_err(LoadError::Control)?;
        let mut control =
            Self { lines: Lines::new(stream, SERVER_LINE).map_err(LoadError::Control)?, server };
        match control.ask(&Request::Hello { version: VERSION })? {
            Reply::Welcome { version: VERSION } => Ok(control),
            _ => Err(LoadError::Stranger(server)),
        }
    }

    fn prepare(&mut self, spec: &Spec) -> Result<Vec<u16>, LoadError> {
        match self.ask(&Request::Prepare(Box::new(spec.clone())))? {
            Reply::Ready { ports, .. } if !ports.is_empty() => Ok(ports),
            _ => Err(LoadError::Stranger(self.server)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, LoadError> {
        let said = self.lines.say(request);
        let reply = self.hear()?;
        said.map(|()| reply).map_err(LoadError::Control)
    }

    /// The server's next reply.
    pub(super) fn hear(&mut self) -> Result<Reply, LoadError> {
        match self.lines.hear() {
            Ok(Some(Reply::Refused { why })) => Err(LoadError::Refused(why)),
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(LoadError::Gone),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(LoadError::Stranger(self.server))
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(LoadError::Gone),
            Err(error) => Err(LoadError::Control(error)),
        }
    }
}

/// The counts of the measured interval.
struct Counted {
    seconds: f64,
    totals: Totals,
    per_second: Vec<u64>,
    client: EndMachine,
}

/// The result of all instances.
struct Finished {
    counted: Counted,
    children_cpu: Duration,
}

/// Warms up, counts for the given time, and reports each second; the instances keep running.
fn count(
    spec: &Spec,
    options: Options,
    board: &Board,
    control: &mut Control,
    watch: &mut Watch<'_>,
) -> Result<Counted, LoadError> {
    let _hurry = Hurry::new();
    let mut tell = |tick| if watch(tick).is_break() { Err(LoadError::Interrupted) } else { Ok(()) };
    let warming_up = Instant::now();
    tell(Tick { counted: None, last_second: 0 })?;
    while let Some(left) =
        spec.warm_up.checked_sub(warming_up.elapsed()).filter(|left| !left.is_zero())
    {
        if board.is_stopped() {
            break;
        }
        wait_unless_failed(left.min(Duration::from_secs(1)), board);
        tell(Tick { counted: None, last_second: 0 })?;
    }
    control.ask(&Request::Begin { bpf: options.bpf })?;
    let before = Before::take(options.bpf)?;
    let phase = board.phase();
    phase.counting.store(true, Ordering::Relaxed);
    let (started, first) = (Instant::now(), board.totals());
    let done = |totals: &Totals| {
        if spec.test.has_responses() { totals.responses } else { totals.sent_bytes }
    };
    let (mut per_second, mut last) = (Vec::new(), done(&first));
    tell(Tick { counted: Some(Duration::ZERO), last_second: 0 })?;
    for second in 1.. {
        let until = Duration::from_secs(second).min(spec.duration);
        wait_unless_failed(until.saturating_sub(started.elapsed()), board);
        let now = done(&board.totals());
        if until == Duration::from_secs(second) {
            per_second.push(now - last);
        }
        tell(Tick { counted: Some(until), last_second: now - last })?;
        last = now;
        if until >= spec.duration || board.is_stopped() {
            break;
        }
    }
    let (seconds, totals) = (started.elapsed().as_secs_f64(), board.totals().since(&first));
    phase.counting.store(false, Ordering::Relaxed);
    let client = before.end()?;
    control.ask(&Request::End)?;
    Ok(Counted { seconds, totals, per_second, client })
}

/// Waits, but returns early if an instance has failed.
fn wait_unless_failed(time: Duration, board: &Board) {
    let until = Instant::now() + time;
    while !board.is_stopped() {
        let Some(left) =
            until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        else {
            return;
        };
        sleep(left.min(Duration::from_millis(100)));
    }
}

/// Runs threads: one per instance, or a few with many instances each.
fn threads(
    spec: &Spec,
    targets: &[SocketAddr],
    board: &Board,
    latencies: &Latencies,
    count: impl FnOnce() -> Result<Counted, LoadError>,
) -> Result<Finished, LoadError> {
    let start = |instance: usize| move |source| LoadError::Start { instance: instance + 1, source };
    let share = |(to, _): (&SocketAddr, _)| Share { to: *to, instances: 0, sockets: Vec::new() };
    let mut shares: Vec<Share> = targets.iter().zip(board.rows()).map(share).collect();
    let workers = shares.len();
    for (n, to) in targets.iter().enumerate() {
        let share = &mut shares[n % workers];
        share.instances += 1;
        share.sockets.extend(Socket::open(spec, *to).map_err(start(n))?);
    }
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for ((n, share), row) in shares.into_iter().enumerate().zip(board.rows()) {
            let worker = move || {
                // all begin together: running threads would leave little time to start the others
                board.wait();
                let done = work(share, spec, &mut Tally::new(board, row, latencies));
                if done.is_err() {
                    board.stop();
                }
                done
            };
            let builder = thread::Builder::new().name("bench-run".into()).stack_size(STACK);
            match builder.spawn_scoped(scope, worker) {
                Ok(handle) => handles.push(handle),
                Err(source) => {
                    board.stop();
                    board.go();
                    return Err(start(n)(source));
                }
            }
        }
        let _hurry = Hurry::new();
        board.go();
        let counted = count();
        board.stop();
        for handle in handles {
            let done = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.map_err(|error| LoadError::Broken(error.to_string()))?;
        }
        Ok(Finished { counted: counted?, children_cpu: Duration::ZERO })
    })
}

/// Runs processes: one per instance.
fn processes(
    spec: &Spec,
    targets: &[SocketAddr],
    board: &Board,
    latencies: &Latencies,
    count: impl FnOnce() -> Result<Counted, LoadError>,
) -> Result<Finished, LoadError> {
    let start = |instance: usize| move |source| LoadError::Start { instance: instance + 1, source };
    let mut instances = Vec::new();
    for (n, to) in targets.iter().enumerate() {
        instances.push(Instance::start(spec, *to, n, board).map_err(start(n))?);
    }
    for (n, instance) in instances.iter_mut().enumerate() {
        instance.ready().map_err(start(n))?;
    }
    board.go();
    let counted = count();
    board.stop();
    let mut children_cpu = Duration::ZERO;
    for instance in instances {
        let told = instance
            .end()
            .map_err(|error| LoadError::Broken(format!("an instance has exited: {error}")))?;
        if let Some(error) = told.error {
            return Err(LoadError::Broken(error));
        }
        told.add_to(latencies);
        children_cpu += told.cpu;
    }
    Ok(Finished { counted: counted?, children_cpu })
}

/// One thread's part of a load.
pub(super) struct Share {
    /// Target of its requests, if each opens a connection.
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
