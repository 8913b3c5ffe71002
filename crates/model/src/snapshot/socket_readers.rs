//! Processes that hold sockets: what may keep them from reading.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::snapshot::thread_time::ThreadTime;

/// Processes that hold UDP sockets or listeners. Those of netsilo's own network namespace come
/// first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketReaders {
    /// By thread group. If there are many, those whose sockets have dropped most or have most data
    /// waiting.
    pub processes: BTreeMap<u32, SocketReader>,
    /// The sockets that have dropped something, by inode.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub buffers: BTreeMap<u32, SocketBuffer>,
    /// The CPU quotas that limit them, by the path of the cgroup in its hierarchy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: BTreeMap<String, CpuQuota>,
}

/// A process that holds sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketReader {
    /// Its name.
    pub comm: String,
    /// Its cgroup in the hierarchy that limits CPU time; `None` if quotas could not be read.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// The local ports on which it listens (TCP). Empty if it does not, or if they were not read.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ports: BTreeSet<u16>,
    /// Its threads by id. Empty if there are too many.
    pub threads: BTreeMap<u32, SocketThread>,
}

/// A thread of such a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketThread {
    /// Its times on a CPU and waiting for one.
    pub time: ThreadTime,
    /// How often it gave up its CPU to sleep (`voluntary_ctxt_switches`).
    pub sleeps: u64,
}

/// The receive buffer of a socket, and the sockets with the same address and port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketBuffer {
    /// Its size in bytes (`sk_rcvbuf`); `None` if it could not be read.
    #[serde(default)]
    pub bytes: Option<u32>,
    /// Whether the program has set it (`SO_RCVBUF`); `None` before 5.14 (`SO_BUF_LOCK`).
    #[serde(default)]
    pub is_set: Option<bool>,
    /// Number of unconnected sockets with its address and port (`SO_REUSEPORT`), itself included.
    pub group: u32,
    /// The thread groups that hold the socket.
    pub holders: Vec<u32>,
}

/// The CPU quota of a cgroup, and how often it was used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuQuota {
    /// CPU time allowed in a period, in microseconds.
    pub quota_usec: u64,
    /// The length of a period, in microseconds.
    pub period_usec: u64,
    /// Periods in which the cgroup ran, since it was created.
    pub nr_periods: u64,
    /// Periods in which it was throttled.
    pub nr_throttled: u64,
    /// How long it was throttled, in microseconds. Each CPU on which it waited counts.
    pub throttled_usec: u64,
}

impl CpuQuota {
    /// CPU time allowed per second, in CPUs.
    pub fn cpus(&self) -> f64 {
        self.quota_usec as f64 / self.period_usec.max(1) as f64
    }
}
