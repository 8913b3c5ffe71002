//! Events that the kernel announces: netdevs, CPUs, suspend.

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;

/// Something that the kernel announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A netdev was set up, or its carrier came.
    LinkUp(String),
    /// A netdev was set down, or its carrier went.
    LinkDown(String),
    /// The driver was reset, or the netdev's channels or rings were changed.
    Reset(String),
    /// There is a new netdev.
    NetdevAdded(String),
    /// A netdev is no more.
    NetdevRemoved(String),
    /// A netdev has another name.
    Renamed {
        /// The old name.
        from: String,
        /// The new one.
        to: String,
    },
    /// A CPU came.
    CpuOnline(CpuId),
    /// A CPU went; the kernel moves its interrupts.
    CpuOffline(CpuId),
    /// The machine was suspended and is back.
    Resumed,
}
