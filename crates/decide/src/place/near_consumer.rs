//! Near the weighted consumers on the closest shared cache, never on their CPU or its SMT sibling.
//!
//! The order of preference is: an idle core on the consumers' last-level cache on which nobody
//! reads; the least busy core there that is not a consumer's; the same two on the rest of the node;
//! else the vector stays, with the reason. Ties prefer a core without a queue, then the same level
//! 2 cache, then the present CPU, then the lowest CPU.
//!
//! **Which vectors move.** First each vector is judged with all others in place. Well placed
//! vectors stay; the others are placed anew, the heaviest first. Then vectors that became worse off
//! move on, the lightest first, until all are well placed. A single pass in order of load is not
//! enough: two queues of about the same load would swap places with each measurement.

use std::collections::BTreeMap;

use netsilo_model::derive::silo::heaviest;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;

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

pub(super) fn suggest(capacity: &Capacity<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let caches = Caches::of(capacity.topology);
    let preferences: Vec<Result<Preference<'_>, String>> =
        vectors.iter().map(|vector| Preference::of(vector, capacity, &caches)).collect();
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

/// The last-level caches, and the cache of each CPU.
struct Caches {
    llcs: Vec<CpuSet>,
    of_cpu: BTreeMap<CpuId, usize>,
}

impl Caches {
    fn of(topology: &Topology) -> Self {
        let llcs = topology.llc_groups();
        let of_cpu = llcs
            .iter()
            .enumerate()
            .flat_map(|(llc, cpus)| cpus.iter().map(move |cpu| (cpu, llc)))
            .collect();
        Self { llcs, of_cpu }
    }
}

/// What one vector prefers, independent of the other vectors.
struct Preference<'a> {
    vector: &'a Vector,
    caches: &'a Caches,
    /// Allowed CPUs of the node with most of the reading, without its consumers' cores.
    free: CpuSet,
    /// CPUs that share a level 2 cache with one of its consumers.
    l2: CpuSet,
    /// Bytes per second read under each last-level cache.
    read_under: BTreeMap<usize, f64>,
    /// Index of the last-level cache with most of the reading.
    best: usize,
}

impl<'a> Preference<'a> {
    /// Returns the preference, or the reason why the vector stays where it is.
    fn of(vector: &'a Vector, capacity: &Capacity<'_>, caches: &'a Caches) -> Result<Self, String> {
        if let Some(quiet) = vector.quiet() {
            return Err(quiet);
        }
        let topology = capacity.topology;
        let mut read_under: BTreeMap<usize, f64> = BTreeMap::new();
        for (cpu, bytes) in &vector.read_on {
            if let Some(llc) = caches.of_cpu.get(cpu) {
                *read_under.entry(*llc).or_default() += bytes;
            }
        }
        let Some(best) = heaviest(read_under.iter().map(|(llc, bytes)| (*llc, *bytes))) else {
            return Err(vector.no_reader());
        };
        let own = vector.consumer_cpus();
        let node = caches.llcs[best].lowest().map(|cpu| node_of(topology, cpu)).unwrap_or_default();
        let free = vector.pool.and(&node.or(&caches.llcs[best])).minus(&cores_of(topology, &own));
        let consumer = consumer_in_words(vector);
        match (free.is_empty(), node.intersects(&vector.pool)) {
            (false, _) => {
                let known = own.iter().filter_map(|cpu| topology.cpus.get(&cpu));
                let l2 = known.fold(own.clone(), |l2, cpu| l2.or(&cpu.l2));
                Ok(Self { vector, caches, free, l2, read_under, best })
            }
            (true, true) => Err(format!(
                "its consumer {consumer}: all allowed cpus of that node are on its consumers' \
                 cores; algorithm `spread` ignores consumers"
            )),
            (true, false) => {
                Err(format!("its consumer {consumer}, on a node without an allowed cpu"))
            }
        }
    }

    /// Returns the nearest allowed CPUs, and the level that they share with most of the reading.
    ///
    /// The vector's present cache comes first if hardly less is read under it.
    fn zone(&self, at: Option<CpuId>) -> (CpuSet, &'static str) {
        let best = &self.caches.llcs[self.best];
        let read = |llc: &usize| self.read_under.get(llc).copied().unwrap_or(0.0);
        let enough = |llc: &usize| read(llc) >= read(&self.best) * (1.0 - WORTH_MOVING);
        let present = at.and_then(|cpu| self.caches.of_cpu.get(&cpu).copied()).filter(enough);
        let home = present.map_or(best, |llc| &self.caches.llcs[llc]);
        let near = [home, best].map(|llc| self.free.and(llc));
        match near.into_iter().find(|zone| !zone.is_empty()) {
            Some(zone) => (zone, "the same llc"),
            None => (self.free.clone(), "the same node"),
        }
    }

    fn suggestion(&self, cpu: CpuId, merit: &str) -> Suggestion {
        let consumer = consumer_in_words(self.vector);
        if self.vector.present == Some(cpu) {
            return Suggestion::Keep(
                cpu,
                format!("already well placed: its consumer {consumer}, cpu {cpu} is {merit}"),
            );
        }
        let softirq = softirq_in_words(self.vector);
        Suggestion::Move(cpu, format!("its consumer {consumer}; cpu {cpu} is {merit}{softirq}"))
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
            self.loads.put(cpu, self.vectors[index].load);
        }
    }

    fn leave(&mut self, index: usize) {
        if let Some(cpu) = self.at[index].take() {
            self.loads.take(cpu, self.vectors[index].load);
        }
    }

    /// Moves each vector that has a preference to its best place, if that is clearly better than
    /// the one it has.
    fn settle(&mut self, preferences: &[Option<&Preference<'_>>]) {
        let order = heaviest_first(preferences);
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
        let busy = match busy < 99.5 {
            true => format!("{busy:.0}% busy"),
            false => "fully busy, or of unknown load".to_owned(),
        };
        format!("on the least busy core of {word} ({busy}) that is not its consumer's")
    }
}

/// Sorts by load in whole per cent, then by packets; equals keep their order.
fn heaviest_first<'w>(
    preferences: &[Option<&'w Preference<'w>>],
) -> Vec<(usize, &'w Preference<'w>)> {
    let weight =
        |vector: &Vector| ((vector.load * 100.0).round() as u64, vector.packets_per_s as u64);
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

/// CPUs of the same node, or of the same package if the kernel shows no nodes.
fn node_of(topology: &Topology, cpu: CpuId) -> CpuSet {
    let Some(known) = topology.cpus.get(&cpu) else { return CpuSet::new() };
    known.node.map_or_else(|| known.package.clone(), |node| topology.node_cpus(node))
}
