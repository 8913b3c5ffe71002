//! Where each step of a packet runs.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuId;

/// Maximum number of packets of one poll (`NAPI_POLL_WEIGHT`).
pub(crate) const MOST_BATCH: f64 = 64.0;

/// Shares of 1, by CPU.
pub(crate) type Shares = BTreeMap<CpuId, f64>;

/// Where the steps run, as shares of the packets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placement {
    /// By the CPU that polls.
    pub(crate) poll: Shares,
    /// By the CPU that runs the protocol; `None`: each packet stays where it is polled.
    pub(crate) protocol: Option<Shares>,
    /// Share of the data that RFS brings to its reader.
    pub(crate) steered: f64,
    /// Packets of one poll.
    pub(crate) batch: f64,
    /// Share of the polls that begin with an interrupt.
    pub(crate) begun: f64,
    /// Whether a kthread polls.
    pub(crate) is_threaded: bool,
}

impl Placement {
    /// Shares of the packets by the CPU that runs the protocol.
    pub(crate) fn protocol(&self) -> &Shares {
        self.protocol.as_ref().unwrap_or(&self.poll)
    }
}
