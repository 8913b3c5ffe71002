//! FILEDOC

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;

/// A stage of receive work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The driver's poll, its memory, XDP, and the merging of packets (GRO).
    DriverGro,
    /// From the device to the protocol or to the next device: dispatch, RPS, VLAN, bridge, routing,
    /// neighbours.
    BridgeIp,
    /// Packet filter, connection tracking, address translation.
    Netfilter,
    /// TCP, UDP and others, up to the reader's wakeup; what they send in answer, too.
    LocalDelivery,
    /// Queueing disciplines, cutting of large packets, and the driver's sending.
    QdiscXmit,
    /// Taking back what the device has sent.
    TxCompletion,
    /// No function that the table knows.
    Other,
}

impl Stage {
    /// All of them, in the order of a packet's way.
    pub const ALL: [Self; 7] = [
        Self::DriverGro,
        Self::BridgeIp,
        Self::Netfilter,
        Self::LocalDelivery,
        Self::QdiscXmit,
        Self::TxCompletion,
        Self::Other,
    ];

    /// As people call it.
    pub fn label(self) -> &'static str {
        match self {
            Self::DriverGro => "driver + GRO",
            Self::BridgeIp => "bridge / IP",
            Self::Netfilter => "netfilter",
            Self::LocalDelivery => "local delivery",
            Self::QdiscXmit => "qdisc + xmit",
            Self::TxCompletion => "TX completion",
            Self::Other => "other",
        }
    }
}

/// What was sampled in one window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSamples {
    /// Samples of each CPU per second, of which only those in receive work are kept.
    pub per_s: u32,
    /// Samples by CPU and stage.
    pub cpus: BTreeMap<CpuId, BTreeMap<Stage, u64>>,
    /// Samples in receive work whose stack was not kept.
    pub lost: u64,
    /// Why there is nothing, or nothing but `other`; `None` when all went well.
    pub refused: Option<String>,
}
