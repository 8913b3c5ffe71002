//! Pins threads.

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread, and the threads it starts, to `cpu`.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    ensure!(cpu < CpuSet::MAX_CPU, "cpu {cpu}: this program supports {} cpus", CpuSet::MAX_CPU);
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on cpu {cpu}"))
}
