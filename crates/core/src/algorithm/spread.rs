//! One queue per core, on the device's node first, spread evenly over its caches; SMT siblings when the cores run out.
//!
//! It looks at neither traffic nor consumers, so the same machine gets the same placement whatever it is doing.

use super::{Floor, Room, Suggestion, Vector};
use crate::cpuset::CpuId;

pub(super) fn suggest(room: &Room<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let mut floor = Floor::new(room);
    let mut suggestions = Vec::with_capacity(vectors.len());
    for vector in vectors {
        let Some(cpu) = place(vector, &floor) else {
            suggestions.push(Suggestion::Leave("no cpu is allowed".into()));
            continue;
        };
        suggestions.push(suggestion(vector, cpu, &floor));
        floor.put(cpu, vector.load);
    }
    suggestions
}

/// The CPU with fewest queues, nearest to the device, then with fewest on its core and its caches.
fn place(vector: &Vector, floor: &Floor<'_>) -> Option<CpuId> {
    let topology = floor.room.topology;
    let fewest = |cpu: CpuId| (floor.queues_at(cpu), distance(vector, floor, cpu));
    let least = floor.room.pool.iter().map(fewest).min()?;
    let shared = |cpu: CpuId| {
        let Some(cpu) = topology.cpus.get(&cpu) else { return (0, 0, 0) };
        (floor.queues_on(&cpu.siblings), floor.queues_on(&cpu.llc), floor.queues_on(&cpu.l2))
    };
    let rank = |cpu: &CpuId| (shared(*cpu), floor.is_slow(*cpu), vector.present != Some(*cpu), *cpu);
    floor.room.pool.iter().filter(|cpu| fewest(*cpu) == least).min_by_key(rank)
}

/// Distance of the CPU's node from the device's (10 is local); a device without a node is at home everywhere.
fn distance(vector: &Vector, floor: &Floor<'_>, cpu: CpuId) -> u32 {
    const LOCAL: u32 = 10;
    const FAR: u32 = 255;
    let topology = floor.room.topology;
    let (Some(device), Some(node)) = (vector.node, topology.cpus.get(&cpu).and_then(|cpu| cpu.node)) else {
        return LOCAL;
    };
    let place = topology.nodes.keys().position(|known| *known == node);
    let told = || topology.nodes.get(&device)?.distances.get(place?).copied();
    if device == node { LOCAL } else { told().unwrap_or(FAR) }
}

fn suggestion(vector: &Vector, cpu: CpuId, floor: &Floor<'_>) -> Suggestion {
    let core = match floor.queues_on(&floor.core(cpu)) {
        0 => "a core of its own".to_owned(),
        others => format!(
            "a core shared with {}: there are more queues than cores",
            crate::notes::plural(others, "other queue")
        ),
    };
    let node = match (vector.node, floor.room.topology.cpus.get(&cpu).and_then(|cpu| cpu.node)) {
        (Some(device), Some(node)) if device == node => format!(", on the device's node {node}"),
        (Some(device), Some(node)) => format!(", on node {node}: the device's node {device} has no cpu left"),
        _ => String::new(),
    };
    match vector.present == Some(cpu) {
        true => Suggestion::Keep(cpu, format!("already on {core}{node}")),
        false => Suggestion::Move(cpu, format!("{core}{node}")),
    }
}
