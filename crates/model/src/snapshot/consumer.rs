//! Consumers: who reads sockets and of which protocol, and their threads and cgroups as read before
//! they are pinned.

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuSet;

/// A thread group that reads sockets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Consumer {
    /// Thread group id, in the initial pid namespace. 0 for the kernel, its work and threads, and
    /// for processes that are alike (name, cgroup, queue, CPUs) and were too many to be counted one
    /// by one.
    pub tgid: u32,
    /// Its name (`/proc/<tgid>/comm`); empty for a softirq; of work, its function.
    pub comm: String,
    /// Whether this is code of the kernel: work of a workqueue, which any of its threads may do, or
    /// its threads of this name (`nfsd`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub work: bool,
    /// Its cgroup path (v2), below `/sys/fs/cgroup`; `None` if it exited before the lookup.
    pub cgroup: Option<String>,
    /// Inode number of its network namespace; 0 if unknown.
    pub netns: u32,
}

impl Consumer {
    /// What this is.
    pub fn kind(&self) -> ReaderKind {
        match (self.tgid, self.comm.as_str()) {
            _ if self.work => ReaderKind::Kernel,
            (0, "") => ReaderKind::Kernel,
            (0, _) => ReaderKind::Processes,
            _ => ReaderKind::Process,
        }
    }
}

/// What reads the data of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReaderKind {
    /// One process.
    #[default]
    Process,
    /// Processes that were counted together because there were too many.
    Processes,
    /// Code of the kernel: a softirq, work of a workqueue, or kernel threads.
    Kernel,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are complete")]
pub enum Protocol {
    /// MPTCP included.
    Tcp,
    Udp,
    /// A raw socket of a protocol other than ICMP.
    Raw,
    /// A raw socket or ping socket of ICMP or ICMPv6.
    Icmp,
    Sctp,
    /// Read from a packet socket (`AF_PACKET`): copies of what others may receive too.
    Packet,
    /// Whole packets, read from a tun, tap, macvtap or ipvtap: by a program, or by a vhost worker
    /// for a virtual machine.
    Tap,
}

impl Protocol {
    /// Whether its payload is counted where packets enter
    /// ([`IpClass`](super::ip_packets::IpClass)).
    pub fn is_counted_on_entry(self) -> bool {
        !matches!(self, Self::Icmp | Self::Sctp | Self::Tap)
    }
}

/// A thread of a consumer, as observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Thread name.
    pub comm: String,
    /// Start time in clock ticks after boot.
    pub start_time: u64,
    /// CPUs where the thread may run.
    pub cpus: CpuSet,
    /// Whether the kernel refuses to move it (`PF_NO_SETAFFINITY`).
    pub fixed_affinity: bool,
}

/// A cgroup of a consumer, as observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Path below the root of the cgroup hierarchy.
    pub path: String,
    /// `cpuset.cpus`. Empty if the cgroup inherits its parent's CPUs.
    pub cpus: CpuSet,
    /// `cpuset.cpus.effective` of its parent: the largest set that the cgroup can have.
    pub open: CpuSet,
}
