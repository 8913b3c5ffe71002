//! A [`Change`]: one knob, its old and new value, and why; and how changes are ordered and reversed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::host::{Irq, Netdev};

/// A knob that netsilo may write.
///
/// Devices are named by what survives a renumbering too (path, queue, action name), so that a journal can tell whether
/// the knob is still the same one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "snake_case")]
pub enum Target {
    /// `/proc/irq/<irq>/smp_affinity`.
    IrqAffinity {
        /// The interrupt.
        irq: Irq,
        /// Its action names, joined by commas: its identity.
        action: String,
        /// The device that it belongs to, if known.
        netdev: Option<NetdevIdentity>,
    },
    /// `/proc/irq/default_smp_affinity`.
    DefaultSmpAffinity,
    /// `queues/rx-<queue>/rps_cpus`.
    RpsCpus {
        /// The device.
        netdev: NetdevIdentity,
        /// The rx queue.
        queue: u32,
    },
    /// `queues/rx-<queue>/rps_flow_cnt`.
    RpsFlowCnt {
        /// The device.
        netdev: NetdevIdentity,
        /// The rx queue.
        queue: u32,
    },
    /// `net.core.rps_sock_flow_entries`; writing it flushes the flow table, even with the same value.
    RpsSockFlowEntries,
    /// `net.core.rps_default_mask`.
    RpsDefaultMask,
    /// `queues/tx-<queue>/xps_cpus`.
    XpsCpus {
        /// The device.
        netdev: NetdevIdentity,
        /// The tx queue.
        queue: u32,
    },
    /// The CPUs of a threaded NAPI's kthread (`sched_setaffinity`).
    NapiThread {
        /// Its process id.
        pid: u32,
        /// Its name.
        comm: String,
        /// Clock ticks after boot at which it started: with the pid, its identity.
        start_time: u64,
    },
}

/// What a network device is recognised by.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetdevIdentity {
    /// Interface name.
    pub name: String,
    /// Device path below `/sys`; `None` for virtual devices.
    pub device_path: Option<String>,
}

impl NetdevIdentity {
    /// What this netdev is recognised by.
    pub fn of(netdev: &Netdev) -> Self {
        Self { name: netdev.name.clone(), device_path: netdev.device_path.clone() }
    }

    /// Whether this is it: the same name on the same device.
    pub fn is(&self, netdev: &Netdev) -> bool {
        self.name == netdev.name && self.device_path == netdev.device_path
    }
}

/// A knob's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A set of CPUs; the empty one switches RPS or XPS off.
    Cpus(CpuSet),
    /// A number of flow table entries; 0 switches RFS off.
    Count(u32),
}

/// One knob, its old and new value, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The knob.
    pub target: Target,
    /// Its value when the plan was made.
    pub old: Value,
    /// Its value wanted.
    pub new: Value,
    /// Why, as a human would accept it.
    pub reason: String,
}

impl Change {
    /// The change that takes this one back.
    pub fn inverse(&self) -> Self {
        Self {
            target: self.target.clone(),
            old: self.new.clone(),
            new: self.old.clone(),
            reason: format!("undo: {}", self.reason),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(cpus) if cpus.is_empty() => f.write_str("none"),
            Self::Cpus(cpus) => cpus.fmt(f),
            Self::Count(count) => count.fmt(f),
        }
    }
}

/// The knob as a person calls it (`irq 27 (virtio0-input.1)`, `eth0 rx-3 rps_cpus`).
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IrqAffinity { irq, action, .. } => write!(f, "irq {irq} ({action})"),
            Self::DefaultSmpAffinity => f.write_str("default_smp_affinity"),
            Self::RpsCpus { netdev, queue } => write!(f, "{} rx-{queue} rps_cpus", netdev.name),
            Self::RpsFlowCnt { netdev, queue } => write!(f, "{} rx-{queue} rps_flow_cnt", netdev.name),
            Self::RpsSockFlowEntries => f.write_str("rps_sock_flow_entries"),
            Self::RpsDefaultMask => f.write_str("rps_default_mask"),
            Self::XpsCpus { netdev, queue } => write!(f, "{} tx-{queue} xps_cpus", netdev.name),
            Self::NapiThread { pid, comm, .. } => write!(f, "kthread {comm} (pid {pid})"),
        }
    }
}
