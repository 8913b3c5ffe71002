//! The clock of the journal's deadlines and of snapshots.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot, including suspended time (`CLOCK_BOOTTIME`).
pub fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
