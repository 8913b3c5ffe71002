//! FILEDOC

use serde::{Deserialize, Serialize};

/// How long a thread ran, and waited for its turn (`schedstat`), since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// Nanoseconds on a CPU.
    pub run_ns: u64,
    /// Nanoseconds runnable, while others had the CPU.
    pub wait_ns: u64,
    /// Times that it was given the CPU.
    pub runs: u64,
}
