//! Threads and cgroups of a consumer, as read before they are pinned.

use crate::machine::cpuset::CpuSet;

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
