//! RSS settings of a synthetic netdev, and the flows that arrive at it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::change::{Key, Table};
use crate::machine::reading::Reading;
use crate::snapshot::ethtool::{Driver, Ethtool, FlowType, HashFields, HashFunction, Rss};
use crate::snapshot::flow::{Flow, FlowSpec, Outer};

/// RSS settings of a netdev.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SceneRss {
    /// Number of entries of the indirection table. The entries lead to the queues in turn.
    pub entries: usize,
    /// The table, if its entries do not lead to the queues in turn.
    pub table: Vec<u32>,
    /// The hash key, if the driver shows it.
    pub key: Option<Key>,
    /// Hashed fields per flow type, if the driver reports them.
    pub fields: BTreeMap<FlowType, HashFields>,
}

impl SceneRss {
    pub(super) fn ethtool(&self, driver: &str, queues: u32) -> Ethtool {
        let table = if self.table.is_empty() {
            Table::equal(self.entries, queues).0
        } else {
            self.table.clone()
        };
        let rss = Rss {
            function: Some(HashFunction::Toeplitz),
            key: self.key.clone().map(|key| key.0),
            indirection: table,
            input_xfrm: 0,
        };
        let driver =
            Driver { driver: driver.to_owned(), version: None, fw_version: None, bus_info: None };
        Ethtool {
            driver: Reading::Value(driver),
            rss: Reading::Value(rss),
            rx_rings: Reading::Value(queues),
            flow_hash: self
                .fields
                .iter()
                .map(|(flow, fields)| (*flow, Reading::Value(*fields)))
                .collect(),
            ..Ethtool::unavailable("a scene does not say")
        }
    }
}

/// A group of arriving flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SceneFlow {
    /// Source and destination (`10.0.0.1:40000-10.0.0.2:53/udp`).
    pub ends: Option<FlowSpec>,
    /// The protocol, if `ends` is not given.
    pub outer: Option<Outer>,
    /// Number of flows. Each has the source port after that of the previous one. 0 counts as 1.
    pub count: u16,
    /// The NIC's hash of the first flow.
    pub hash: Option<u32>,
    /// Difference between the hashes of consecutive flows.
    pub hash_step: u32,
    /// The rx queue, if it differs from the table's queue for the hash.
    pub queue: Option<u32>,
    /// Packets per flow.
    pub packets: u64,
    /// The packets are IP fragments.
    pub fragments: bool,
}

impl SceneFlow {
    pub(super) fn flows<'a>(
        &'a self,
        from: &'a Flow,
        table: &'a [u32],
    ) -> impl Iterator<Item = Flow> + 'a {
        (0..self.count.max(1)).map(move |n| {
            let hash =
                self.hash.map(|hash| hash.wrapping_add(self.hash_step.wrapping_mul(n.into())));
            let by_table = || table.get(hash.unwrap_or(0) as usize % table.len().max(1)).copied();
            let ends = self.ends.map(|asked| {
                let mut ends = asked.ends;
                ends.source.set_port(ends.source.port().wrapping_add(n));
                ends
            });
            Flow {
                queue: self.queue.or_else(by_table),
                hash,
                outer: self.outer.or(self.ends.map(|asked| asked.outer)).unwrap_or_default(),
                v6: ends.is_some_and(|ends| ends.target.is_ipv6()),
                fragments: self.fragments,
                ends,
                packets: self.packets,
                bytes: self.packets * 1000,
                ..from.clone()
            }
        })
    }
}
