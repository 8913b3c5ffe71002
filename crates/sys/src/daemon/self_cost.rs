//! The resources that this process uses.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The resources used by this process so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SelfCost {
    /// CPU time of all threads, user and kernel. Excludes eBPF programs, which run in the time of
    /// other tasks.
    pub cpu: Duration,
    /// Resident memory in bytes; `None` if it cannot be read.
    pub resident_bytes: Option<u64>,
}

/// Reads the resources used so far.
pub fn self_cost() -> SelfCost {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    // `/proc/self/statm`, in pages; the second field is the resident size.
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> =
        statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    SelfCost {
        cpu: Duration::new(cpu.tv_sec.unsigned_abs(), cpu.tv_nsec.unsigned_abs() as u32),
        resident_bytes: pages.map(|pages| pages * rustix::param::page_size() as u64),
    }
}

/// The peak resident memory of this process in bytes (VmHWM).
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_running_process_uses_time_and_memory() {
        let cost = super::self_cost();
        assert!(!cost.cpu.is_zero() && cost.resident_bytes.unwrap() > 100_000, "{cost:?}");
        assert!(super::peak_bytes().unwrap() >= 100_000);
    }
}
