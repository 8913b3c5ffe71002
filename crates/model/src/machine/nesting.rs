//! Makes the shared levels that a kernel shows consistent: cores lie within level 2 caches, these
//! within last-level caches, these within nodes, and each level is a partition of the CPUs.
//!
//! Firmware and hypervisors describe levels for some CPUs only, or contradict themselves. Two CPUs
//! share a level if either of them says so, or if they share an inner level. A last-level cache
//! that is divided among nodes (sub-NUMA clustering) counts as one cache per node.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::cpuset::{CpuId, CpuSet, MAX_CPUS};
use crate::machine::topology::{Cpu, NodeId, Topology};

impl Topology {
    /// Makes the levels of the online CPUs partitions that nest.
    ///
    /// If no CPU describes the last-level cache of a CPU, it is guessed: the CPU shares it with the
    /// other undescribed CPUs of its package and node.
    pub fn nested(mut self) -> Self {
        let online: Vec<CpuId> =
            self.cpus.keys().copied().filter(|cpu| self.online.contains(*cpu)).collect();
        let mut together = Together::default();
        let cores = together.join(&self, &online, |cpu| &cpu.siblings);
        let l2s = together.join(&self, &online, |cpu| &cpu.l2);
        let llcs = together.join(&self, &online, |cpu| &cpu.llc);
        let packages = together.join(&self, &online, |cpu| &cpu.package);
        self.share_nodes(&l2s, &llcs);
        let guessed: BTreeSet<CpuId> = llcs
            .values()
            .filter(|llc| llc.iter().all(|cpu| self.cpus[&cpu].llc_is_guess))
            .flat_map(CpuSet::iter)
            .collect();
        let node = |cpu: CpuId| self.cpus[&cpu].node;
        let nested = |cpu: CpuId| {
            let is_guess = guessed.contains(&cpu);
            let within = if is_guess { &packages[&cpu] } else { &llcs[&cpu] };
            let same =
                |other: &CpuId| node(*other) == node(cpu) && guessed.contains(other) == is_guess;
            let llc = within.iter().filter(same).collect();
            (cpu, llc, is_guess)
        };
        let nested: Vec<(CpuId, CpuSet, bool)> = online.iter().copied().map(nested).collect();
        for (id, llc, llc_is_guess) in nested {
            let Some(cpu) = self.cpus.get_mut(&id) else { continue };
            let (siblings, l2) = (cores[&id].clone(), l2s[&id].clone());
            let package = packages[&id].clone();
            *cpu = Cpu { siblings, l2, llc, package, llc_is_guess, ..*cpu };
        }
        self
    }

    /// Puts all CPUs of a level 2 cache into one node. Puts CPUs without a node into the node of
    /// their last-level cache, if there is only one. Afterwards each CPU is in at most one node.
    fn share_nodes(&mut self, l2s: &BTreeMap<CpuId, CpuSet>, llcs: &BTreeMap<CpuId, CpuSet>) {
        let first = |cpus: &CpuSet| cpus.iter().find_map(|cpu| self.cpus[&cpu].node);
        let by_l2: BTreeMap<CpuId, Option<NodeId>> =
            l2s.iter().map(|(cpu, l2)| (*cpu, first(l2))).collect();
        let only = |cpus: &CpuSet| {
            let nodes: BTreeSet<NodeId> = cpus.iter().filter_map(|cpu| by_l2[&cpu]).collect();
            nodes.first().copied().filter(|_| nodes.len() == 1)
        };
        for (cpu, node) in &by_l2 {
            if let Some(known) = self.cpus.get_mut(cpu) {
                known.node = node.or_else(|| only(&llcs[cpu]));
            }
        }
        for (id, node) in &mut self.nodes {
            let members = self.cpus.iter().filter(|(_, cpu)| cpu.node == Some(*id));
            node.cpus = members.map(|(cpu, _)| *cpu).collect();
        }
    }
}

/// Groups of CPUs that only grow. For each CPU number it has a lower CPU of the same group, or the
/// CPU itself.
#[derive(Default)]
struct Together(Vec<u32>);

impl Together {
    /// Joins each CPU with the online ones of its set. Returns the resulting group of each.
    fn join(
        &mut self,
        topology: &Topology,
        online: &[CpuId],
        set: impl Fn(&Cpu) -> &CpuSet,
    ) -> BTreeMap<CpuId, CpuSet> {
        let count = online.last().map_or(0, |cpu| cpu.0.min(MAX_CPUS) + 1);
        self.0.extend(self.0.len() as u32..count);
        for cpu in online {
            for other in set(&topology.cpus[cpu]).iter() {
                if topology.online.contains(other) && topology.cpus.contains_key(&other) {
                    let (a, b) = (self.lowest(cpu.0), self.lowest(other.0));
                    self.0[a.max(b) as usize] = a.min(b);
                }
            }
        }
        let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in online {
            groups.entry(self.lowest(cpu.0)).or_default().insert(*cpu);
        }
        online.iter().map(|cpu| (*cpu, groups[&self.lowest(cpu.0)].clone())).collect()
    }

    fn lowest(&mut self, cpu: u32) -> u32 {
        let mut at = cpu;
        while self.0[at as usize] != at {
            // Halves the path, so that later searches are short.
            self.0[at as usize] = self.0[self.0[at as usize] as usize];
            at = self.0[at as usize];
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::topology::{Distance, Node};
    use crate::synthetic::grid::Grid;

    fn list(text: &str) -> CpuSet {
        CpuSet::parse_list(text).unwrap()
    }

    /// Two nodes of four CPUs each, in one package.
    fn two_nodes() -> Topology {
        let mut topology = Grid { nodes: 2, l2s: 4, ..Grid::default() }.topology();
        topology.cpus.values_mut().for_each(|cpu| cpu.package = list("0-7"));
        topology
    }

    #[test]
    fn a_cache_across_nodes_counts_as_one_per_node() {
        let mut topology = two_nodes();
        topology.cpus.values_mut().for_each(|cpu| cpu.llc = list("0-7"));
        let topology = topology.nested();
        assert_eq!(topology.llc_groups(), [list("0-3"), list("4-7")]);
        assert_eq!(topology.distance(CpuId(0), CpuId(1)), Distance::Llc);
        assert_eq!(topology.distance(CpuId(0), CpuId(4)), Distance::Remote);
    }

    #[test]
    fn without_caches_a_nodes_cpus_are_grouped_by_a_guess_at_distance_node() {
        let mut topology = two_nodes();
        for (id, cpu) in &mut topology.cpus {
            (cpu.llc, cpu.llc_is_guess) = (CpuSet::from_cpu(*id), true);
        }
        let topology = topology.nested();
        assert_eq!(topology.llc_groups(), [list("0-3"), list("4-7")]);
        assert!(topology.cpus.values().all(|cpu| cpu.llc_is_guess));
        assert_eq!(topology.distance(CpuId(0), CpuId(1)), Distance::Node);
        assert_eq!(topology.distance(CpuId(1), CpuId(4)), Distance::Remote);
    }

    #[test]
    fn what_one_cpu_says_holds_for_the_other_and_for_the_outer_levels() {
        let mut topology = two_nodes();
        let alone = |id: u32| CpuSet::from_cpu(CpuId(id));
        for id in 0..8 {
            let cpu = topology.cpus.get_mut(&CpuId(id)).unwrap();
            (cpu.siblings, cpu.l2, cpu.llc) = (alone(id), alone(id), alone(id));
            cpu.llc_is_guess = id > 2;
        }
        topology.cpus.get_mut(&CpuId(0)).unwrap().siblings = list("0-1");
        topology.cpus.get_mut(&CpuId(2)).unwrap().llc = list("1-3");
        let topology = topology.nested();
        let cpu = |id| &topology.cpus[&CpuId(id)];
        assert_eq!(
            (&cpu(1).siblings, &cpu(1).l2, &cpu(1).llc),
            (&list("0-1"), &list("0-1"), &list("0-3"))
        );
        assert!(!cpu(3).llc_is_guess && cpu(4).llc_is_guess);
        assert_eq!(topology.distance(CpuId(0), CpuId(3)), topology.distance(CpuId(3), CpuId(0)));
        assert_eq!(topology.distance(CpuId(0), CpuId(3)), Distance::Llc);
    }

    #[test]
    fn a_cpu_is_in_the_node_of_its_core_and_in_no_other() {
        let mut topology = Grid { nodes: 2, l2s: 2, threads: 2, ..Grid::default() }.topology();
        topology.cpus.get_mut(&CpuId(1)).unwrap().node = None;
        topology.cpus.get_mut(&CpuId(3)).unwrap().node = Some(NodeId(1));
        topology.nodes.insert(NodeId(2), Node { cpus: list("0-7"), distances: Vec::new() });
        let topology = topology.nested();
        let nodes: Vec<String> =
            topology.nodes.values().map(|node| node.cpus.to_string()).collect();
        assert_eq!(nodes, ["0-3", "4-7", ""]);
        assert_eq!(topology.nodes_with_cpus().count(), 2);
    }

    #[test]
    fn a_regular_machine_stays_as_it_is() {
        let regular =
            Grid { nodes: 2, llcs: 2, l2s: 2, cores: 2, threads: 2, siblings_apart: true };
        assert_eq!(regular.topology().nested(), regular.topology());
    }
}
