//! What is full first: the same for an observed machine and for one that a file describes.

use std::fmt;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use serde::{Serialize, Serializer};

/// Busy share from which a resource is saturated: at 80% a poll waits four times as long as it runs
/// (M/M/1), and bursts overflow.
pub const FULL: f64 = 0.8;

/// What is full first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum Limit {
    /// The interrupts, softirqs and NAPI kthreads of one CPU.
    Cpu(CpuId),
    /// All CPUs together.
    Cpus,
    /// The CPUs to which readers are pinned.
    Pinned(CpuSet),
    /// The threads that there are, each on one CPU.
    Threads,
    /// The link of a netdev.
    Link(String),
    /// The bus of the NIC.
    Bus,
    /// The other machine's CPUs.
    Client,
    /// Nothing here: the load asks no more.
    Load,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "softirq of cpu {cpu}"),
            Self::Cpus => f.write_str("the CPUs"),
            Self::Pinned(cpus) => write!(f, "pinned readers on {cpus}"),
            Self::Threads => f.write_str("the threads"),
            Self::Link(netdev) if netdev.is_empty() => f.write_str("the link"),
            Self::Link(netdev) => write!(f, "the link of {netdev}"),
            Self::Bus => f.write_str("the bus"),
            Self::Client => f.write_str("the client"),
            Self::Load => f.write_str("the load"),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a CPU is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) cpu: CpuId,
    /// Time in tasks, and in interrupts and softirqs.
    pub(crate) tasks: f64,
    pub(crate) softirq: f64,
    /// The share of its time that there is.
    pub(crate) room: f64,
    /// The share of its tasks that do not leave it when softirqs fill it.
    pub(crate) stays: f64,
}

/// What is fullest, and how full it is (Denning and Buzen 1978): `pinned` are CPUs that tasks do
/// not leave, `others` are resources that are no CPUs.
pub(crate) fn fullest(
    cpus: impl Iterator<Item = Used> + Clone,
    pinned: &[CpuSet],
    others: impl Iterator<Item = (f64, Limit)>,
) -> (f64, Limit) {
    let first = (busy_share(cpus.clone()), Limit::Cpus);
    let pinned = pinned.iter().map(|set| {
        let these = cpus.clone().filter(|it| set.contains(it.cpu));
        (busy_share(these), Limit::Pinned(set.clone()))
    });
    let softirqs = cpus.clone().map(|it| ((it.softirq + it.stays * it.tasks) / it.room, it.cpu));
    let softirq = softirqs.reduce(fuller).map(|(share, cpu)| (share, Limit::Cpu(cpu)));
    pinned.chain(softirq).chain(others).fold(first, fuller)
}

/// Of two that are equally full, the first one.
fn fuller<T>(a: (f64, T), b: (f64, T)) -> (f64, T) {
    if b.0 > a.0 { b } else { a }
}

/// The share of the room on these CPUs that is used.
fn busy_share(cpus: impl Iterator<Item = Used>) -> f64 {
    let (mut time, mut room) = (0.0, 0.0_f64);
    for it in cpus {
        time += it.tasks + it.softirq;
        room += it.room;
    }
    time / room.max(0.05)
}
