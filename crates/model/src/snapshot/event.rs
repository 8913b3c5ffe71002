//! Events that the kernel reports: netdevs, CPUs, suspend.

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;

/// A notification from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A netdev was set up, or its carrier came up.
    LinkUp(String),
    /// A netdev was set down, or its carrier went down.
    LinkDown(String),
    /// The driver was reset, or the netdev's channels or rings were changed.
    Reset(String),
    /// A netdev was added.
    NetdevAdded(String),
    /// A netdev was removed.
    NetdevRemoved(String),
    /// A netdev was renamed.
    Renamed {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// A CPU came online.
    CpuOnline(CpuId),
    /// A CPU went offline. The kernel moves its interrupts.
    CpuOffline(CpuId),
    /// Another program that writes knobs was started. This is no event of the kernel: a window
    /// shows the program's new process.
    Started(String),
    /// The machine resumed after a suspend.
    Resumed,
}
