//! Instances as processes: this program again, one process per instance, counting in shared memory.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use netsilo_sys::daemon::self_cost::self_cost;
use netsilo_sys::read::process::THIS_PROGRAM;
use netsilo_trial::traffic::Spec;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::share::{Share, work};
use crate::shared_counters::SharedCounters;
use crate::socket::Socket;
use crate::tally::{Latencies, Tally};

/// The task of a process. Its standard input is the shared counters.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    spec: Spec,
    to: SocketAddr,
    row: usize,
    rows: usize,
}

/// The result that a process prints at its end. Before that, it prints a line when it is ready.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct InstanceResult {
    /// Its latencies in the interchange format; empty if there are none.
    histogram: String,
    /// CPU time of the process.
    pub(super) cpu: Duration,
    /// Its error, if any.
    pub(super) error: Option<String>,
}

impl InstanceResult {
    /// Adds its latencies to those of the other instances.
    pub(super) fn add_to(&self, latencies: &Latencies) {
        latencies.add(&self.histogram);
    }
}

/// A running instance.
pub(super) struct Instance {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Instance {
    /// Starts an instance. It opens its socket and reports that it is ready.
    pub(super) fn start(
        spec: &Spec,
        to: SocketAddr,
        row: usize,
        counters: &SharedCounters,
    ) -> io::Result<Self> {
        let task = Task { spec: spec.clone(), to, row, rows: counters.rows().len() };
        let mut command = Command::new(THIS_PROGRAM);
        command.arg("instance").arg(serde_json::to_string(&task)?);
        command.stdin(Stdio::from(counters.memory().try_clone()?)).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, out: BufReader::new(out) })
    }

    /// Waits until it is ready.
    pub(super) fn ready(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        match line.trim() {
            "ready" => Ok(()),
            why => Err(io::Error::other(format!("an instance did not start: {why}"))),
        }
    }

    /// Waits for its end.
    pub(super) fn end(mut self) -> io::Result<InstanceResult> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        self.child.wait()?;
        Ok(serde_json::from_slice(line.as_bytes())?)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // killing an instance that has ended and was waited for has no effect
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why an instance could not be started.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// It was not started by `netsilo-bench run`.
    #[error("this verb is started by `netsilo-bench run`, with its task: {0}")]
    Task(#[from] serde_json::Error),
    /// Its counters or socket could not be opened.
    #[error("cannot start an instance: {0}")]
    Io(#[from] io::Error),
}

/// Runs one instance in this process. `task` and standard input come from [`crate::run`].
pub fn instance(task: &str) -> Result<(), InstanceError> {
    // end together with the parent process, which stops instances
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let Task { spec, to, row, rows } = serde_json::from_slice(task.as_bytes())?;
    let counters = SharedCounters::map(io::stdin().as_fd().try_clone_to_owned()?, rows)?;
    let row =
        counters.rows().get(row).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let latencies = Latencies::new().ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut out = io::stdout().lock();
    let socket = match Socket::open(&spec, to) {
        Ok(socket) => socket,
        Err(error) => return Ok(writeln!(out, "{error}")?),
    };
    writeln!(out, "ready")?;
    counters.wait();
    let cpu = self_cost().cpu;
    let done = work(
        Share { to, instances: 1, sockets: socket.into_iter().collect() },
        &spec,
        &mut Tally::new(&counters, row, &latencies),
    );
    let histogram = latencies.summary().map_or_else(String::new, |summary| summary.histogram);
    let cpu = self_cost().cpu.saturating_sub(cpu);
    let result =
        InstanceResult { histogram, cpu, error: done.err().map(|error| error.to_string()) };
    Ok(writeln!(out, "{}", serde_json::to_string(&result)?)?)
}
