//! Stack samples of receive work, by CPU and stage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;

/// A stage of receive work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReceiveStage {
    /// The driver's poll, its buffers, XDP, and merging of packets (GRO).
    DriverGro,
    /// Memory that the device may reach: entries of the IOMMU and their invalidation, or copies in
    /// bounce buffers. For received and for sent packets.
    DmaMapping,
    /// From the device to the protocol or the next device: dispatch, RPS, VLAN, bridge, routing,
    /// neighbours.
    BridgeIp,
    /// Packet filter, connection tracking, address translation.
    Netfilter,
    /// TCP, UDP and other protocols, up to the reader's wakeup. Includes the packets that they
    /// send.
    LocalDelivery,
    /// Queueing disciplines, segmentation of large packets, and the driver's transmit function.
    QdiscXmit,
    /// Completion of sent packets.
    TxCompletion,
    /// No function in the table.
    Other,
}

impl ReceiveStage {
    /// All stages, in the order of a packet's path.
    pub const ALL: [Self; 8] = [
        Self::DriverGro,
        Self::DmaMapping,
        Self::BridgeIp,
        Self::Netfilter,
        Self::LocalDelivery,
        Self::QdiscXmit,
        Self::TxCompletion,
        Self::Other,
    ];

    /// Display name.
    pub fn label(self) -> &'static str {
        match self {
            Self::DriverGro => "driver + GRO",
            Self::DmaMapping => "DMA mapping",
            Self::BridgeIp => "bridge / IP",
            Self::Netfilter => "netfilter",
            Self::LocalDelivery => "local delivery",
            Self::QdiscXmit => "qdisc + xmit",
            Self::TxCompletion => "TX completion",
            Self::Other => "other",
        }
    }
}

/// The samples of one window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSamples {
    /// Samples per second and CPU. Only samples in receive work are kept.
    pub per_s: u32,
    /// Samples by CPU and stage.
    pub cpus: BTreeMap<CpuId, BTreeMap<ReceiveStage, u64>>,
    /// Samples in receive work whose stack was lost.
    pub lost: u64,
    /// Why there are no samples, or only `other`; `None` if sampling worked.
    pub refused: Option<String>,
}
