//! Run and wait time of a thread.

use serde::{Deserialize, Serialize};

/// Run and wait time of a thread since its start (`schedstat`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// Nanoseconds on a CPU.
    pub run_ns: u64,
    /// Nanoseconds in which it was runnable and waited for a CPU.
    pub wait_ns: u64,
    /// How often it got a CPU.
    pub runs: u64,
}
