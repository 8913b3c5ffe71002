//! Regular machines for tests, golden cases and simulation, given by the number of nodes, caches,
//! cores and threads.

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::topology::{CoreKind, Cpu, Node, NodeId, Topology};

/// A machine in which every unit of one level has equally many units of the next level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grid {
    /// NUMA nodes; each is a package.
    pub nodes: u32,
    /// Last-level caches per node.
    pub llcs: u32,
    /// Level 2 caches per last-level cache.
    pub l2s: u32,
    /// Cores per level 2 cache.
    pub cores: u32,
    /// Hardware threads per core.
    pub threads: u32,
    /// The siblings of a core have numbers far apart (0 and n/2), as with much firmware, instead of
    /// consecutive ones.
    pub siblings_apart: bool,
}

impl Default for Grid {
    fn default() -> Self {
        Self { nodes: 1, llcs: 1, l2s: 1, cores: 1, threads: 1, siblings_apart: false }
    }
}

impl Grid {
    /// Returns the machine's topology. All CPUs are online; none is isolated or tickless.
    pub fn topology(&self) -> Topology {
        let cores = self.nodes * self.llcs * self.l2s * self.cores;
        let all = CpuSet::first(cores * self.threads);
        let core_of =
            |cpu: CpuId| if self.siblings_apart { cpu.0 % cores } else { cpu.0 / self.threads };
        let sharing = |cpu: CpuId, cores_in_group: u32| -> CpuSet {
            all.iter()
                .filter(|other| core_of(*other) / cores_in_group == core_of(cpu) / cores_in_group)
                .collect()
        };
        let (l2, llc) = (self.cores, self.cores * self.l2s);
        let node = llc * self.llcs;
        let cpu = |cpu: CpuId| Cpu {
            siblings: sharing(cpu, 1),
            l2: sharing(cpu, l2),
            llc: sharing(cpu, llc),
            llc_is_guess: false,
            package: sharing(cpu, node),
            node: Some(NodeId(core_of(cpu) / node)),
            capacity: None,
            kind: CoreKind::Uniform,
        };
        let distances =
            |from: u32| (0..self.nodes).map(|to| if from == to { 10 } else { 21 }).collect();
        let cpus_of = |n: u32| all.iter().filter(|cpu| core_of(*cpu) / node == n).collect();
        Topology {
            cpus: all.iter().map(|id| (id, cpu(id))).collect(),
            nr_cpu_ids: cores * self.threads,
            online: all.clone(),
            possible: all.clone(),
            isolated: CpuSet::new(),
            isolated_partitions: CpuSet::new(),
            nohz_full: CpuSet::new(),
            cpu_owners: Vec::new(),
            nodes: (0..self.nodes)
                .map(|n| (NodeId(n), Node { cpus: cpus_of(n), distances: distances(n) }))
                .collect(),
        }
    }
}

impl Topology {
    /// A machine of `sockets` nodes with one last-level cache each, `cores` per socket with a level
    /// 2 cache each, and `threads` per core. Siblings have consecutive numbers.
    pub fn grid(sockets: u32, cores: u32, threads: u32) -> Self {
        Grid { nodes: sockets, l2s: cores, threads, ..Grid::default() }.topology()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::topology::Distance;

    fn list(text: &str) -> CpuSet {
        CpuSet::parse_list(text).unwrap()
    }

    #[test]
    fn distances_grow_from_sibling_to_other_node() {
        let topology =
            Grid { nodes: 2, llcs: 2, l2s: 2, cores: 2, threads: 2, siblings_apart: false }
                .topology();
        let from_0 = |cpu| topology.distance(CpuId(0), CpuId(cpu));
        assert_eq!([0, 1, 2, 4, 8, 16].map(from_0), Distance::ALL);
        assert_eq!(topology.nr_cpu_ids, 32);
    }

    #[test]
    fn siblings_may_be_numbered_apart() {
        let topology =
            Grid { l2s: 4, threads: 2, siblings_apart: true, ..Grid::default() }.topology();
        assert_eq!(topology.cpus[&CpuId(1)].siblings, list("1,5"));
    }

    #[test]
    fn groups_and_neighbours_hold_online_cpus_only() {
        let mut topology = Topology::grid(2, 2, 2);
        topology.online.remove(CpuId(7));
        assert_eq!(topology.llc_groups(), [list("0-3"), list("4-6")]);
        assert_eq!(topology.node_cpus(NodeId(1)), list("4-6"));
        assert_eq!(topology.near(CpuId(5)), list("6"));
        assert_eq!(topology.near(CpuId(99)), CpuSet::new());
    }
}
