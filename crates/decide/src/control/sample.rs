//! The costs and counts of one window that verifications compare.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::view::Window;
use netsilo_model::derive::rates::CpuRates;
use netsilo_model::derive::wakeups::{WakeupRate, Wakeups};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::snapshot::attribution::{Attribution, Consumption, Forwarded};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, TxQueue};

/// One window's costs. Each list is sorted. They are vectors because a dozen samples are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    pub(super) ended: Duration,
    /// CPU-nanoseconds per second that were not idle. Interrupt time is the measured one, if it was
    /// measured.
    cpus: Vec<(CpuId, f64)>,
    /// Bytes per second that were read.
    pub(super) read: Vec<(DataPath, f64)>,
    /// Packets and bytes that were forwarded.
    forwarded: Vec<(DataPath, Forwards)>,
    /// Wakeups per second of a thread that slept on another CPU: waker, sleeper, rate.
    wakeups: Vec<(CpuId, CpuId, f64)>,
    /// Wakeups per second of readers, by the NAPI of the data.
    pub(super) woken: Vec<Woken>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Forwards {
    packets: f64,
    bytes: f64,
}

/// Wakeups by the data of one NAPI.
#[derive(Debug, Clone, Copy)]
pub(super) struct Woken {
    pub(super) napi: NapiId,
    pub(super) waker: CpuId,
    pub(super) sleeper: CpuId,
    pub(super) per_s: f64,
}

/// The kind of work in whose unit a verification counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkKind {
    Read,
    Forwarded,
}

/// Where data was processed and read. For forwarded packets: where they were processed, and where
/// their transmission was completed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DataPath {
    pub(super) napi: Option<NapiId>,
    pub(super) protocol: Option<CpuId>,
    /// The reader's CPU. For forwarded packets, the CPU of the completions. If that is not known (a
    /// software netdev, another network namespace), the CPU that sent them.
    pub(super) consumer: CpuId,
    pub(super) same_llc: bool,
    pub(super) egress: Option<Egress>,
}

/// How forwarded packets leave.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Egress {
    /// The CPU that queued them for sending.
    sender: CpuId,
    /// The NAPI instance and the interrupt that complete the transmission.
    pub(super) napi: Option<NapiId>,
    pub(super) irq: Option<Irq>,
    /// Another CPU may send through another queue (XPS).
    pub(super) by_cpu: bool,
}

impl DataPath {
    pub(super) fn touches(&self, cpus: &CpuSet) -> bool {
        self.cpus().any(|cpu| cpus.contains(cpu))
    }

    fn cpus(&self) -> impl Iterator<Item = CpuId> {
        let sender = self.egress.as_ref().map(|egress| egress.sender);
        self.protocol.into_iter().chain([self.consumer]).chain(sender)
    }
}

impl WorkKind {
    /// The kind that makes up the larger part of the work of these CPUs, by bytes.
    pub(super) fn larger<'a>(
        samples: impl Iterator<Item = &'a Arc<Sample>> + Clone,
        cpus: &CpuSet,
    ) -> Self {
        let read: f64 = samples.clone().map(|sample| sample.done(Self::Read, cpus).0).sum();
        let forwarded: f64 = samples.map(|sample| sample.bytes_forwarded(cpus)).sum();
        if forwarded > read { Self::Forwarded } else { Self::Read }
    }

    /// Bytes or packets in one unit: a megabyte, a thousand packets.
    pub(super) fn unit(self) -> f64 {
        match self {
            Self::Read => 1e6,
            Self::Forwarded => 1e3,
        }
    }

    pub(super) fn unit_costs(self) -> &'static str {
        match self {
            Self::Read => "a received megabyte costs",
            Self::Forwarded => "a thousand forwarded packets cost",
        }
    }

    pub(super) fn units_per_s(self) -> &'static str {
        match self {
            Self::Read => "MB/s",
            Self::Forwarded => "thousand packets/s",
        }
    }
}

impl Sample {
    pub(super) fn new(window: &Window<'_>) -> Self {
        let attribution = &window.analysis.observation.attribution;
        let seconds = attribution.elapsed.as_secs_f64();
        let interrupted = |cpu: &CpuId| {
            let time = attribution.cpu_time.get(cpu).filter(|_| seconds > 0.0)?;
            Some(time.interrupted_ns() as f64 / seconds)
        };
        let cost = |(cpu, rates): (&CpuId, &CpuRates)| {
            let shares = rates.shares?;
            let ticks = (shares.irq + shares.softirq) * 1e9;
            Some((
                *cpu,
                (shares.usr + shares.nice + shares.sys) * 1e9 + interrupted(cpu).unwrap_or(ticks),
            ))
        };
        let cpus = window.analysis.rates.cpus.iter().filter_map(cost).collect();
        let sample = Self { ended: window.now, cpus, ..Self::default() };
        if seconds <= 0.0 {
            return sample;
        }
        // A plan's prediction of wakeups covers only readers.
        let polls = |tgid: u32| window.after().net_threads.contains_key(&tgid);
        let of_readers = attribution.wakeups.iter().filter(|it| !polls(it.tgid));
        let remote = of_readers.filter(|it| it.waker_cpu != it.sleeper_cpu);
        let wakeups = remote.map(|it| (it.waker_cpu, it.sleeper_cpu, it.count as f64 / seconds));
        Self {
            read: read(attribution, window.after(), seconds),
            forwarded: forwarded(attribution, window.after(), seconds),
            wakeups: wakeups.collect(),
            woken: woken(attribution),
            ..sample
        }
    }

    /// Wakeups per second between two CPUs, at least one of which is in the set.
    pub(super) fn remote_wakeups(&self, cpus: &CpuSet) -> f64 {
        let here = |(waker, sleeper, _): &&(CpuId, CpuId, f64)| {
            cpus.contains(*waker) || cpus.contains(*sleeper)
        };
        self.wakeups.iter().filter(here).map(|(.., rate)| rate).sum()
    }

    /// The CPUs where data of these NAPIs is processed, read, sent on or completed.
    pub(super) fn cpus_of(&self, napis: &BTreeSet<NapiId>) -> CpuSet {
        let rows =
            self.read.iter().map(|(row, _)| row).chain(self.forwarded.iter().map(|(row, _)| row));
        let rows = rows.filter(|row| row.napi.is_some_and(|napi| napis.contains(&napi)));
        rows.flat_map(DataPath::cpus).collect()
    }

    /// Bytes read or packets forwarded per second, by where that happens.
    pub(super) fn rows(&self, work: WorkKind) -> Box<dyn Iterator<Item = (&DataPath, f64)> + '_> {
        match work {
            WorkKind::Read => Box::new(self.read.iter().map(|(row, bytes)| (row, *bytes))),
            WorkKind::Forwarded => {
                Box::new(self.forwarded.iter().map(|(row, sum)| (row, sum.packets)))
            }
        }
    }

    /// Bytes read or packets forwarded per second by these CPUs, and the part that stayed under one
    /// last-level cache.
    pub(super) fn done(&self, work: WorkKind, cpus: &CpuSet) -> (f64, f64) {
        let here = self.rows(work).filter(|(row, _)| row.touches(cpus));
        here.fold((0.0, 0.0), |(all, near), (row, amount)| {
            (all + amount, if row.same_llc { near + amount } else { near })
        })
    }

    fn bytes_forwarded(&self, cpus: &CpuSet) -> f64 {
        self.forwarded.iter().filter(|(row, _)| row.touches(cpus)).map(|(_, sum)| sum.bytes).sum()
    }

    pub(super) fn cost(&self, cpus: &CpuSet) -> f64 {
        self.cpus.iter().filter(|(cpu, _)| cpus.contains(*cpu)).map(|(_, cost)| cost).sum()
    }
}

/// Whether two CPUs are the same, or share a last-level cache.
fn same_llc(snapshot: &Snapshot, a: CpuId, b: CpuId) -> bool {
    a == b || snapshot.topology.cpus.get(&a).is_some_and(|known| known.llc.contains(b))
}

fn read(attribution: &Attribution, snapshot: &Snapshot, seconds: f64) -> Vec<(DataPath, f64)> {
    let mut read: BTreeMap<DataPath, f64> = BTreeMap::new();
    for it in &attribution.consumption {
        let (protocol, consumer) = (it.protocol_cpu.or(it.poll_cpu), it.consumer_cpu);
        let same_llc = protocol.is_some_and(|cpu| same_llc(snapshot, cpu, consumer));
        let row = DataPath { napi: it.napi, protocol, consumer, same_llc, egress: None };
        *read.entry(row).or_default() += it.bytes as f64 / seconds;
    }
    read.into_iter().collect()
}

fn forwarded(
    attribution: &Attribution,
    snapshot: &Snapshot,
    seconds: f64,
) -> Vec<(DataPath, Forwards)> {
    let polled_on = polled_on(attribution);
    let mut forwarded: BTreeMap<DataPath, Forwards> = BTreeMap::new();
    for it in &attribution.forwarded {
        let queue = egress_queue(snapshot, it);
        let napi = queue.and_then(|(_, tx)| tx.napi.as_ref()).map(|edge| edge.to);
        let irq = queue.and_then(|(_, tx)| tx.irq.as_ref()).map(|edge| edge.to);
        let polled = napi.and_then(|napi| polled_on.get(&napi)).map(|(cpu, _)| *cpu);
        let completed = polled.or_else(|| cpu_of_irq(snapshot, irq?));
        let has_xps = |tx: &TxQueue| tx.xps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
        let by_cpu = queue.is_some_and(|(netdev, _)| netdev.tx_queues.iter().any(has_xps));
        let (protocol, consumer) = (it.poll_cpu, completed.unwrap_or(it.xmit_cpu));
        let row = DataPath {
            napi: it.napi,
            protocol: Some(protocol),
            consumer,
            same_llc: same_llc(snapshot, protocol, consumer),
            egress: Some(Egress { sender: it.xmit_cpu, napi, irq, by_cpu }),
        };
        let sum = forwarded.entry(row).or_default();
        sum.packets += it.packets as f64 / seconds;
        sum.bytes += it.bytes as f64 / seconds;
    }
    forwarded.into_iter().collect()
}

/// The netdev and tx queue through which packets leave, if both are known in this namespace.
fn egress_queue<'s>(snapshot: &'s Snapshot, row: &Forwarded) -> Option<(&'s Netdev, &'s TxQueue)> {
    let netdev = snapshot.netdevs.named(&row.egress)?;
    let netdev = Some(netdev).filter(|it| it.ifindex == row.egress_ifindex)?;
    Some((netdev, netdev.tx_queues.iter().find(|tx| tx.index == row.tx_queue)?))
}

/// The CPU that polled each NAPI most often. Nothing else shows where completions run: virtio's
/// transmit NAPIs have no id, and are found by their interrupt.
fn polled_on(attribution: &Attribution) -> BTreeMap<NapiId, (CpuId, u64)> {
    let mut most: BTreeMap<NapiId, (CpuId, u64)> = BTreeMap::new();
    for poll in attribution.polls.iter().filter(|poll| poll.napi.0 != 0) {
        let known = most.entry(poll.napi).or_insert((poll.cpu, poll.polls));
        if known.1 < poll.polls {
            *known = (poll.cpu, poll.polls);
        }
    }
    most
}

fn cpu_of_irq(snapshot: &Snapshot, irq: Irq) -> Option<CpuId> {
    let state = snapshot.irqs.get(&irq)?;
    let requested = state.requested.as_ref().and_then(CpuSet::single);
    requested.or_else(|| state.effective.as_ref().and_then(CpuSet::single))
}

fn woken(attribution: &Attribution) -> Vec<Woken> {
    let wakeups = Wakeups::from_attribution(attribution);
    let mut reads: BTreeMap<(NapiId, CpuId), Vec<&Consumption>> = BTreeMap::new();
    for row in &attribution.consumption {
        if let Some(key) = row.napi.zip(row.protocol_cpu.or(row.poll_cpu)) {
            reads.entry(key).or_default().push(row);
        }
    }
    let each = |((napi, waker), rows): ((NapiId, CpuId), Vec<&Consumption>)| {
        let by_sleeper = wakeups.of_reads(&rows);
        let woken = move |(sleeper, rate): (CpuId, WakeupRate)| Woken {
            napi,
            waker,
            sleeper,
            per_s: rate.per_s,
        };
        by_sleeper.into_iter().map(woken)
    };
    reads.into_iter().flat_map(each).collect()
}
