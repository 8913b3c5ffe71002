//! Reads CPUs and what they share, from `/sys/devices/system/{cpu,node}`.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{CoreKind, Cpu, Node, NodeId, Topology};
use netsilo_model::parse::node_distance::node_distance;
use netsilo_model::parse::{cpu_lists, scalar};

use crate::files::error::ReadError;
use crate::files::root::Root;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// Reads the topology.
pub fn topology(root: &Root) -> Result<Topology, ReadError> {
    let numbered = numbered(&root.unrecorded().list(CPUS)?, "cpu");
    let set = |name: &str| root.optional(&format!("{CPUS}/{name}"), cpu_lists::list);
    let present = set("present")?.unwrap_or_else(|| numbered.iter().copied().map(CpuId).collect());
    let possible = set("possible")?.unwrap_or_else(|| present.clone());
    let online = match set("online")? {
        Some(online) => online,
        None => online_one_by_one(root, &present)?,
    };
    let nodes = nodes(root)?;
    let performance =
        root.optional("/sys/devices/cpu_core/cpus", cpu_lists::list)?.unwrap_or_default();
    let efficiency = efficiency_cpus(root)?;
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
        let read = if online.contains(cpu) { online_cpu(root, cpu)? } else { offline_cpu(cpu) };
        cpus.insert(cpu, Cpu { node, kind, ..read });
    }
    Ok(Topology {
        cpus,
        nr_cpu_ids: possible.or(&present).highest().map_or(0, |cpu| cpu.0 + 1),
        online,
        possible,
        isolated: set("isolated")?.unwrap_or_default(),
        nohz_full: set("nohz_full")?.unwrap_or_default(),
        nodes,
    })
}

/// The efficiency cores of hybrid Intel machines.
///
/// Those in `cpu_lowpower` (6.13 and later) are outside the last-level cache.
fn efficiency_cpus(root: &Root) -> Result<CpuSet, ReadError> {
    let mut cpus = CpuSet::new();
    for pmu in ["cpu_atom", "cpu_lowpower"] {
        cpus = cpus.or(&root
            .optional(&format!("/sys/devices/{pmu}/cpus"), cpu_lists::list)?
            .unwrap_or_default());
    }
    Ok(cpus)
}

/// Kernels before 2.6.29 have no list of online CPUs; each CPU but the first may have a file.
fn online_one_by_one(root: &Root, present: &CpuSet) -> Result<CpuSet, ReadError> {
    let mut online = CpuSet::new();
    for cpu in present.iter() {
        if root.optional(&format!("{CPUS}/cpu{cpu}/online"), scalar::number::<u32>)? != Some(0) {
            online.insert(cpu);
        }
    }
    Ok(online)
}

fn online_cpu(root: &Root, cpu: CpuId) -> Result<Cpu, ReadError> {
    let alone = CpuSet::from_iter([cpu]);
    let shared = |new: &str, old: &str| -> Result<CpuSet, ReadError> {
        for name in [new, old] {
            if let Some(set) =
                list_or_mask(root, &format!("{CPUS}/cpu{cpu}/topology/{name}"), "_list", "")?
            {
                return Ok(set.or(&alone));
            }
        }
        Ok(alone.clone())
    };
    // the newer names exist since 5.3
    let siblings = shared("core_cpus", "thread_siblings")?;
    let package = shared("package_cpus", "core_siblings")?;
    let caches = caches(root, cpu)?;
    let l2 = caches.get(&2).map_or_else(|| siblings.clone(), |set| set.or(&alone));
    // some virtual machines show no cache: assume that the package shares one
    let llc = caches.last_key_value().map_or_else(|| package.clone(), |(_, set)| set.or(&alone));
    let capacity = root.optional(&format!("{CPUS}/cpu{cpu}/cpu_capacity"), scalar::number)?;
    Ok(Cpu { siblings, l2, llc, package, node: None, capacity, kind: CoreKind::Uniform })
}

/// An offline CPU; the kernel does not show what it shares.
fn offline_cpu(cpu: CpuId) -> Cpu {
    let alone = CpuSet::from_iter([cpu]);
    Cpu {
        siblings: alone.clone(),
        l2: alone.clone(),
        llc: alone.clone(),
        package: alone,
        node: None,
        capacity: None,
        kind: CoreKind::Uniform,
    }
}

/// The CPUs under each data or unified cache of a CPU, by level.
fn caches(root: &Root, cpu: CpuId) -> Result<BTreeMap<u32, CpuSet>, ReadError> {
    let dir = format!("{CPUS}/cpu{cpu}/cache");
    let names = match root.unrecorded().list(&dir) {
        Ok(names) => names,
        Err(e) if e.is_absent() => return Ok(BTreeMap::new()),
        Err(e) => return Err(e),
    };
    let mut caches = BTreeMap::new();
    for index in numbered(&names, "index") {
        let index = format!("{dir}/index{index}");
        let Some(level) = root.optional(&format!("{index}/level"), scalar::number)? else {
            continue;
        };
        if level == 1
            || root.optional(&format!("{index}/type"), scalar::word)?.as_deref()
                == Some("Instruction")
        {
            continue;
        }
        if let Some(cpus) = list_or_mask(root, &format!("{index}/shared_cpu"), "_list", "_map")? {
            caches.insert(level, cpus);
        }
    }
    Ok(caches)
}

fn nodes(root: &Root) -> Result<BTreeMap<NodeId, Node>, ReadError> {
    let names = match root.unrecorded().list(NODES) {
        Ok(names) => names,
        Err(e) if e.is_absent() => return Ok(BTreeMap::new()),
        Err(e) => return Err(e),
    };
    let mut nodes = BTreeMap::new();
    for node in numbered(&names, "node") {
        let dir = format!("{NODES}/node{node}");
        let cpus = list_or_mask(root, &format!("{dir}/cpu"), "list", "map")?.unwrap_or_default();
        let distances =
            root.optional(&format!("{dir}/distance"), node_distance)?.unwrap_or_default();
        nodes.insert(NodeId(node), Node { cpus, distances });
    }
    Ok(nodes)
}

/// Reads the list if it exists, else the mask: old kernels have masks only.
fn list_or_mask(
    root: &Root,
    path: &str,
    list: &str,
    mask: &str,
) -> Result<Option<CpuSet>, ReadError> {
    match root.optional(&format!("{path}{list}"), cpu_lists::list)? {
        Some(cpus) => Ok(Some(cpus)),
        None => root.optional(&format!("{path}{mask}"), cpu_lists::mask),
    }
}

/// The numbers after `prefix`, ascending.
pub(crate) fn numbered(names: &[String], prefix: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
