//! Programs that hold taps: virtual machines, and others that read packets themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::snapshot::thread_time::ThreadTime;

/// A process that holds a tun, tap, macvtap or ipvtap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapHolder {
    /// The program's name.
    pub comm: String,
    /// The name of its virtual machine; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Names of the netdevs, as in the network namespace of each.
    pub netdevs: BTreeSet<String>,
    /// Those of them that are in netsilo's own network namespace, as far as that is known.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub here: BTreeSet<String>,
    /// Its threads, and the kernel threads that work for it, by thread id. Empty if there are too
    /// many.
    pub threads: BTreeMap<u32, TapThread>,
}

/// A thread of such a process, or a vhost worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapThread {
    /// Its name.
    pub comm: String,
    /// What it does, by its name.
    pub role: TapThreadRole,
    /// Whether it is a kernel thread of its own (vhost workers before 6.4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kthread: bool,
    /// When it started, in clock ticks after boot.
    pub start_time: u64,
    /// Its times on a CPU and waiting for one.
    pub time: ThreadTime,
    /// The CPU on which it ran last.
    pub cpu: CpuId,
    /// CPUs where it may run.
    pub cpus: CpuSet,
}

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TapThreadRole {
    /// It runs this CPU of a virtual machine.
    Vcpu(u32),
    /// It copies packets from a tap to the memory of a virtual machine (vhost).
    Vhost,
    /// Something else.
    Other,
}
