//! Servers in a guest, pinned to given CPUs, and their clients at its peer.

mod client;
mod kind;
mod reports;
mod serve;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use netsilo_lab::{Lab, PeerJob};
use rustix::process::Signal;

use crate::counters::Counters;
use crate::experiment::record::RoundResult;
use crate::workload::client::Client;
pub(crate) use crate::workload::kind::Kind;
use crate::workload::reports::ClientReport;
use crate::workload::serve::Servers;

/// While netsilo or irqbalance observes, the clients send for `BURST` and rest for `PAUSE`, because
/// emulated CPUs must also run the observer.
const BURST: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(300);

/// Maximum time of one measurement, whatever the machine's speed.
const LIMIT: Duration = Duration::from_secs(120);

/// Running servers with their clients' commands. Dropping it ends the servers.
pub(crate) struct Workload<'a> {
    lab: &'a Lab,
    kind: Kind,
    client: Client,
    _servers: Servers,
}

/// What the clients and the kernel counted during one measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadMeasured {
    pub(crate) clients: ClientReport,
    /// What the guest's kernel counted.
    pub(crate) spent: Counters,
}

impl WorkloadMeasured {
    /// The rate, and the kernel's counts per transaction.
    pub(crate) fn per_transaction(&self) -> RoundResult {
        let each = |count: u64| count as f64 / self.clients.transactions.max(1.0);
        let Counters { net_rx, calls, reschedules, switches } = self.spent;
        // Function-call and rescheduling interrupts: wakeups of other CPUs, mostly.
        let figures = vec![
            ("ipis", each(calls + reschedules)),
            ("softirqs", each(net_rx)),
            ("switches", each(switches)),
        ];
        RoundResult::new(self.clients.per_second, figures)
    }
}

impl<'a> Workload<'a> {
    /// Starts the servers on these CPUs, and waits until they answer.
    pub(crate) fn start(kind: Kind, lab: &'a Lab, cpus: &[u32]) -> Result<Self> {
        let servers = serve::start(kind, lab, cpus)
            .with_context(|| format!("cannot start the servers of {}", kind.name()))?;
        let client = Client::new(kind, lab, cpus)?;
        Ok(Self { lab, kind, client, _servers: servers })
    }

    /// The kind of its servers.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Puts the full load on the servers for about this time, and counts.
    pub(crate) fn measure(&self, seconds: u32) -> Result<WorkloadMeasured> {
        let before = Counters::read(self.lab)?;
        let peer = self.lab.peer(0)?;
        let output = peer.run_for(&self.client.full(seconds), LIMIT)?.ok()?.text().into_owned();
        let spent = Counters::read(self.lab)?.since(&before);
        let clients = self
            .client
            .report(&output, seconds)
            .with_context(|| format!("a client of {} said: {output}", self.kind.name()))?;
        Ok(WorkloadMeasured { clients, spent })
    }

    /// Starts a light load that lasts until the clients are stopped.
    fn watched(&self) -> Result<PeerJob> {
        self.lab.peer(0)?.spawn(&self.client.light())
    }
}

/// Keeps the servers busy while `work` runs.
pub(crate) fn while_busy<T>(
    workloads: &[&Workload<'_>],
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let clients =
        workloads.iter().map(|workload| workload.watched()).collect::<Result<Vec<_>>>()?;
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let pace = scope.spawn(|| pace(&clients, &done));
        let result = work();
        done.store(true, Ordering::Relaxed);
        match pace.join() {
            Ok(paced) => paced.and(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    for client in clients {
        client.stop()?;
    }
    Ok(result)
}

/// Lets the clients send in bursts until `done`.
fn pace(clients: &[PeerJob], done: &AtomicBool) -> Result<()> {
    let signal = |signal| clients.iter().try_for_each(|client| client.signal(signal));
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(BURST);
        signal(Signal::STOP)?;
        std::thread::sleep(PAUSE);
        signal(Signal::CONT)?;
    }
    Ok(())
}
