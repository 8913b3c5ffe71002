//! Load of each entry of a netdev's indirection table, from the flows that arrived.

use std::collections::BTreeMap;

use crate::rss::model::{CheckedModel, flows_on};
use crate::rss::rebalance::queue_loads;
use crate::snapshot::flow::Flow;
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;

/// Maximum number of packets counted per entry and observation (about 10^12), so that the sum over
/// a table never overflows, whatever a bundle contains.
const MAX_PACKETS: u64 = 1 << 40;

/// Why a netdev that received packets has no flows.
const NOT_COUNTED: &str = "it received packets, and their flows were not counted";

/// Whether a netdev received packets between the two snapshots.
pub fn has_received(observation: &Observation, netdev: &Netdev) -> bool {
    let packets = |netdev: &Netdev| netdev.statistics.get("rx_packets").copied();
    let before = observation.before.netdevs.same(netdev).and_then(packets);
    before.zip(packets(netdev)).is_some_and(|(before, after)| after > before)
}

/// The load of a netdev's indirection table, in packets.
#[derive(Debug, Clone, PartialEq)]
pub struct TableLoad {
    /// The rx queue of each entry.
    pub table: Vec<u32>,
    /// Packets of each entry.
    pub load: Vec<u64>,
    /// Packets that followed the table: their entry is known, and its queue received them.
    pub packets: u64,
    /// Packets whose entry is unknown, or that another queue received than the one of their entry.
    pub off_table: u64,
    /// Packets of flows for which the flow table had no room.
    pub missed: u64,
    /// Flows that followed the table.
    pub flows: usize,
    /// Packets of the heaviest of these flows, and the entry of that flow.
    pub heaviest: Option<(u64, usize)>,
}

impl TableLoad {
    /// Computes the load from the NIC's hash or, without one, from the predicted hash of the
    /// addresses. The error is the reason why there is no load.
    pub fn from_observation(observation: &Observation, netdev: &Netdev) -> Result<Self, String> {
        let rss = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rss.value());
        let table = rss.map(|rss| rss.indirection.clone()).filter(|table| !table.is_empty());
        let table = table.ok_or("it shows no indirection table")?;
        let before = observation.before.netdevs.same(netdev);
        let before = before.and_then(|dev| dev.ethtool.as_ref()?.rss.value());
        if before.is_some_and(|before| Some(before) != rss) {
            return Err("its table or key changed during the observation".into());
        }
        let flows: Vec<&Flow> = flows_on(observation, netdev).collect();
        if flows.is_empty() && has_received(observation, netdev) {
            return Err(NOT_COUNTED.into());
        }
        let hashes = flows.iter().any(|flow| flow.hash.is_some());
        let calibrated =
            if hashes { None } else { CheckedModel::from_observation(observation, netdev).ok() };
        let entries = table.len();
        let entry_of = |flow: &Flow| match (flow.hash, &calibrated) {
            (Some(hash), _) => Some(hash as usize % entries),
            // Packets that a NIC does not hash use entry 0.
            (None, _) if hashes => Some(0),
            (None, Some(calibrated)) => Some(
                calibrated.model.predict(flow.outer, flow.ends, flow.fragments).ok()?.entry
                    as usize,
            ),
            (None, None) => None,
        };
        let mut found = Self {
            load: vec![0; table.len()],
            packets: 0,
            off_table: 0,
            missed: observation.attribution.flows_missed,
            flows: 0,
            heaviest: None,
            table,
        };
        for flow in &flows {
            let entry =
                entry_of(flow).filter(|entry| flow.queue == found.table.get(*entry).copied());
            found.add(entry, flow.packets);
        }
        Ok(found)
    }

    fn add(&mut self, entry: Option<usize>, packets: u64) {
        let Some(entry) = entry else {
            self.off_table = self.off_table.saturating_add(packets);
            return;
        };
        self.load[entry] = self.load[entry].saturating_add(packets).min(MAX_PACKETS);
        self.packets = self.packets.saturating_add(packets);
        self.flows += 1;
        if self.heaviest.is_none_or(|(most, _)| packets > most) {
            self.heaviest = Some((packets, entry));
        }
    }

    /// Packets of each queue in the table, according to the table.
    pub fn queues(&self) -> BTreeMap<u32, u64> {
        queue_loads(&self.table, &self.load).into_iter().collect()
    }

    /// Number of equally loaded entries that would have the same unevenness (2 to the power of the
    /// load's entropy); `None` without load.
    pub fn effective_entries(&self) -> Option<f64> {
        let total = self.packets as f64;
        let shares = self.load.iter().filter(|load| **load > 0).map(|load| *load as f64 / total);
        let entropy: f64 = shares.map(|share| -share * share.log2()).sum();
        (self.packets > 0).then(|| entropy.exp2())
    }

    /// Ratio of the heaviest queue's load to the mean of all queues; `None` without load.
    pub fn skew(&self) -> Option<f64> {
        let queues = self.queues();
        let most = *queues.values().max()?;
        (self.packets > 0).then(|| most as f64 * queues.len() as f64 / self.packets as f64)
    }

    /// Whether the load is complete: at most a tenth of the packets did not follow the table or
    /// were not counted.
    pub fn is_complete(&self) -> bool {
        let (on_table, other) = (self.packets as f64, self.off_table as f64 + self.missed as f64);
        self.packets > 0 && other * 10.0 <= on_table + other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::reading::Reading;
    use crate::snapshot::ethtool::{Ethtool, Rss};
    use crate::snapshot::flow::Outer;

    fn loaded(table: &[u32], flows: Vec<Flow>) -> Result<TableLoad, String> {
        let rss = Rss { function: None, key: None, indirection: table.to_vec(), input_xfrm: 0 };
        let ethtool = Ethtool { rss: Reading::Value(rss), ..Ethtool::unavailable("not asked") };
        let netdev = Netdev { ifindex: 2, ethtool: Some(ethtool), ..Netdev::default() };
        let mut observation = Observation::default();
        observation.attribution.flows = flows;
        observation.after.netdevs = vec![netdev.clone()].into();
        TableLoad::from_observation(&observation, &netdev)
    }

    fn flow(hash: Option<u32>, queue: u32, packets: u64) -> Flow {
        Flow { ifindex: 2, outer: Outer::Tcp, hash, queue: Some(queue), packets, ..Flow::default() }
    }

    #[test]
    fn packets_count_for_the_entry_of_their_hash_if_its_queue_received_them() {
        let table = [0, 1, 2, 3];
        let found =
            loaded(&table, vec![flow(Some(5), 1, 60), flow(Some(9), 1, 20), flow(Some(6), 3, 4)])
                .unwrap();
        assert_eq!((found.load.as_slice(), found.off_table), ([0, 80, 0, 0].as_slice(), 4));
        assert_eq!((found.flows, found.heaviest, found.is_complete()), (2, Some((60, 1)), true));
        assert_eq!((found.skew(), found.effective_entries()), (Some(4.0), Some(1.0)));
    }

    #[test]
    fn packets_without_a_hash_use_entry_0_if_the_nic_reports_hashes() {
        let found = loaded(&[2, 1], vec![flow(None, 2, 7), flow(Some(1), 1, 1)]).unwrap();
        assert_eq!(found.load, [7, 1]);
        let silent = loaded(&[2, 1], vec![flow(None, 2, 7)]).unwrap();
        assert_eq!((silent.off_table, silent.is_complete()), (7, false));
        assert!(loaded(&[], vec![]).unwrap_err().contains("no indirection table"));
    }

    #[test]
    fn an_even_load_uses_all_entries() {
        let found =
            loaded(&[0, 1, 2, 3], (0..4).map(|hash| flow(Some(hash), hash, 10)).collect()).unwrap();
        assert_eq!((found.skew(), found.effective_entries()), (Some(1.0), Some(4.0)));
    }
}
