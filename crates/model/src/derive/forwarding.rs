//! Forwarded traffic: what came in through a queue and left again, by which device and tx queue.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::snapshot::attribution::Forwarded;

/// What a queue's packets, or those of no queue, leave by.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardShare {
    /// Name of the device.
    pub egress: String,
    /// Interface index of it, unique in its network namespace.
    pub egress_ifindex: u32,
    /// Inode number of that namespace, 0 when not known.
    pub egress_netns: u32,
    /// The tx queue.
    pub tx_queue: u32,
    /// The CPU that processes them and queues them for sending.
    pub cpu: CpuId,
    /// Packets per second, as on the wire.
    pub packets_per_s: f64,
    /// Bytes per second, with link-layer headers.
    pub bytes_per_s: f64,
    /// Of all packets that came through the queue.
    pub share: f64,
}

/// All that was forwarded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardTotals {
    /// Packets per second.
    pub packets_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// What came in through no queue of this network namespace (containers sent it), or its queue
    /// was not found; heaviest first. Shares are of all that was forwarded.
    pub from_no_queue: Vec<ForwardShare>,
}

impl ForwardShare {
    /// How people call where it goes: `eth1 tx-2`.
    pub fn label(&self) -> String {
        format!("{} tx-{}", self.egress, self.tx_queue)
    }
}

/// Sums rows up by device, tx queue and CPU, heaviest first. `packets_per_s` is what shares are of,
/// if it is more.
pub fn shares(rows: &[&Forwarded], seconds: f64, packets_per_s: f64) -> Vec<ForwardShare> {
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

/// All rows together, and those of no queue apart.
pub fn totals(rows: &[Forwarded], of_no_queue: &[&Forwarded], seconds: f64) -> ForwardTotals {
    let all = shares(&rows.iter().collect::<Vec<_>>(), seconds, 0.0);
    let packets_per_s = all.iter().map(|share| share.packets_per_s).sum();
    ForwardTotals {
        packets_per_s,
        bytes_per_s: all.iter().map(|share| share.bytes_per_s).sum(),
        from_no_queue: shares(of_no_queue, seconds, packets_per_s),
    }
}
