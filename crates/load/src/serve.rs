//! The server: one control connection per client, each in a thread, and the workers that serve its
//! load.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_sys::files::root::Root;
use netsilo_sys::transaction::kernel::set_thread_cpus;
use netsilo_trial::traffic::{InstancesAs, ServerResult, Spec, Test, Totals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown, sockopt};

use crate::answer::{self, Job, STACK};
use crate::budget::{Budget, Grant, to_answer, to_generate};
use crate::control::{CLIENT_LINE, Lines, Reply, Request, VERSION};
use crate::ended::Ended;
use crate::event::Event;
use crate::generate::Generator;
use crate::shared_counters::SharedCounters;
use crate::side::{PriorityBoost, StartCounters};
use crate::socket::{PATIENCE, allow_many_sockets};
use crate::work::Work;

/// Maximum concurrent clients.
const CLIENTS: usize = 16;

/// Maximum silence of a client between its requests, in addition to the time of its load.
const SILENCE: Duration = Duration::from_secs(60);

/// A datagram stream is over if nothing arrives for this long.
const QUIET: Duration = Duration::from_millis(200);

/// The address and the options of a server.
#[derive(Debug, Clone)]
pub struct Bind {
    /// Address of the control connection and the data.
    pub address: SocketAddr,
    /// CPU time used for each request, in microseconds.
    pub work_usecs: u64,
    /// Number of threads for multiplexed instances.
    pub workers: usize,
    /// Worker i runs only on the i-th of these CPUs, in rotation. Empty for all CPUs.
    pub pinned: Vec<CpuId>,
    /// Bytes of memory for the loads of all clients together.
    pub memory: u64,
}

/// Why the server did not start or has failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is taken.
    #[error("{0} is in use: another server runs there, or choose another --port")]
    InUse(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// Waiting for clients failed.
    #[error("cannot wait for clients: {0}")]
    Wait(io::Error),
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    bind: Bind,
    work: Work,
    budget: Arc<Budget>,
    generator: Option<Generator>,
}

impl Server {
    /// Binds the address and listens.
    pub fn bind(bind: Bind) -> Result<Self, ServeError> {
        allow_many_sockets();
        let Bind { address, .. } = bind;
        let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::InUse(address),
            _ => ServeError::Bind { address, source },
        })?;
        listener.set_nonblocking(true).map_err(ServeError::Wait)?;
        Ok(Self {
            listener,
            work: Work::new(bind.work_usecs),
            budget: Budget::new(bind.memory),
            bind,
            generator: None,
        })
    }

    /// Also generates loads, against the requesting machine or one of these addresses.
    #[must_use]
    pub fn with_generator(self, also_against: Vec<IpAddr>) -> Self {
        Self { generator: Some(Generator::new(also_against)), ..self }
    }

    /// The address on which it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves clients until stopped. `tell` is called from several threads.
    pub fn serve(
        &self,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<(), ServeError> {
        let clients = AtomicUsize::new(0);
        let ended = Mutex::new(Ended::default());
        let add = |from, why| lock(&ended).add(from, why);
        let served = thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                let due = lock(&ended).due(Instant::now());
                due.into_iter().for_each(tell);
                let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&wait)) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                    Ok(_) => {}
                    Err(error) => return Err(ServeError::Wait(error.into())),
                }
                // ignore a client that has already disconnected
                let Ok((stream, from)) = self.listener.accept() else { continue };
                let before = clients.fetch_add(1, Ordering::Relaxed);
                let (clients, add) = (&clients, &add);
                let serve = move || {
                    if let Err(why) = self.client(stream, from, before >= CLIENTS, stop, tell) {
                        add(from, why);
                    }
                    clients.fetch_sub(1, Ordering::Relaxed);
                };
                // Clients beyond those that are refused are dropped without a message.
                let started = if before < 2 * CLIENTS {
                    thread::Builder::new().name("bench-client".into()).spawn_scoped(scope, serve)
                } else {
                    Err(io::Error::other("too many clients"))
                };
                if let Err(error) = started {
                    clients.fetch_sub(1, Ordering::Relaxed);
                    add(from, format!("cannot serve it: {error}"));
                }
            }
            Ok(())
        });
        ended.into_inner().unwrap_or_else(PoisonError::into_inner).rest().for_each(tell);
        served
    }

    /// Serves a client until it disconnects.
    fn client(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        busy: bool,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        stream.set_nonblocking(false).map_err(text)?;
        sockopt::set_socket_keepalive(&stream, true).map_err(|error| error.to_string())?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(text)?;
        let mut lines = Lines::new(stream, CLIENT_LINE, PATIENCE).map_err(text)?;
        let mut session = Session { server: self, from, stop, run: None };
        let welcomed =
            |request: &Request| matches!(request, Request::Hello { version: VERSION }) && !busy;
        let first = next_request(&mut lines, stop, PATIENCE)?;
        match first {
            Some(request) if welcomed(&request) => {
                lines.send(&Reply::Welcome { version: VERSION }).map_err(text)?;
            }
            Some(_) if busy => {
                return refuse(
                    &mut lines,
                    format!("{CLIENTS} clients are connected: try again later"),
                );
            }
            Some(Request::Hello { version }) => {
                return refuse(
                    &mut lines,
                    format!(
                        "this server speaks version {VERSION}, not {version}: \
                         use the same netsilo on both ends"
                    ),
                );
            }
            Some(_) => return refuse(&mut lines, "the first request must be the version".into()),
            None => return Ok(()),
        }
        while let Some(request) = next_request(&mut lines, stop, session.patience())? {
            let reply = session.answer(request, &mut lines, tell);
            match reply {
                Ok(Some(reply)) => lines.send(&reply).map_err(text)?,
                Ok(None) => {}
                Err(why) => return refuse(&mut lines, why),
            }
        }
        match session.run {
            Some(_) => Err("disconnected before the end".into()),
            None => Ok(()),
        }
    }
}

fn lock(ended: &Mutex<Ended>) -> MutexGuard<'_, Ended> {
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refuse(lines: &mut Lines, why: String) -> Result<(), String> {
    let _ = lines.send(&Reply::Refused { why: why.clone() });
    Err(why)
}

/// The next request; `None` if the client has disconnected or the server must stop.
fn next_request(
    lines: &mut Lines,
    stop: &AtomicBool,
    patience: Duration,
) -> Result<Option<Request>, String> {
    let began = Instant::now();
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if began.elapsed() > patience {
            return Err(format!("sent nothing for {} s", patience.as_secs()));
        }
        let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if lines.has_more()
            || matches!(
                poll(&mut [PollFd::new(lines.stream(), PollFlags::IN)], Some(&wait)),
                Ok(1..)
            )
        {
            return match lines.receive() {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let _ = refuse(lines, format!("invalid request: {error}"));
                    Err(format!("invalid request: {error}"))
                }
                other => other.map_err(|error| error.to_string()),
            };
        }
    }
}

/// The session of one client.
struct Session<'a> {
    server: &'a Server,
    from: SocketAddr,
    stop: &'a AtomicBool,
    run: Option<Running>,
}

/// A load that is being served.
struct Running {
    counters: Arc<SharedCounters>,
    workers: Vec<JoinHandle<()>>,
    /// Datagram sockets in which workers block.
    sockets: Vec<Arc<UdpSocket>>,
    streams: Vec<Weak<TcpStream>>,
    spec: Spec,
    pinned: Vec<CpuId>,
    /// The memory grant of the workers. They hold it too.
    grant: Arc<Grant>,
    before: Option<(StartCounters, Totals)>,
    served: ServerResult,
    /// Priority of the thread that reads requests. Without it, thousands of workers would starve
    /// this thread.
    boost: Option<PriorityBoost>,
}

impl Session<'_> {
    /// How long the client may be silent. During a load it sends nothing until the end of the load.
    fn patience(&self) -> Duration {
        let load = |run: &Running| run.spec.warm_up + run.spec.duration;
        SILENCE + self.run.as_ref().map_or(Duration::ZERO, load)
    }

    /// The reply, unless it was already sent. An error ends the session.
    fn answer(
        &mut self,
        request: Request,
        lines: &mut Lines,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<Option<Reply>, String> {
        let text = |error: io::Error| error.to_string();
        match (request, &mut self.run) {
            (Request::Prepare(spec), None) => {
                spec.check()?;
                let workers = self.workers(&spec);
                let grant = self.server.budget.take(to_answer(&spec, workers.1))?;
                let run = self
                    .prepare(&spec, workers, grant, lines)
                    .map_err(|error| format!("cannot serve this load: {error}"))?;
                self.run.insert(run).go();
                tell(Event::Began(self.from, spec));
                Ok(None)
            }
            (Request::Begin { bpf }, Some(run)) => {
                let before =
                    StartCounters::take(&Root::live(), bpf).map_err(|error| error.to_string())?;
                run.before = Some((before, run.counters.totals()));
                Ok(Some(Reply::Begun))
            }
            (Request::End, Some(run)) => {
                let Some((before, totals)) = run.before.take() else {
                    return Err("no load is running".into());
                };
                run.served.counted = run.counters.totals().since(&totals);
                run.served.side = before.end().map_err(|error| error.to_string())?;
                Ok(Some(Reply::Ended))
            }
            (Request::Stop, run) => {
                let Some(run) = run.take() else { return Err("no load is running".into()) };
                let served = run.end(self.stop).map_err(text)?;
                tell(Event::Served(self.from, served.totals));
                Ok(Some(Reply::Done(Box::new(served))))
            }
            (Request::Make(order), None) => {
                let Some(generator) = &self.server.generator else {
                    return Err(
                        "this server generates no loads: start it without --only-answer".into()
                    );
                };
                order.spec.check()?;
                let _memory = self.server.budget.take(to_generate(&order.spec))?;
                generator.generate(&order, self.from.ip(), lines, self.stop, tell)?;
                Ok(None)
            }
            (Request::Hello { .. } | Request::Prepare(_) | Request::Make(_), _) | (_, None) => {
                Err("this request is out of order".into())
            }
        }
    }

    /// How workers serve a load, and how many there are. They run like the client's instances; but
    /// with one connection per request, no thread can block in a connection.
    fn workers(&self, spec: &Spec) -> (InstancesAs, usize) {
        if spec.instances_as == InstancesAs::Multiplexed || spec.test == Test::TcpCrr {
            (InstancesAs::Multiplexed, self.server.bind.workers.min(spec.instances))
        } else {
            (InstancesAs::Threads, spec.instances)
        }
    }

    /// Opens the sockets, replies to the client, accepts its connections, and starts the workers,
    /// which then wait.
    fn prepare(
        &self,
        spec: &Spec,
        (instances_as, count): (InstancesAs, usize),
        grant: Grant,
        lines: &mut Lines,
    ) -> io::Result<Running> {
        let here = lines.stream().local_addr()?.ip();
        let client = self.from.ip();
        let work = self.server.work;
        let served = ServerResult {
            instances_as: Some(instances_as),
            workers: count,
            work_usecs: self.server.bind.work_usecs,
            ..ServerResult::default()
        };
        let counters = Arc::new(SharedCounters::new(count)?);
        let mut run = Running {
            counters,
            workers: Vec::new(),
            sockets: Vec::new(),
            streams: Vec::new(),
            spec: spec.clone(),
            pinned: self.server.bind.pinned.clone(),
            grant: Arc::new(grant),
            before: None,
            served,
            boost: None,
        };
        if spec.test.is_udp() {
            let open = |_| UdpSocket::bind((here, 0)).map(Arc::new);
            run.sockets = (0..count).map(open).collect::<io::Result<_>>()?;
            for (n, socket) in run.sockets.clone().into_iter().enumerate() {
                run.start(n, work, client, move |job| answer::udp(&socket, job))?;
            }
            let ports = run
                .sockets
                .iter()
                .map(|socket| Ok(socket.local_addr()?.port()))
                .collect::<io::Result<_>>()?;
            lines.send(&Reply::Ready { ports, instances_as })?;
            return Ok(run);
        }
        let listener = TcpListener::bind((here, 0))?;
        lines.send(&Reply::Ready { ports: vec![listener.local_addr()?.port()], instances_as })?;
        listener.set_nonblocking(true)?;
        if spec.test == Test::TcpCrr {
            for n in 0..count {
                let listener = listener.try_clone()?;
                run.start(n, work, client, move |job| {
                    // the client reports a failure here
                    let _ = answer::tcp_many(Vec::new(), Some(&listener), job);
                })?;
            }
            return Ok(run);
        }
        let mut streams: Vec<Vec<Arc<TcpStream>>> = (0..count).map(|_| Vec::new()).collect();
        for n in 0..spec.instances {
            let stream = Arc::new(self.accept(&listener, client)?);
            run.streams.push(Arc::downgrade(&stream));
            streams[n % count].push(stream);
        }
        for (n, mut streams) in streams.into_iter().enumerate() {
            run.start(n, work, client, move |job| match streams.pop() {
                Some(stream) if instances_as == InstancesAs::Threads => answer::tcp(stream, job),
                last => {
                    streams.extend(last);
                    let _ = answer::tcp_many(streams, None, job);
                }
            })?;
        }
        Ok(run)
    }

    /// Accepts the client's next data connection.
    fn accept(&self, listener: &TcpListener, client: IpAddr) -> io::Result<TcpStream> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Ok((stream, from)) = listener.accept()
                && from.ip() == client
            {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            if Instant::now() > until || self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client did not open its connections",
                ));
            }
            let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait));
        }
    }
}

impl Running {
    /// Starts a thread that counts in its row.
    fn start(
        &mut self,
        row: usize,
        work: Work,
        client: IpAddr,
        serve: impl FnOnce(&Job<'_>) + Send + 'static,
    ) -> io::Result<()> {
        let (counters, spec) = (Arc::clone(&self.counters), self.spec.clone());
        let pinned = self.pinned.get(row % self.pinned.len().max(1)).copied();
        let grant = Arc::clone(&self.grant);
        let worker = thread::Builder::new().name("bench-serve".into()).stack_size(STACK).spawn(
            move || {
                let _memory = grant;
                if let Some(cpu) = pinned
                    && set_thread_cpus(0, &CpuSet::from_cpu(cpu)).is_err()
                {
                    // the client notices that no response comes
                    return;
                }
                counters.wait();
                if let Some(row) = counters.rows().get(row) {
                    serve(&Job::new(&spec, work, client, &counters, row));
                }
            },
        )?;
        self.workers.push(worker);
        Ok(())
    }

    /// Lets the workers begin all at once, because running workers would leave little time to start
    /// the others.
    fn go(&mut self) {
        self.counters.go();
        self.boost = PriorityBoost::new();
    }

    /// Waits for data in flight, stops the workers, and sums up.
    fn end(mut self, stop: &AtomicBool) -> io::Result<ServerResult> {
        if !self.sockets.is_empty() {
            let mut before = None;
            while before != Some(self.counters.totals().datagrams_received)
                && !stop.load(Ordering::Relaxed)
            {
                before = Some(self.counters.totals().datagrams_received);
                thread::sleep(QUIET);
            }
        }
        let mut served = std::mem::take(&mut self.served);
        self.stop_workers();
        served.totals = self.counters.totals();
        Ok(served)
    }

    /// Stops the workers.
    ///
    /// A client closes its connections before it sends Stop. That ends the workers that block in a
    /// connection. After [`PATIENCE`] the others are shut down.
    fn stop_workers(&mut self) {
        self.counters.stop();
        self.wake(false);
        let until = Instant::now() + PATIENCE;
        while self.workers.iter().any(|worker| !worker.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        self.wake(true);
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }

    /// Wakes workers that block in datagram sockets, and optionally in connections.
    fn wake(&self, connections: bool) {
        for socket in &self.sockets {
            // Fails with ENOTCONN, but nevertheless wakes the blocked threads (`inet_shutdown`).
            let _ = shutdown(socket, Shutdown::Both);
        }
        for stream in self.streams.iter().filter(|_| connections).filter_map(Weak::upgrade) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // the client left early, or its workers have already ended
        self.counters.stop();
        self.counters.go();
        self.wake(true);
    }
}
