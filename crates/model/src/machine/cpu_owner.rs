//! A container or service that has CPUs for itself.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuSet;

/// A container or service whose CPUs no other container or service may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CpuOwner {
    /// The last folder of its cgroup's path.
    pub cgroup: String,
    /// `namespace/pod/container`, or identifiers where the names are not known.
    pub name: String,
    /// Its CPUs, without those on which it allows interrupts.
    pub cpus: CpuSet,
    /// Why these CPUs are its own, or what its pod says about interrupts there
    /// (`irq-load-balancing.crio.io: disable`).
    pub why: String,
    /// Whether its pod allows the rx queues that it reads on its CPUs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub claims_queues: bool,
}

impl CpuOwner {
    /// Whether a process in this cgroup belongs to it.
    pub fn owns(&self, cgroup: &str) -> bool {
        cgroup.split('/').any(|folder| folder == self.cgroup)
    }
}

impl fmt::Display for CpuOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, why, .. } = self;
        let claims = if self.claims_queues { ", but takes the queues that it reads" } else { "" };
        write!(f, "{name} ({why}{claims})")
    }
}
