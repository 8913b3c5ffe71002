//! Reads CPUs and what they share, from `/sys/devices/system/{cpu,node}`.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{CoreKind, Cpu, Node, NodeId, Topology};
use netsilo_model::parse::node_distance::node_distance;
use netsilo_model::parse::{cpu_lists, scalar};

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::cpu_owners::cpu_owners;
use crate::read::gaps::Notes;
use crate::read::partitions::partitions;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// Reads the topology.
///
/// Fails if the CPUs themselves are not known. If a level cannot be read, the CPU shares that level
/// with no other CPU.
pub fn topology(root: &Root) -> Result<Topology, ReadError> {
    let notes = Notes::new(root);
    let topology = noted(&notes)?;
    notes.finish()?;
    Ok(topology)
}

/// The online CPUs, as listed by the kernel.
pub(crate) fn online(root: &Root) -> Result<Option<CpuSet>, ReadError> {
    root.optional(&format!("{CPUS}/online"), cpu_lists::list)
}

/// The CPUs that may ever be online.
pub fn possible(root: &Root) -> Result<CpuSet, ReadError> {
    let listed = root.optional(&format!("{CPUS}/possible"), cpu_lists::list)?;
    listed.map_or_else(|| Ok(topology(root)?.possible), Ok)
}

/// The same as [`topology`]; what could not be read is recorded as gaps.
pub(crate) fn noted(notes: &Notes<'_>) -> Result<Topology, ReadError> {
    let root = notes.root;
    let numbered = numbered(&root.unrecorded().list(CPUS)?, "cpu");
    let set = |name: &str| root.optional(&format!("{CPUS}/{name}"), cpu_lists::list);
    let present = set("present")?.unwrap_or_else(|| numbered.iter().copied().map(CpuId).collect());
    let possible = set("possible")?.unwrap_or_else(|| present.clone());
    let online = set("online")?.unwrap_or_else(|| online_one_by_one(notes, &present));
    let nodes = nodes(notes);
    let advisory = |path: &str| notes.get(path, cpu_lists::list).unwrap_or_default();
    let performance = advisory("/sys/devices/cpu_core/cpus");
    // CPUs in `cpu_lowpower` (6.13 and later) are outside the last-level cache.
    let efficiency =
        advisory("/sys/devices/cpu_atom/cpus").or(&advisory("/sys/devices/cpu_lowpower/cpus"));
    let mut read: BTreeMap<CpuId, Cpu> = BTreeMap::new();
    for cpu in present.and(&online).iter() {
        if !read.contains_key(&cpu) {
            let core = online_cpu(notes, cpu, &nodes);
            // The threads of a core share all that it shares.
            for thread in core.siblings.and(&online).iter() {
                read.entry(thread).or_insert_with(|| core.clone());
            }
        }
    }
    let mut cpus = BTreeMap::new();
    for cpu in present.iter() {
        let kind = if performance.contains(cpu) && !efficiency.is_empty() {
            CoreKind::Performance
        } else if efficiency.contains(cpu) {
            CoreKind::Efficiency
        } else {
            CoreKind::Uniform
        };
        let node = nodes.iter().find(|(_, node)| node.cpus.contains(cpu)).map(|(id, _)| *id);
        let read = read.remove(&cpu).unwrap_or_else(|| alone(cpu));
        cpus.insert(cpu, Cpu { node, kind, ..read });
    }
    let partitions = partitions(notes, &online);
    let mut topology = Topology {
        cpus,
        nr_cpu_ids: possible.or(&present).highest().map_or(0, |cpu| cpu.0 + 1),
        online,
        possible,
        isolated: advisory(&format!("{CPUS}/isolated")),
        nohz_full: advisory(&format!("{CPUS}/nohz_full")),
        isolated_partitions: partitions.isolated,
        cpu_owners: Vec::new(),
        nodes,
    }
    .nested();
    topology.cpu_owners = cpu_owners(root, &topology, partitions.owned);
    Ok(topology)
}

/// Kernels before 2.6.29 have no list of online CPUs. Each CPU except the first may have a file.
fn online_one_by_one(notes: &Notes<'_>, present: &CpuSet) -> CpuSet {
    let is_online = |cpu: &CpuId| {
        let path = format!("{CPUS}/cpu{cpu}/online");
        match notes.get(&path, scalar::word).as_deref() {
            Some("0") => false,
            None | Some("1") => true,
            Some(other) => {
                notes.gap(path, format!("neither 0 nor 1 but {other:?}: assumed online"));
                true
            }
        }
    };
    present.iter().filter(is_online).collect()
}

fn online_cpu(notes: &Notes<'_>, cpu: CpuId, nodes: &BTreeMap<NodeId, Node>) -> Cpu {
    let alone = alone(cpu);
    let set = |set: Option<CpuSet>| alone.siblings.or(&set.unwrap_or_default());
    let topology =
        |name| list_or_mask(notes, &format!("{CPUS}/cpu{cpu}/topology/{name}"), "_list", "");
    let package = set(topology("package_cpus").or_else(|| topology("core_siblings")));
    let mut caches = caches(notes, cpu);
    // Where firmware describes no caches, the kernel of arm64 says that all CPUs share one.
    let is_in_a_node = |cpus: &CpuSet| nodes.values().any(|node| cpus.is_subset(&node.cpus));
    caches.retain(|_, cpus| cpus.is_subset(&package) || nodes.is_empty() || is_in_a_node(cpus));
    let last = caches.values().next_back().filter(|last| !last.is_empty());
    let cluster = || topology("cluster_cpus").filter(|it| *it != package && it.is_subset(&package));
    Cpu {
        // The newer names exist since 5.3.
        siblings: set(topology("core_cpus").or_else(|| topology("thread_siblings"))),
        l2: set(caches.get(&2).cloned().or_else(cluster)),
        llc: set(last.cloned()),
        llc_is_guess: last.is_none(),
        package,
        capacity: notes.get(&format!("{CPUS}/cpu{cpu}/cpu_capacity"), scalar::number),
        ..alone
    }
}

/// A CPU that shares nothing. This is used for an offline CPU, because the kernel does not show
/// what it shares.
fn alone(cpu: CpuId) -> Cpu {
    let alone = CpuSet::from_cpu(cpu);
    Cpu {
        siblings: alone.clone(),
        l2: alone.clone(),
        llc: alone.clone(),
        llc_is_guess: true,
        package: alone,
        node: None,
        capacity: None,
        kind: CoreKind::Uniform,
    }
}

/// The CPUs that share each data or unified cache of a CPU, by level. Empty if the kernel lists no
/// caches.
fn caches(notes: &Notes<'_>, cpu: CpuId) -> BTreeMap<u32, CpuSet> {
    let dir = format!("{CPUS}/cpu{cpu}/cache");
    let names = notes.note(notes.root.unrecorded().list(&dir)).unwrap_or_default();
    let mut caches = BTreeMap::new();
    for index in numbered(&names, "index") {
        let index = format!("{dir}/index{index}");
        let Some(level) = notes.get(&format!("{index}/level"), scalar::number) else { continue };
        if level == 1
            || notes.get(&format!("{index}/type"), scalar::word).as_deref() == Some("Instruction")
        {
            continue;
        }
        let cpus = list_or_mask(notes, &format!("{index}/shared_cpu"), "_list", "_map");
        caches.insert(level, cpus.unwrap_or_default());
    }
    caches
}

fn nodes(notes: &Notes<'_>) -> BTreeMap<NodeId, Node> {
    let names = notes.note(notes.root.unrecorded().list(NODES)).unwrap_or_default();
    let read = |node: u32| {
        let dir = format!("{NODES}/node{node}");
        let cpus = list_or_mask(notes, &format!("{dir}/cpu"), "list", "map").unwrap_or_default();
        let distances = notes.get(&format!("{dir}/distance"), node_distance).unwrap_or_default();
        (NodeId(node), Node { cpus, distances })
    };
    numbered(&names, "node").into_iter().map(read).collect()
}

/// Reads the list if it exists, else the mask. Old kernels have only masks.
fn list_or_mask(notes: &Notes<'_>, path: &str, list: &str, mask: &str) -> Option<CpuSet> {
    let read = |suffix, parse: fn(&str) -> _| notes.get(&format!("{path}{suffix}"), parse);
    read(list, cpu_lists::list).or_else(|| read(mask, cpu_lists::mask))
}

/// The numbers after `prefix`, ascending.
pub(crate) fn numbered(names: &[String], prefix: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two packages and nodes of four CPUs, in clusters of two, where firmware describes no cache.
    #[test]
    fn a_cache_across_packages_and_nodes_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join("sys/devices/system").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        write("cpu/online", "0-7");
        for (node, cpus) in ["0-3", "4-7"].into_iter().enumerate() {
            write(&format!("node/node{node}/cpulist"), cpus);
        }
        for cpu in 0..8 {
            let of = |size: u32| format!("{}-{}", cpu / size * size, cpu / size * size + size - 1);
            let files = [
                ("topology/package_cpus_list", of(4)),
                ("topology/cluster_cpus_list", of(2)),
                ("cache/index2/level", "2".to_owned()),
                ("cache/index2/type", "Unified".to_owned()),
                ("cache/index2/shared_cpu_list", of(8)),
            ];
            files.iter().for_each(|(file, text)| write(&format!("cpu/cpu{cpu}/{file}"), text));
        }
        let read = topology(&Root::at(dir.path()).unwrap()).unwrap();
        let cpu = &read.cpus[&CpuId(5)];
        let [l2, llc] = [&cpu.l2, &cpu.llc].map(CpuSet::to_string);
        assert_eq!((l2.as_str(), llc.as_str(), cpu.llc_is_guess), ("4-5", "4-7", true));
        assert_eq!(cpu.node, Some(NodeId(1)));
        write("node/node0/cpulist", "0-7");
        std::fs::remove_dir_all(dir.path().join("sys/devices/system/node/node1")).unwrap();
        let read = topology(&Root::at(dir.path()).unwrap()).unwrap();
        let llc = read.cpus[&CpuId(5)].llc.to_string();
        assert_eq!(llc, "0-7", "packages of a virtual machine may share a cache");
    }
}
