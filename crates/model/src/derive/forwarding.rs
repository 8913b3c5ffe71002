//! Forwarded traffic: the egress device and tx queue of packets that arrived on a queue.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::snapshot::attribution::Forwarded;

/// Forwarded packets of one queue (or of no queue) by one egress device and tx queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForwardShare {
    /// Name of the egress device.
    pub egress: String,
    /// Its interface index, unique in its network namespace.
    pub egress_ifindex: u32,
    /// Inode number of that namespace; 0 if unknown.
    pub egress_netns: u32,
    /// The tx queue.
    pub tx_queue: u32,
    /// The CPU that processes the packets and queues them for transmission.
    pub cpu: CpuId,
    /// Packets per second, as on the wire.
    pub packets_per_s: f64,
    /// Bytes per second, with link-layer headers.
    pub bytes_per_s: f64,
    /// Share of all packets that arrived on the queue.
    pub share: f64,
}

/// Total forwarded traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForwardTotals {
    /// Packets per second.
    pub packets_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Packets that arrived on no queue of this network namespace (containers sent them), or whose
    /// queue was not found; heaviest first, with shares of all forwarded packets.
    pub from_no_queue: Vec<ForwardShare>,
}

impl ForwardShare {
    /// Name of the egress queue in reports: `eth1 tx-2`.
    pub fn label(&self) -> String {
        format!("{} tx-{}", self.egress, self.tx_queue)
    }
}

/// Sums rows by device, tx queue and CPU, heaviest first.
///
/// Shares refer to `packets_per_s` if it exceeds the sum.
pub fn egress_shares(rows: &[&Forwarded], seconds: f64, packets_per_s: f64) -> Vec<ForwardShare> {
    let mut sums: BTreeMap<(u32, u32, u32, CpuId), ForwardShare> = BTreeMap::new();
    for row in rows.iter().filter(|row| seconds > 0.0 && row.packets > 0) {
        let key = (row.egress_netns, row.egress_ifindex, row.tx_queue, row.xmit_cpu);
        let share = sums.entry(key).or_insert_with(|| ForwardShare {
            egress: row.egress.clone(),
            egress_ifindex: row.egress_ifindex,
            egress_netns: row.egress_netns,
            tx_queue: row.tx_queue,
            cpu: row.xmit_cpu,
            ..ForwardShare::default()
        });
        share.packets_per_s += row.packets as f64 / seconds;
        share.bytes_per_s += row.bytes as f64 / seconds;
    }
    let mut shares: Vec<ForwardShare> = sums.into_values().collect();
    let all = shares.iter().map(|share| share.packets_per_s).sum::<f64>().max(packets_per_s);
    for share in &mut shares {
        share.share = share.packets_per_s / all;
    }
    shares.sort_by(|a, b| b.packets_per_s.total_cmp(&a.packets_per_s));
    shares
}

/// Sums all rows, and separately those of no queue.
pub fn totals(rows: &[Forwarded], of_no_queue: &[&Forwarded], seconds: f64) -> ForwardTotals {
    let all = egress_shares(&rows.iter().collect::<Vec<_>>(), seconds, 0.0);
    let packets_per_s = all.iter().map(|share| share.packets_per_s).sum();
    ForwardTotals {
        packets_per_s,
        bytes_per_s: all.iter().map(|share| share.bytes_per_s).sum(),
        from_no_queue: egress_shares(of_no_queue, seconds, packets_per_s),
    }
}
