//! Topologies of real machines (from the hwloc project, `fixtures/topologies/COPYING.hwloc`),
//! compared with lstopo's output.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{Cpu, Distance, Topology};

use netsilo_dev::synth::hwloc::{fixtures, read};

/// Numbers of packages, last-level caches, L2 caches, cores, CPUs and nodes.
#[derive(Debug, PartialEq)]
struct Counts {
    packages: usize,
    llcs: usize,
    l2s: usize,
    cores: usize,
    cpus: usize,
    nodes: usize,
}

fn counted(topology: &Topology) -> Counts {
    let distinct = |set: fn(&Cpu) -> &CpuSet| {
        let online = topology.cpus.iter().filter(|(cpu, _)| topology.online.contains(**cpu));
        online.map(|(_, cpu)| set(cpu).clone()).collect::<BTreeSet<_>>().len()
    };
    Counts {
        packages: distinct(|cpu| &cpu.package),
        llcs: distinct(|cpu| &cpu.llc),
        l2s: distinct(|cpu| &cpu.l2),
        cores: distinct(|cpu| &cpu.siblings),
        cpus: topology.online.len(),
        // lstopo shows a machine without nodes as one node
        nodes: topology.nodes.len().max(1),
    }
}

/// The summary at the end of lstopo's console output, or the objects of its XML.
fn lstopo(name: &str) -> Counts {
    let console = fs::read_to_string(fixtures().join(format!("{name}.console")));
    let xml = fs::read_to_string(fixtures().join(format!("{name}.xml"))).unwrap_or_default();
    let count = |kind: &str| match &console {
        Ok(text) => text
            .lines()
            .filter_map(|line| {
                line.trim_start()
                    .to_lowercase()
                    .strip_prefix("special ")
                    .map(str::to_owned)
                    .or(Some(line.trim().to_lowercase()))
            })
            .filter_map(|line| {
                line.strip_prefix("depth ")?.split_once(':').map(|(_, rest)| rest.to_owned())
            })
            .find_map(|rest| {
                let mut words = rest.split_whitespace();
                let count = words.next()?.parse().ok()?;
                (words.next()? == kind.to_lowercase()).then_some(count)
            })
            .unwrap_or(0),
        Err(_) => xml.matches(&format!("type=\"{kind}\"")).count(),
    };
    let (l2s, l3s) = (count("L2Cache"), count("L3Cache"));
    Counts {
        packages: count("Package"),
        llcs: if l3s > 0 { l3s } else { l2s },
        l2s,
        cores: count("Core"),
        cpus: count("PU"),
        nodes: count("NUMANode"),
    }
}

#[test]
fn counts_are_those_of_lstopo() {
    for name in [
        "128arm-2pa2n8cluster4co",
        "16em64t-4s2c2t-offlines",
        "20em64t-hybrid-1p6c2t+2ca4co1t",
        "256ppc-8n8s4t",
        "48amd64-4pa2n6c-sparse",
        "2i386-2t-hugepagesizecount",
        "nvidia-dgx-gb10",
    ] {
        assert_eq!(counted(&read(name).unwrap()), lstopo(name), "{name}");
    }
}

#[test]
fn wrong_node_numbers_of_firmware_do_not_affect_the_rest() {
    let (ours, theirs) =
        (counted(&read("8em64t-2s2ca2c-buggynuma").unwrap()), lstopo("8em64t-2s2ca2c-buggynuma"));
    // lstopo drops the overlapping nodes
    assert_eq!(Counts { nodes: theirs.nodes, ..ours }, theirs);
}

#[test]
fn offline_cpus_are_present_with_unknown_sharing() {
    let read = read("16em64t-4s2c2t-offlines").unwrap();
    let offline = CpuSet::parse_mask("6024").unwrap();
    assert_eq!(read.possible.minus(&read.online), offline);
    for cpu in offline.iter() {
        assert_eq!(read.cpus[&cpu].siblings, CpuSet::from_iter([cpu]));
    }
    assert_eq!(read.distance(CpuId(0), CpuId(8)), Distance::Smt);
    assert_eq!(read.distance(CpuId(0), CpuId(4)), Distance::Llc);
}

#[test]
fn slow_cores_of_hybrid_machines_share_an_l2() {
    let hybrid = read("20em64t-hybrid-1p6c2t+2ca4co1t").unwrap();
    let four =
        hybrid.cpus.values().filter(|cpu| cpu.l2.len() == 4 && cpu.siblings.len() == 1).count();
    assert_eq!(four, 8);
    let gb10 = read("nvidia-dgx-gb10").unwrap();
    let capacities: BTreeSet<_> = gb10.cpus.values().filter_map(|cpu| cpu.capacity).collect();
    assert!(capacities.len() > 1 && capacities.contains(&1024), "{capacities:?}");
}

#[test]
fn distances_between_nodes_are_read() {
    let sparse = read("48amd64-4pa2n6c-sparse").unwrap();
    for (rank, node) in sparse.nodes.values().enumerate() {
        assert_eq!(node.distances.len(), 8);
        assert_eq!(node.distances[rank], 10);
    }
}
