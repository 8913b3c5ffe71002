//! CPU topology: core, L2, last-level cache and node of each CPU, and the distance between two
//! CPUs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::cpu_owner::CpuOwner;
use crate::machine::cpuset::{CpuId, CpuSet};

/// A NUMA node, by its kernel number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The CPUs of a machine, and what they share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// One entry per CPU that exists. Offline CPUs have what the kernel still reports.
    pub cpus: BTreeMap<CpuId, Cpu>,
    /// `nr_cpu_ids`: the width of the kernel's masks (highest possible CPU + 1).
    pub nr_cpu_ids: u32,
    /// CPUs that are online now.
    pub online: CpuSet,
    /// CPUs that can ever come online.
    pub possible: CpuSet,
    /// `isolcpus=` (`/sys/devices/system/cpu/isolated`).
    pub isolated: CpuSet,
    /// CPUs of isolated cpuset partitions, which cgroups form at run time. The list from boot never
    /// contains them.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub isolated_partitions: CpuSet,
    /// `nohz_full=` (`/sys/devices/system/cpu/nohz_full`).
    pub nohz_full: CpuSet,
    /// Containers and services that have CPUs for themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_owners: Vec<CpuOwner>,
    /// CPUs and distances of each NUMA node (SLIT; 10 is local). Empty if the kernel shows none.
    pub nodes: BTreeMap<NodeId, Node>,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Node {
    /// Its CPUs. Empty for a memory-only node.
    pub cpus: CpuSet,
    /// Distance to each online node in ascending order of node number (`node*/distance`).
    pub distances: Vec<u32>,
}

/// One logical CPU.
///
/// Shared levels are stored as sets, not as identifiers, because `core_id` and cache `id` repeat
/// across packages and are missing on some machines. The sets are never empty, because a CPU shares
/// with itself. [`Topology::nested`] makes them nested partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// CPUs of the same core, including itself (`topology/core_cpus_list`).
    pub siblings: CpuSet,
    /// CPUs under the same level 2 data or unified cache, including itself; where the kernel shows
    /// no such cache, CPUs of its cluster.
    pub l2: CpuSet,
    /// CPUs under the same last-level cache, including itself.
    pub llc: CpuSet,
    /// Whether `llc` is a guess because the kernel shows no cache. It then has the CPUs of its
    /// package and node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub llc_is_guess: bool,
    /// CPUs of the same package (socket), including itself.
    pub package: CpuSet,
    /// NUMA node; `None` if the kernel has no NUMA or does not report it.
    pub node: Option<NodeId>,
    /// Relative capacity on asymmetric machines (`cpu_capacity`, 1024 is the fastest).
    pub capacity: Option<u32>,
    /// The kind of core on a hybrid machine.
    pub kind: CoreKind,
}

/// The kind of core on hybrid machines (`/sys/devices/cpu_core/cpus`,
/// `/sys/devices/cpu_atom/cpus`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CoreKind {
    /// All cores are equal, as far as the kernel reports.
    #[default]
    Uniform,
    /// A fast core of a hybrid machine.
    Performance,
    /// A slow core of a hybrid machine.
    Efficiency,
}

/// Another CPU is nearer if its distance sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// The same logical CPU.
    SameCpu,
    /// Another hardware thread of the same core.
    Smt,
    /// Another core under the same level 2 cache.
    L2,
    /// Another core under the same last-level cache.
    Llc,
    /// The same NUMA node (for CPUs in no node, the same package).
    Node,
    /// Another node.
    Remote,
}

impl Distance {
    /// All distances, nearest first.
    pub const ALL: [Self; 6] =
        [Self::SameCpu, Self::Smt, Self::L2, Self::Llc, Self::Node, Self::Remote];

    /// The distance of two different CPUs by the levels that they share.
    #[inline]
    pub fn between(a: &Levels, b: &Levels) -> Self {
        const SHARED: [Distance; 4] = [Distance::Smt, Distance::L2, Distance::Llc, Distance::Node];
        let shared = a.iter().zip(b).position(|(x, y)| x == y);
        shared.map_or(Self::Remote, |level| SHARED[level])
    }

    /// Name in reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::SameCpu => "same cpu",
            Self::Smt => "smt",
            Self::L2 => "l2",
            Self::Llc => "llc",
            Self::Node => "node",
            Self::Remote => "remote",
        }
    }
}

/// Distance of a node from itself (SLIT).
pub const LOCAL: u32 = 10;

/// Numbers of the core, level 2 cache, last-level cache and node of a CPU.
///
/// Two CPUs share a level if they have the same number for it.
pub type Levels = [u32; 4];

impl Cpu {
    /// The numbers of the levels that this CPU, with number `cpu`, shares.
    pub fn levels(&self, cpu: CpuId) -> Levels {
        /// Offset of package numbers. They stand in for the node of CPUs in no node, and must not
        /// collide with node numbers.
        const PACKAGES: u32 = 1 << 16;
        let first = |cpus: &CpuSet| cpus.lowest().unwrap_or(cpu).0;
        let l2 = first(&self.l2);
        let llc = if self.llc_is_guess { l2 } else { first(&self.llc) };
        let node = self
            .node
            .map_or_else(|| PACKAGES.saturating_add(first(&self.package)), |NodeId(node)| node);
        [first(&self.siblings), l2, llc, node]
    }
}

/// Slowdown of an efficiency core if the kernel gives no capacity: an assumption.
const EFFICIENCY_CORE: f64 = 1.6;

/// Capacity of the fastest CPU (`cpu_capacity`).
const FULL_CAPACITY: f64 = 1024.0;

impl Topology {
    /// How many times as long work takes on a CPU as on the fastest one.
    pub fn slowdown(&self, cpu: CpuId) -> f64 {
        match self.cpus.get(&cpu).map(|cpu| (cpu.capacity, cpu.kind)) {
            Some((Some(capacity), _)) if capacity > 0 => {
                (FULL_CAPACITY / f64::from(capacity)).max(1.0)
            }
            Some((_, CoreKind::Efficiency)) => EFFICIENCY_CORE,
            _ => 1.0,
        }
    }

    /// Distance between two CPUs. A CPU outside the topology is remote from all others.
    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        match (self.cpus.get(&a), self.cpus.get(&b)) {
            _ if a == b => Distance::SameCpu,
            (Some(cpu), Some(other)) => Distance::between(&cpu.levels(a), &other.levels(b)),
            _ => Distance::Remote,
        }
    }

    /// Distance of a CPU from a device, by the nodes of both ([`LOCAL`] is local). A device without
    /// a node is local to every CPU; a CPU without a node is remote from every device with one.
    pub fn distance_from_device(&self, device: Option<NodeId>, cpu: CpuId) -> u32 {
        const FAR: u32 = 255;
        let Some(device) = device.filter(|_| !self.nodes.is_empty()) else { return LOCAL };
        let Some(node) = self.cpus.get(&cpu).and_then(|cpu| cpu.node) else { return FAR };
        let rank = self.nodes.keys().position(|known| *known == node);
        let distance = || self.nodes.get(&device)?.distances.get(rank?).copied();
        if device == node { LOCAL } else { distance().unwrap_or(FAR).max(LOCAL + 1) }
    }

    /// The online CPUs of a CPU's node. For a CPU in no node, the CPUs of its package that are in
    /// no node.
    pub fn node_of(&self, cpu: CpuId) -> CpuSet {
        let Some(known) = self.cpus.get(&cpu) else { return CpuSet::new() };
        let in_no_node = |cpu: &CpuId| self.cpus.get(cpu).is_some_and(|cpu| cpu.node.is_none());
        match known.node {
            Some(node) => self.node_cpus(node),
            None => known.package.and(&self.online).iter().filter(in_no_node).collect(),
        }
    }

    /// Isolated or tickless CPUs, which take no work.
    pub fn isolated_or_tickless(&self) -> CpuSet {
        self.dropped_from_rps().or(&self.isolated_partitions)
    }

    /// CPUs that the kernel drops from RPS masks: those isolated at boot, but not those of
    /// partitions (`net/core/net-sysfs.c:rps_cpumask_housekeeping`).
    pub fn dropped_from_rps(&self) -> CpuSet {
        self.isolated.or(&self.nohz_full)
    }

    /// The online CPUs of each last-level cache, in the order of their lowest CPU.
    pub fn llc_groups(&self) -> Vec<CpuSet> {
        let mut groups: Vec<CpuSet> = Vec::new();
        for cpu in self.online.iter().filter(|cpu| self.cpus.contains_key(cpu)) {
            if !groups.iter().any(|group| group.contains(cpu)) {
                groups.push(self.llc_of(cpu));
            }
        }
        groups
    }

    /// Whether the kernel shows no cache that the CPUs of this group share.
    pub fn is_guess(&self, llc: &CpuSet) -> bool {
        llc.lowest().and_then(|cpu| self.cpus.get(&cpu)).is_some_and(|cpu| cpu.llc_is_guess)
    }

    /// The nodes that have CPUs. Nodes with memory only (of a GPU, or CXL) are left out.
    pub fn nodes_with_cpus(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().filter(|(_, node)| !node.cpus.is_empty()).map(|(id, node)| (*id, node))
    }

    /// The online CPUs of a node. None if the node does not exist.
    pub fn node_cpus(&self, node: NodeId) -> CpuSet {
        self.nodes.get(&node).map(|node| node.cpus.and(&self.online)).unwrap_or_default()
    }

    /// The online CPUs under the same last-level cache, without the CPU itself and its SMT
    /// siblings.
    pub fn near(&self, cpu: CpuId) -> CpuSet {
        self.llc_of(cpu).minus(&self.core_of(cpu))
    }

    /// The CPUs of the same core, including the CPU itself.
    pub fn core_of(&self, cpu: CpuId) -> CpuSet {
        self.cpus.get(&cpu).map_or_else(|| CpuSet::from_cpu(cpu), |cpu| cpu.siblings.clone())
    }

    /// The online CPUs under the same last-level cache, including the CPU itself.
    pub fn llc_of(&self, cpu: CpuId) -> CpuSet {
        self.cpus.get(&cpu).map(|cpu| cpu.llc.and(&self.online)).unwrap_or_default()
    }

    /// CPUs that may take work by default: online, not isolated, not tickless, not exclusive to a
    /// container.
    pub fn housekeeping(&self) -> CpuSet {
        self.online.minus(&self.reserved())
    }

    /// The online CPUs that take no work by default.
    pub fn reserved(&self) -> CpuSet {
        self.online.and(&self.isolated_or_tickless().or(&self.exclusive()))
    }

    /// CPUs that belong to one container or service alone.
    pub fn exclusive(&self) -> CpuSet {
        self.cpu_owners.iter().fold(CpuSet::new(), |all, owner| all.or(&owner.cpus))
    }
}
