//! Builds the [`Problem`] that the solver solves: the cost of each CPU for each vector.

use std::collections::BTreeMap;

use netsilo_model::cost::problem::{CpuPlace, Item, Pair, Problem, SECOND_NS};
use netsilo_model::cost::solver;
use netsilo_model::cost::weights::{ByDistance, Costs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{CoreKind, Cpu, Distance, NodeId, Topology};

use crate::place::capacity::Capacity;
use crate::place::vector::Vector;

/// A move must gain at least the sum of three parts; this one is fixed (ns/s): 0.5% of one CPU.
const MOVING_LEAST: f64 = 0.005 * SECOND_NS;
/// Part of the least gain as a share of the vector's load, because loads vary that much between
/// measurements.
const MOVING_LOAD: f64 = 0.10;
/// Part of the least gain as a share of the vector's present cost.
const MOVING_COST: f64 = 0.10;

/// Slowdown of an efficiency core if the kernel gives no capacity: an assumption.
const EFFICIENCY_CORE: f64 = 1.6;

/// Capacity of the fastest CPU (`cpu_capacity`).
const FULL_CAPACITY: f64 = 1024.0;

/// The problem of a host, and the CPU of each of its places.
pub struct Model {
    /// The places, the items and the costs.
    pub problem: Problem,
    /// The CPU of each place.
    pub cpus: Vec<CpuId>,
}

impl Model {
    /// Builds the problem of placing these vectors.
    pub fn new(capacity: &Capacity<'_>, vectors: &[Vector]) -> Self {
        let topology = capacity.topology;
        let cpus: Vec<CpuId> =
            topology.online.iter().filter(|cpu| topology.cpus.contains_key(cpu)).collect();
        let places: Vec<CpuPlace> = cpus.iter().map(|cpu| place(*cpu, capacity)).collect();
        let fixed = Vec::with_capacity(vectors.len() * places.len());
        let mut problem = Problem { places, fixed, ..Problem::default() };
        let ground = Ground::of(&problem.places, &cpus, topology);
        for vector in vectors {
            let home = vector.present.and_then(|cpu| cpus.binary_search(&cpu).ok());
            if vector.quiet().is_some() {
                // A vector without traffic stays where it is.
                let at_home = |place| if Some(place) == home { 0.0 } else { f32::INFINITY };
                problem.fixed.extend((0..cpus.len()).map(at_home));
                problem.items.push(Item { load: vector.load, home, moving: 0.0 });
                continue;
            }
            let first = problem.fixed.len();
            problem.fixed.extend(Row::of(vector, capacity, topology).costs_on(
                &cpus,
                &problem.places,
                &ground,
            ));
            let here = home.map_or(0.0, |home| f64::from(problem.fixed[first + home]));
            let here = if here.is_finite() { here } else { 0.0 };
            let moving = MOVING_LEAST + MOVING_LOAD * vector.load * SECOND_NS + MOVING_COST * here;
            problem.items.push(Item { load: vector.load, home, moving });
        }
        let lines = capacity.costs.lines_per_packet;
        for (from, vector) in vectors.iter().enumerate() {
            let pair = |(to, rate): &(usize, f64)| Pair {
                from,
                to: *to,
                cost: capacity.costs.line_ns.map(|ns| ns * lines * rate),
            };
            problem.pairs.extend(vector.completed_by.iter().map(pair));
        }
        Self { problem, cpus }
    }

    /// Gain of each vector at `at` compared with its present CPU (ns/s), with all others at `at`;
    /// `None` if not known.
    pub fn gains(&self, at: &[Option<CpuId>]) -> Vec<Option<f64>> {
        solver::gains_at(&self.problem, &self.places(at))
    }

    fn places(&self, at: &[Option<CpuId>]) -> Vec<Option<usize>> {
        at.iter().map(|cpu| cpu.and_then(|cpu| self.cpus.binary_search(&cpu).ok())).collect()
    }

    /// Cost of a placement (ns/s); vectors without a place, or on a CPU that is not online, are
    /// left out.
    pub fn cost(&self, at: &[Option<CpuId>]) -> f64 {
        let at = self.places(at);
        let known: Vec<usize> = (0..at.len()).filter(|item| at[*item].is_some()).collect();
        let number = |item: usize| known.binary_search(&item).ok();
        let problem = &self.problem;
        let width = problem.places.len();
        let pair =
            |pair: &Pair| Some(Pair { from: number(pair.from)?, to: number(pair.to)?, ..*pair });
        let part = Problem {
            places: problem.places.clone(),
            items: known.iter().map(|item| problem.items[*item].clone()).collect(),
            fixed: known
                .iter()
                .flat_map(|item| &problem.fixed[item * width..(item + 1) * width])
                .copied()
                .collect(),
            pairs: problem.pairs.iter().filter_map(pair).collect(),
        };
        let places: Vec<usize> = at.iter().flatten().copied().collect();
        part.cost(&places)
    }
}

fn place(cpu: CpuId, capacity: &Capacity<'_>) -> CpuPlace {
    let known = capacity.topology.cpus.get(&cpu);
    // A CPU without data counts as busy.
    let busy = capacity.busy.get(&cpu).copied().unwrap_or(1.0);
    CpuPlace {
        levels: known.map_or([cpu.0; 4], |known| levels(cpu, known)),
        busy,
        slowdown: known.map_or(1.0, slowdown),
    }
}

/// Numbers of the levels that a CPU shares: the lowest CPU of its core and caches, and its node.
fn levels(cpu: CpuId, known: &Cpu) -> [u32; 4] {
    /// Offset of package numbers, which stand in for nodes if the kernel shows none, so that the
    /// two never collide.
    const PACKAGES: u32 = 1 << 16;
    let first = |cpus: &CpuSet| cpus.lowest().unwrap_or(cpu).0;
    let node = known.node.map_or_else(|| PACKAGES + first(&known.package), |NodeId(node)| node);
    [first(&known.siblings), first(&known.l2), first(&known.llc), node]
}

fn slowdown(cpu: &Cpu) -> f64 {
    match (cpu.capacity, cpu.kind) {
        (Some(capacity), _) if capacity > 0 => (FULL_CAPACITY / f64::from(capacity)).max(1.0),
        (_, CoreKind::Efficiency) => EFFICIENCY_CORE,
        _ => 1.0,
    }
}

/// Places grouped by shared level, so that no row looks them up again.
struct Ground {
    /// By level, then by its number.
    sharers: [BTreeMap<u32, Vec<usize>>; 4],
    nodes: Vec<Option<NodeId>>,
}

impl Ground {
    fn of(places: &[CpuPlace], cpus: &[CpuId], topology: &Topology) -> Self {
        let mut sharers: [BTreeMap<u32, Vec<usize>>; 4] = Default::default();
        for (at, place) in places.iter().enumerate() {
            for (level, number) in sharers.iter_mut().zip(place.levels) {
                level.entry(number).or_default().push(at);
            }
        }
        let node = |cpu: &CpuId| topology.cpus.get(cpu).and_then(|known| known.node);
        Self { sharers, nodes: cpus.iter().map(node).collect() }
    }
}

/// The cost of one vector by its place.
struct Row<'a> {
    vector: &'a Vector,
    costs: &'a Costs,
    /// Cost by the level shared with each reader, summed over the readers: on their CPU, on each of
    /// their cores, caches and nodes, and anywhere.
    on: BTreeMap<CpuId, f64>,
    levels: [BTreeMap<u32, f64>; 4],
    anywhere: f64,
    topology: &'a Topology,
}

impl<'a> Row<'a> {
    fn of(vector: &'a Vector, capacity: &Capacity<'a>, topology: &'a Topology) -> Self {
        let costs = capacity.costs;
        let mut row = Self {
            vector,
            costs,
            on: BTreeMap::new(),
            levels: Default::default(),
            anywhere: 0.0,
            topology,
        };
        // With RPS, the protocol and the wakeup run on the CPUs to which packets are handed on.
        let rps_cpus: BTreeMap<CpuId, f64> =
            vector.rps_targets.iter().map(|cpu| (cpu, 1.0)).collect();
        let receivers = if rps_cpus.is_empty() { &vector.read_on } else { &rps_cpus };
        let all: f64 = receivers.values().sum();
        for (cpu, weight) in receivers.iter().filter(|_| all > 0.0) {
            let packets = (vector.packets_per_s - vector.forwarded_per_s).max(0.0) * weight / all;
            row.add(*cpu, &costs.line_ns, packets * costs.lines_per_packet);
            row.add(*cpu, &costs.ipi_ns, vector.wakeups_from(*cpu, weight / all, capacity));
        }
        row
    }

    /// Adds a cost that depends on the distance from one CPU, as differences between levels.
    fn add(&mut self, cpu: CpuId, cost: &ByDistance, times: f64) {
        let Some(known) = self.topology.cpus.get(&cpu) else { return };
        let at = |distance: Distance| cost.at(distance) * times;
        let steps = [Distance::Smt, Distance::L2, Distance::Llc, Distance::Node, Distance::Remote];
        self.anywhere += at(Distance::Remote);
        for ((level, number), step) in
            self.levels.iter_mut().zip(levels(cpu, known)).zip(steps.windows(2))
        {
            *level.entry(number).or_default() += at(step[0]) - at(step[1]);
        }
        *self.on.entry(cpu).or_default() += at(Distance::SameCpu) - at(Distance::Smt);
    }

    fn costs_on(&self, cpus: &[CpuId], places: &[CpuPlace], ground: &Ground) -> Vec<f32> {
        let mut shared = vec![0.0; places.len()];
        for (level, sharers) in self.levels.iter().zip(&ground.sharers) {
            for (number, cost) in level {
                sharers.get(number).into_iter().flatten().for_each(|place| shared[*place] += cost);
            }
        }
        let mut on = vec![0.0; places.len()];
        for (cpu, cost) in &self.on {
            cpus.binary_search(cpu).into_iter().for_each(|place| on[place] = *cost);
        }
        let line = self.costs.line_ns;
        let lines = self.vector.packets_per_s * self.costs.device_lines_per_packet;
        let far = lines * (line.remote - line.llc).max(0.0);
        let cost = |place: usize| {
            if !self.vector.pool.contains(cpus[place]) {
                return f32::INFINITY;
            }
            let nodes = (self.vector.node, ground.nodes[place]);
            let is_far = matches!(nodes, (Some(device), Some(node)) if device != node);
            let readers = self.anywhere + shared[place] + on[place];
            let slow = self.vector.load * (places[place].slowdown - 1.0) * SECOND_NS;
            // Rounding of the summed differences must not make a zero cost negative.
            (readers + if is_far { far } else { 0.0 } + slow).max(0.0) as f32
        };
        (0..places.len()).map(cost).collect()
    }
}

impl Vector {
    /// Wakeups per second of readers that sleep on a CPU: the counted rate, or else one per poll
    /// that finds them asleep.
    fn wakeups_from(&self, cpu: CpuId, share: f64, capacity: &Capacity<'_>) -> f64 {
        if let Some(wakes) = self.wakeups_on.as_ref().filter(|_| self.rps_targets.is_empty()) {
            return wakes.get(&cpu).copied().unwrap_or(0.0);
        }
        let asleep = 1.0 - capacity.busy.get(&cpu).copied().unwrap_or(1.0);
        self.polls_per_s.min(self.packets_per_s) * share * asleep.max(0.0)
    }
}
