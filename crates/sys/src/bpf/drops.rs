//! Decodes the table of `bpf/drops.bpf.c`: kallsyms has the names of the functions, and the
//! kernel's BTF those of the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use libbpf_rs::btf::{Btf, types::Enum};
use netsilo_model::parse::kallsyms;
use netsilo_model::snapshot::drops::DroppedPackets;

use crate::bpf::cgroup::Cgroups;
use crate::bpf::decode::halves;
use crate::bpf::layout;
use crate::bpf::table::Entry;

/// The names that were needed so far.
#[derive(Debug, Default)]
pub(crate) struct DropNames {
    /// Functions by address; an empty name where kallsyms has none.
    functions: BTreeMap<u64, String>,
    /// `None` until a packet was dropped.
    reasons: Option<BTreeMap<u32, String>>,
}

impl DropNames {
    /// The dropped packets, most packets first.
    pub(crate) fn drops(&mut self, entries: Vec<Entry>, cgroups: &Cgroups) -> Vec<DroppedPackets> {
        let mut all: BTreeMap<[u64; layout::KEY_WORDS], Entry> = BTreeMap::new();
        // Each CPU has its own slots, and sometimes two for one key.
        for entry in entries {
            match all.get_mut(&entry.key) {
                Some(same) => {
                    let sums = same.sums.iter_mut().zip(entry.sums);
                    sums.for_each(|(sum, more)| *sum = sum.saturating_add(more));
                    if same.label.is_empty() {
                        same.label = entry.label;
                    }
                }
                None => _ = all.insert(entry.key, entry),
            }
        }
        self.learn(all.keys().map(|key| key[layout::DROP_PLACE]).collect());
        let mut drops: Vec<DroppedPackets> =
            all.into_values().map(|it| self.named(it, cgroups)).collect();
        drops.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.cmp(b)));
        drops
    }

    fn named(&self, entry: Entry, cgroups: &Cgroups) -> DroppedPackets {
        let (reason, ethertype) = halves(entry.key[layout::DROP_REASON_ETHERTYPE]);
        let (ifindex, netns) = halves(entry.key[layout::DROP_IFINDEX_NETNS]);
        let port = entry.key[layout::DROP_PORT];
        let name = self.reasons.as_ref().and_then(|reasons| reasons.get(&reason)).cloned();
        DroppedPackets {
            function: self
                .functions
                .get(&entry.key[layout::DROP_PLACE])
                .cloned()
                .unwrap_or_default(),
            reason: name
                .unwrap_or_else(|| if reason == 0 { String::new() } else { reason.to_string() }),
            netdev: entry.label,
            ifindex,
            netns,
            ethertype: ethertype as u16,
            protocol: (port >> 16) as u8,
            port: port as u16,
            cgroup: cgroups.path_by_id(entry.key[layout::DROP_CGROUP]),
            sent: port >> layout::DROP_SENT_BIT & 1 == 1,
            packets: entry.sums[0],
            bytes: entry.sums[1],
        }
    }

    /// Finds the names of functions at these addresses, and of all reasons.
    fn learn(&mut self, addresses: BTreeSet<u64>) {
        let new: BTreeSet<u64> =
            addresses.into_iter().filter(|it| !self.functions.contains_key(it)).collect();
        if new.is_empty() {
            return;
        }
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let found = kallsyms::functions(&text, &new).unwrap_or_default();
        self.functions.extend(new.into_iter().map(|address| {
            (address, found.get(&address).map(|it| it.name.clone()).unwrap_or_default())
        }));
        self.reasons.get_or_insert_with(|| reasons().unwrap_or_default());
    }
}

/// The names of `enum skb_drop_reason` by number (5.17), without their prefix.
fn reasons() -> Option<BTreeMap<u32, String>> {
    let btf = Btf::from_vmlinux().ok()?;
    let reasons: Enum<'_> = btf.type_by_name("skb_drop_reason")?;
    let named = reasons.iter().filter_map(|reason| {
        let name = reason.name?.to_str()?;
        let name = name.strip_prefix("SKB_DROP_REASON_").unwrap_or(name);
        Some((u32::try_from(reason.value).ok()?, name.to_owned()))
    });
    Some(named.collect())
}
