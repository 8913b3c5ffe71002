//! A made-up netdev's RSS, and the flows that arrive at it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::change::{Key, Table};
use crate::machine::reading::Part;
use crate::snapshot::ethtool::{Driver, Ethtool, FlowType, HashFields, HashFunction, Rss};
use crate::snapshot::flow::{Asked, Flow, Outer};

/// RSS of a netdev.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SceneRss {
    /// Entries of the indirection table, which leads to the queues by turns.
    pub entries: usize,
    /// The table itself, if it is another one.
    pub table: Vec<u32>,
    /// The hash key, if it is shown.
    pub key: Option<Key>,
    /// What is hashed of each type of flow, where that is told.
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
            driver: Part::Value(driver),
            rss: Part::Value(rss),
            rx_rings: Part::Value(queues),
            flow_hash: self
                .fields
                .iter()
                .map(|(flow, fields)| (*flow, Part::Value(*fields)))
                .collect(),
            ..Ethtool::untold("a scene does not say")
        }
    }
}

/// Flows that arrive.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SceneFlow {
    /// Its ends (`10.0.0.1:40000-10.0.0.2:53/udp`).
    pub ends: Option<Asked>,
    /// What it is, if it has no such ends.
    pub outer: Option<Outer>,
    /// So many of them, each from the source port after that of the one before; none is one.
    pub count: u16,
    /// The NIC's hash of the first.
    pub hash: Option<u32>,
    /// How much the hash of each differs from that of the one before.
    pub hash_step: u32,
    /// The rx queue, if it is not the one that the table has for the hash.
    pub queue: Option<u32>,
    /// Packets of each.
    pub packets: u64,
    /// They are pieces of larger datagrams.
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
