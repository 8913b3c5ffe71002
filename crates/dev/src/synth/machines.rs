//! The machines of the fleet: regular ones, and the real ones of `fixtures/topologies`.

use std::collections::BTreeMap;

use netsilo_model::machine::topology::{Distance, Topology};
use netsilo_model::synthetic::grid::Grid;

/// The topologies that netsilo reads in `fixtures/topologies`, by the names of the archives.
const REAL: &str = include_str!("machines.json");

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The archive's name; for a regular machine, a description.
    pub name: String,
    /// Its CPUs.
    pub topology: Topology,
}

impl Machine {
    /// Two nodes of four cores.
    pub fn eight_cpus() -> Self {
        Self::regular(Grid { nodes: 2, l2s: 4, ..Grid::default() })
    }

    fn regular(grid: Grid) -> Self {
        let Grid { nodes, llcs, l2s, threads, .. } = grid;
        let name = format!("regular-{nodes}n{}l{}c{threads}t", nodes * llcs, nodes * llcs * l2s);
        Self { name, topology: grid.topology() }
    }

    /// Whether some CPUs share no last-level cache. Otherwise no queue can be far from its reader.
    fn has_distances(&self) -> bool {
        let Topology { online, .. } = &self.topology;
        let Some(first) = online.lowest() else { return false };
        online.iter().any(|cpu| self.topology.distance(first, cpu) > Distance::Llc)
    }
}

/// All machines of the fleet. Fails if the embedded file is damaged.
pub fn machines() -> serde_json::Result<Vec<Machine>> {
    let grids = [
        Grid { llcs: 2, l2s: 4, threads: 2, siblings_apart: true, ..Grid::default() },
        Grid { nodes: 2, l2s: 8, threads: 2, siblings_apart: true, ..Grid::default() },
        Grid { nodes: 2, llcs: 2, l2s: 8, threads: 2, ..Grid::default() },
    ];
    let real: BTreeMap<String, Topology> = serde_json::from_str(REAL)?;
    let real = real.into_iter().map(|(name, topology)| Machine { name, topology });
    let regular = grids.map(Machine::regular).into_iter();
    Ok([Machine::eight_cpus()]
        .into_iter()
        .chain(regular)
        .chain(real.filter(Machine::has_distances))
        .collect())
}
