//! FILEDOC

use crate::machine::cpuset::CpuSet;

/// A thread of a consumer, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// Its own id.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// Clock ticks after boot at which it started.
    pub start_time: u64,
    /// The CPUs that it may run on.
    pub cpus: CpuSet,
    /// Whether the kernel refuses to move it (`PF_NO_SETAFFINITY`).
    pub bound: bool,
}

/// A cgroup of a consumer, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path below the root of all cgroups.
    pub path: String,
    /// `cpuset.cpus`; empty where it has those of its parent.
    pub cpus: CpuSet,
    /// `cpuset.cpus.effective` of its parent: it cannot have others.
    pub open: CpuSet,
}
