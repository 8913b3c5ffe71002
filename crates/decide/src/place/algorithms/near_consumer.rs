//! Near the weighted consumers on the closest shared cache, never on their CPU or its SMT sibling.
//!
//! On the node where most is read, the order of preference is: an idle core on the consumers'
//! last-level cache on which nobody reads; the least busy core there that is not a consumer's; the
//! same two on the rest of the node; else the vector stays, with the reason. Ties prefer a core
//! without a queue, then the same level 2 cache, then the present CPU, then the lowest CPU.
//!
//! A vector stays on its node, and under its cache, while hardly less is read there than elsewhere.
//!
//! **Which vectors move.** First each vector is judged with all others in place. Well placed
//! vectors stay; the others are placed again, the heaviest first. Then vectors that became worse
//! off move on, the lightest first, until all are well placed. A single pass in order of load is
//! not enough: two queues of about the same load would swap places with each measurement.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;
use netsilo_model::machine::words::whole_percent;

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::cpu_loads::{CpuLoads, millionths};
use crate::place::suggestion::Suggestion;
use crate::place::thresholds::{IDLE_BELOW, IDLE_LEAVES, IDLE_STAYS, WORTH_MOVING};
use crate::place::vector::Vector;
use crate::place::words::{consumer_in_words, softirq_in_words};

/// Busy time is compared in steps of this share of a CPU, so that noise does not decide.
const STEP: f64 = 0.05;

/// Thresholds that another place must meet, depending on how the vector got to its place.
struct Threshold {
    /// Another core counts as idle below this.
    idle_below: f64,
    /// The vector's own core counts as idle below this.
    idle_stays: f64,
    /// Another core must be less busy by more than this.
    margin: f64,
}

/// Thresholds for leaving the present place.
const AT_HOME: Threshold =
    Threshold { idle_below: IDLE_LEAVES, idle_stays: IDLE_STAYS, margin: WORTH_MOVING };

/// Thresholds for a vector that was just moved: lower, so that what it could still gain elsewhere
/// is clearly less than what the next plan demands.
const JUST_PUT: Threshold = Threshold {
    idle_below: IDLE_BELOW,
    idle_stays: (IDLE_BELOW + IDLE_STAYS) / 2.0,
    margin: WORTH_MOVING / 2.0,
};

/// Most rounds over all vectors until each is well placed.
const ROUNDS: usize = 16;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    suggest,
    judged_by_counts: false,
    moves_for_estimated_gain: false,
    completions_follow: false,
    tried_by_tune: true,
};

fn suggest(capacity: &Capacity<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let topology = capacity.topology;
    let shared = Shared {
        nodes: Groups::of(topology, |cpu| topology.node_of(cpu)),
        llcs: Groups::of(topology, |cpu| topology.llc_of(cpu)),
    };
    let preferences: Vec<Result<Preference<'_>, String>> =
        vectors.iter().map(|vector| Preference::of(vector, capacity, &shared)).collect();
    let mut placement = Placement::of(capacity, vectors);
    placement
        .settle(&preferences.iter().map(|preference| preference.as_ref().ok()).collect::<Vec<_>>());
    let mut suggestion = |(index, preference): (usize, Result<Preference<'_>, String>)| match (
        preference,
        placement.at[index],
    ) {
        (Ok(preference), Some(cpu)) => {
            placement.leave(index);
            let merit = placement.merit(&preference, cpu);
            placement.put(index, Some(cpu));
            preference.suggestion(cpu, &merit)
        }
        (Ok(_), None) => Suggestion::Leave("no cpu is allowed".into()),
        (Err(reason), _) => Suggestion::Leave(reason),
    };
    preferences.into_iter().enumerate().map(&mut suggestion).collect()
}

/// The online CPUs that share a level, and the group of each CPU.
struct Groups {
    all: Vec<CpuSet>,
    of_cpu: BTreeMap<CpuId, usize>,
}

impl Groups {
    fn of(topology: &Topology, group: impl Fn(CpuId) -> CpuSet) -> Self {
        let mut groups = Self { all: Vec::new(), of_cpu: BTreeMap::new() };
        for cpu in topology.online.iter().filter(|cpu| topology.cpus.contains_key(cpu)) {
            if !groups.of_cpu.contains_key(&cpu) {
                let group = group(cpu);
                groups.of_cpu.extend(group.iter().map(|cpu| (cpu, groups.all.len())));
                groups.all.push(group);
            }
        }
        groups
    }

    /// The groups under which hardly less is read than under any other, and which have a free CPU;
    /// the one with most of the reading first.
    fn zones<'a>(&'a self, read_on: &BTreeMap<CpuId, f64>, free: &CpuSet) -> Vec<Zone<'a>> {
        let mut read_under: BTreeMap<usize, f64> = BTreeMap::new();
        for (cpu, bytes) in read_on {
            if let Some(group) = self.of_cpu.get(cpu) {
                *read_under.entry(*group).or_default() += bytes;
            }
        }
        let most = read_under.values().copied().fold(0.0, f64::max);
        let mut enough: Vec<(usize, f64)> = read_under.into_iter().collect();
        enough.retain(|(_, bytes)| *bytes > 0.0 && *bytes >= most * (1.0 - WORTH_MOVING));
        enough.sort_by(|a, b| b.1.total_cmp(&a.1));
        let zone = |(group, _): (usize, f64)| {
            let cpus = &self.all[group];
            Zone { cpus, free: cpus.and(free) }
        };
        enough.into_iter().map(zone).filter(|zone| !zone.free.is_empty()).collect()
    }
}

/// CPUs that share a level with a vector's readers.
struct Zone<'a> {
    cpus: &'a CpuSet,
    /// Those among them where the vector may go: allowed, and on no core of its consumers.
    free: CpuSet,
}

/// The nodes, and the last-level caches.
struct Shared {
    nodes: Groups,
    llcs: Groups,
}

/// What one vector prefers, independent of the other vectors.
struct Preference<'a> {
    vector: &'a Vector,
    /// CPUs that share a level 2 cache with one of its consumers.
    l2: CpuSet,
    /// Nodes where it may go, each with its last-level caches where it may go.
    nodes: Vec<(Zone<'a>, Vec<Zone<'a>>)>,
    /// The level that CPUs of such a cache share with its readers, in words.
    near: &'static str,
}

impl<'a> Preference<'a> {
    /// Returns the preference, or the reason why the vector stays where it is.
    fn of(vector: &'a Vector, capacity: &Capacity<'_>, shared: &'a Shared) -> Result<Self, String> {
        if let Some(quiet) = vector.quiet() {
            return Err(quiet);
        }
        let topology = capacity.topology;
        let own = vector.consumer_cpus();
        let free = vector.pool.minus(&cores_of(topology, &own));
        let nodes = shared.nodes.zones(&vector.read_on, &free);
        if nodes.is_empty() {
            return Err(stays(vector, shared));
        }
        let with_llcs = |node: Zone<'a>| {
            let read_on = vector.read_on.iter().filter(|(cpu, _)| node.cpus.contains(**cpu));
            let read_on = read_on.map(|(cpu, bytes)| (*cpu, *bytes)).collect();
            let llcs = shared.llcs.zones(&read_on, &node.free);
            (node, llcs)
        };
        let nodes = nodes.into_iter().map(with_llcs).collect();
        let known = || own.iter().filter_map(|cpu| topology.cpus.get(&cpu));
        let l2 = known().fold(own.clone(), |l2, cpu| l2.or(&cpu.l2));
        let near = if known().any(|cpu| cpu.llc_is_guess) { NODE } else { "the same llc" };
        Ok(Self { vector, l2, nodes, near })
    }

    /// Returns the nearest allowed CPUs, and the level that they share with most of the reading.
    fn zone(&self, at: Option<CpuId>) -> (CpuSet, &'static str) {
        let present = |zone: &Zone<'_>| at.is_some_and(|at| zone.cpus.contains(at));
        let node = self.nodes.iter().find(|(node, _)| present(node)).or(self.nodes.first());
        let Some((node, llcs)) = node else { return (CpuSet::new(), NODE) };
        match llcs.iter().find(|llc| present(llc)).or(llcs.first()) {
            Some(llc) => (llc.free.clone(), self.near),
            None => (node.free.clone(), NODE),
        }
    }

    fn suggestion(&self, cpu: CpuId, merit: &str) -> Suggestion {
        let consumer = consumer_in_words(self.vector);
        if self.vector.present == Some(cpu) {
            return Suggestion::Keep(
                cpu,
                format!("already well placed: {consumer}, cpu {cpu} is {merit}"),
            );
        }
        let softirq = softirq_in_words(self.vector);
        Suggestion::Move(cpu, format!("{consumer}; cpu {cpu} is {merit}{softirq}"))
    }
}

/// The CPU of each vector, and the resulting load.
struct Placement<'a> {
    vectors: &'a [Vector],
    loads: CpuLoads<'a>,
    /// CPUs that read data of any vector.
    readers: CpuSet,
    /// The cores of `readers`.
    reader_cores: CpuSet,
    /// The CPU of each vector; `None` if it is not known or the vector has no traffic.
    at: Vec<Option<CpuId>>,
}

impl<'a> Placement<'a> {
    /// Starts with every vector on its present CPU.
    fn of(capacity: &'a Capacity<'a>, vectors: &'a [Vector]) -> Self {
        let readers =
            vectors.iter().fold(CpuSet::new(), |all, vector| all.or(&vector.consumer_cpus()));
        let reader_cores = cores_of(capacity.topology, &readers);
        let at = vec![None; vectors.len()];
        let mut placement =
            Self { vectors, loads: CpuLoads::new(capacity), readers, reader_cores, at };
        let active = vectors.iter().enumerate().filter(|(_, vector)| vector.quiet().is_none());
        for (index, vector) in active {
            placement.put(index, vector.present.or(vector.softirq.map(|softirq| softirq.cpu)));
        }
        placement
    }

    fn put(&mut self, index: usize, cpu: Option<CpuId>) {
        self.at[index] = cpu;
        if let Some(cpu) = cpu {
            self.loads.put(cpu, &self.vectors[index]);
        }
    }

    fn leave(&mut self, index: usize) {
        if let Some(cpu) = self.at[index].take() {
            self.loads.take(cpu, &self.vectors[index]);
        }
    }

    /// Moves each vector that has a preference to its best place, if that is clearly better than
    /// the one it has.
    fn settle(&mut self, preferences: &[Option<&Preference<'_>>]) {
        let order = heaviest_first(preferences, self.loads.capacity);
        let mut badly_placed = Vec::new();
        for &(index, preference) in &order {
            let present = self.at[index];
            self.leave(index);
            let best = self.place(preference, preference.vector.present, &AT_HOME);
            if best.is_none() || best != preference.vector.present {
                badly_placed.push((index, preference));
            }
            self.put(index, present);
        }
        for (index, _) in &badly_placed {
            self.leave(*index);
        }
        for (index, preference) in badly_placed {
            let cpu = self.place(preference, preference.vector.present, &JUST_PUT);
            self.put(index, cpu);
        }
        for _ in 0..ROUNDS {
            let mut moved = false;
            for &(index, preference) in order.iter().rev() {
                let from = self.at[index];
                self.leave(index);
                let threshold = if from == preference.vector.present { AT_HOME } else { JUST_PUT };
                let to = self.place(preference, from, &threshold);
                self.put(index, to);
                moved |= from != to;
            }
            if !moved {
                break;
            }
        }
    }

    /// Returns the best place for a vector that is at `at` and whose load `loads` does not count.
    fn place(
        &self,
        preference: &Preference<'_>,
        at: Option<CpuId>,
        threshold: &Threshold,
    ) -> Option<CpuId> {
        let (zone, _) = preference.zone(at);
        let idle = self.idle(preference, &zone.minus(&self.reader_cores), at, threshold);
        idle.or_else(|| self.least_busy(&zone, at, threshold))
    }

    fn idle(
        &self,
        preference: &Preference<'_>,
        zone: &CpuSet,
        at: Option<CpuId>,
        threshold: &Threshold,
    ) -> Option<CpuId> {
        let loads = &self.loads;
        let limit =
            |cpu: CpuId| if at == Some(cpu) { threshold.idle_stays } else { threshold.idle_below };
        let rank = |cpu: &CpuId| {
            let queues = loads.queues_on(loads.core(*cpu));
            (queues, loads.is_slow(*cpu), !preference.l2.contains(*cpu), at != Some(*cpu), *cpu)
        };
        zone.iter().filter(|cpu| loads.core_busy_below(*cpu, limit(*cpu))).min_by_key(rank)
    }

    /// Returns a CPU of the least busy core, preferring one without readers.
    ///
    /// The present core counts as the least busy one if it is hardly busier.
    fn least_busy(&self, zone: &CpuSet, at: Option<CpuId>, threshold: &Threshold) -> Option<CpuId> {
        let loads = &self.loads;
        let rank = |cpu: &CpuId| {
            let core = loads.core(*cpu);
            (
                loads.core_busy(*cpu) / millionths(STEP),
                loads.queues_on(core),
                !self.is_core_of(at, *cpu),
                core.lowest(),
            )
        };
        let best = zone.iter().min_by_key(rank)?;
        let limit = loads.core_busy(best) + millionths(threshold.margin);
        let good_enough = |cpu: &CpuId| self.is_core_of(at, *cpu) && loads.core_busy(*cpu) <= limit;
        let core = loads.core(zone.iter().find(good_enough).unwrap_or(best));
        let cpus = zone.and(core);
        cpus.iter().min_by_key(|cpu| (self.readers.contains(*cpu), at != Some(*cpu), *cpu))
    }

    fn is_core_of(&self, at: Option<CpuId>, cpu: CpuId) -> bool {
        at.is_some_and(|at| self.loads.core(cpu).contains(at))
    }

    /// Describes why a CPU was chosen, computed with all other vectors in place.
    fn merit(&self, preference: &Preference<'_>, cpu: CpuId) -> String {
        let (_, word) = preference.zone(Some(cpu));
        if !self.reader_cores.contains(cpu) && self.loads.core_busy_below(cpu, IDLE_STAYS) {
            return format!("on an idle core of {word}");
        }
        let threads = self.loads.core(cpu).len().max(1) as f64;
        let busy = self.loads.core_busy(cpu) as f64 / 1e4 / threads;
        // A CPU without data counts as busy.
        let busy = if busy < 99.5 {
            format!("{} busy", whole_percent(busy / 100.0))
        } else {
            "fully busy, or of unknown load".to_owned()
        };
        format!("on the least busy core of {word} ({busy}) that is not its consumer's")
    }
}

/// Sorts by load in whole per cent, then by packets; equals keep their order.
fn heaviest_first<'w>(
    preferences: &[Option<&'w Preference<'w>>],
    capacity: &Capacity<'_>,
) -> Vec<(usize, &'w Preference<'w>)> {
    let weight = |vector: &Vector| {
        ((capacity.load(vector) * 100.0).round() as u64, vector.packets_per_s as u64)
    };
    let mut order: Vec<(usize, &Preference<'_>)> = preferences
        .iter()
        .enumerate()
        .filter_map(|(index, preference)| Some((index, (*preference)?)))
        .collect();
    order.sort_by_key(|(_, preference)| std::cmp::Reverse(weight(preference.vector)));
    order
}

fn cores_of(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    cpus.iter().fold(CpuSet::new(), |cores, cpu| cores.or(&topology.core_of(cpu)))
}

/// Why a vector stays: no reader is known, or no CPU near its readers is free.
fn stays(vector: &Vector, shared: &Shared) -> String {
    let consumer = consumer_in_words(vector);
    match shared.nodes.zones(&vector.read_on, &vector.pool).is_empty() {
        _ if vector.read_on.is_empty() => vector.no_reader(),
        true => format!("{consumer}, on a node without an allowed cpu"),
        false => format!(
            "{consumer}: all allowed cpus of that node are on its consumers' cores; \
             algorithm `spread` ignores consumers"
        ),
    }
}

const NODE: &str = "the same node";
