//! The activity of this machine while a load is counted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netsilo_model::derive::rates::rates;
use netsilo_model::parse::stat::Events;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_sys::bpf::tracer::{self, Tracer};
use netsilo_sys::daemon::self_cost::{peak_bytes, self_cost};
use netsilo_sys::files::error::ReadError;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::machine::kernel_events;
use netsilo_sys::read::snapshot::snapshot_here;
use netsilo_trial::traffic::EndMachine;
use rustix::process::{getpriority_process, setpriority_process};

/// The counters of a machine when counting began.
pub struct StartCounters {
    root: Root,
    tracer: Option<Tracer>,
    snapshot: Snapshot,
    events: Events,
    own: Duration,
    at: Instant,
}

impl StartCounters {
    /// Attaches eBPF if requested and permitted, then reads the counters.
    pub fn take(root: &Root, bpf: bool) -> Result<Self, ReadError> {
        let _boost = PriorityBoost::new();
        let options =
            tracer::Options { containers: false, forwarding: false, ..tracer::Options::exact() };
        let tracer = bpf.then(|| Tracer::attach(options));
        let snapshot = snapshot_here(root)?;
        Ok(Self {
            root: root.clone(),
            tracer,
            snapshot,
            events: kernel_events(root),
            own: self_cost().cpu,
            at: Instant::now(),
        })
    }

    /// Reads the counters again.
    pub fn end(self) -> Result<EndMachine, ReadError> {
        let _boost = PriorityBoost::new();
        let seconds = self.at.elapsed().as_secs_f64();
        let own = self_cost().cpu.saturating_sub(self.own);
        let (now, after) = (kernel_events(&self.root), snapshot_here(&self.root)?);
        let counted = self.tracer.and_then(|mut tracer| tracer.read().ok());
        let (true_times, true_elapsed) =
            counted.map_or((BTreeMap::new(), Duration::ZERO), |it| (it.cpu_time, it.elapsed));
        let per_s = |before: Option<u64>, after: Option<u64>| {
            Some(after?.checked_sub(before?)? as f64 / seconds)
        };
        Ok(EndMachine {
            hostname: after.machine.hostname.clone(),
            kernel: after.machine.release.clone(),
            boot_id: after.machine.boot_id.clone(),
            rates: rates(&self.snapshot, &after),
            true_times,
            true_elapsed,
            context_switches_per_s: per_s(self.events.context_switches, now.context_switches),
            interrupts_per_s: per_s(self.events.interrupts, now.interrupts),
            netsilo_cpus: own.as_secs_f64() / seconds,
            peak_bytes: peak_bytes(),
        })
    }
}

/// Raises the priority of this thread while this value lives, if permitted.
///
/// Among thousands of runnable instances, reading the counters would otherwise take minutes.
pub(super) struct PriorityBoost {
    nice: i32,
}

impl PriorityBoost {
    pub(super) fn new() -> Option<Self> {
        let nice = getpriority_process(None).ok()?;
        setpriority_process(None, -20).ok()?;
        Some(Self { nice })
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        let _ = setpriority_process(None, self.nice);
    }
}
