//! Decodes the table of `bpf/drops.bpf.c`: the BTF of the kernel and its modules has the names of
//! the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use netsilo_model::parse::btf;
use netsilo_model::snapshot::drops::DroppedPackets;

use crate::bpf::cgroup::Cgroups;
use crate::bpf::decode::halves;
use crate::bpf::functions::Functions;
use crate::bpf::layout;
use crate::bpf::table::Entry;

/// The names that were needed so far.
#[derive(Debug, Default)]
pub(crate) struct DropNames {
    reasons: BTreeMap<u32, String>,
    /// Reasons that were looked for.
    searched: BTreeSet<u32>,
}

/// The BTF of the kernel (`vmlinux`) and of each module.
const BTF: &str = "/sys/kernel/btf";

/// Larger reasons are those of subsystems (`enum skb_drop_reason_subsys`, 6.4).
const LAST_OF_CORE: u32 = 0xffff;

impl DropNames {
    /// The dropped packets, most packets first.
    pub(crate) fn drops(
        &mut self,
        entries: Vec<Entry>,
        cgroups: &Cgroups,
        functions: &mut Functions,
    ) -> Vec<DroppedPackets> {
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
        functions.learn(all.keys().map(|key| key[layout::DROP_PLACE]).collect());
        self.learn_reasons(
            all.keys().map(|key| halves(key[layout::DROP_REASON_ETHERTYPE]).0).collect(),
        );
        let mut drops: Vec<DroppedPackets> =
            all.into_values().map(|it| self.named(it, cgroups, functions)).collect();
        drops.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.cmp(b)));
        drops
    }

    fn named(&self, entry: Entry, cgroups: &Cgroups, functions: &Functions) -> DroppedPackets {
        let (reason, ethertype) = halves(entry.key[layout::DROP_REASON_ETHERTYPE]);
        let (ifindex, netns) = halves(entry.key[layout::DROP_IFINDEX_NETNS]);
        let port = entry.key[layout::DROP_PORT];
        let symbol = functions.get(entry.key[layout::DROP_PLACE]);
        DroppedPackets {
            function: symbol.map(|it| it.name.clone()).unwrap_or_default(),
            module: symbol.and_then(|it| it.module.clone()),
            reason: self
                .reasons
                .get(&reason)
                .cloned()
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

    /// Finds the names of these reasons: those of the kernel (5.17), and those of modules only if
    /// one of theirs is among them.
    fn learn_reasons(&mut self, reasons: BTreeSet<u32>) {
        let new: Vec<u32> =
            reasons.into_iter().filter(|it| *it != 0 && self.searched.insert(*it)).collect();
        let is_missing = |known: &BTreeMap<u32, String>, least| {
            new.iter().any(|it| *it > least && !known.contains_key(it))
        };
        if !is_missing(&self.reasons, 0) {
            return;
        }
        let vmlinux = fs::read(format!("{BTF}/vmlinux")).unwrap_or_default();
        self.reasons.extend(named_reasons(&vmlinux, None));
        if !is_missing(&self.reasons, LAST_OF_CORE) {
            return;
        }
        let modules = fs::read_dir(BTF).into_iter().flatten().flatten();
        for module in modules.filter(|it| it.file_name() != "vmlinux") {
            let of_module = fs::read(module.path()).unwrap_or_default();
            self.reasons.extend(named_reasons(&of_module, Some(&vmlinux)));
        }
    }
}

/// The reasons of a BTF by number, without the prefix of the kernel's own. `__RX_DROP_UNUSABLE`
/// marks where a list begins.
fn named_reasons(btf: &[u8], base: Option<&[u8]>) -> BTreeMap<u32, String> {
    let values = btf::enum_values(btf, base, "drop_reason").unwrap_or_default();
    let own = |(number, name): (u32, String)| {
        let short = name.strip_prefix("SKB_DROP_REASON_").unwrap_or(&name).to_owned();
        let is_known = name.starts_with("SKB_") || number > LAST_OF_CORE && !name.starts_with('_');
        is_known.then_some((number, short))
    };
    values.into_iter().filter_map(own).collect()
}
