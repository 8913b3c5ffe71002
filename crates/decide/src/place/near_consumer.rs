//! Close to the weighted consumers, never on their own CPU or its SMT sibling, sharing the closest
//! cache.
//!
//! In this order: an idle core on the consumers' last-level cache that nobody reads on; the least
//! busy core on it that is not the consumers'; the same two on the rest of the node; else it stays,
//! with the reason. On the way: a core without a queue before one that has one, the same level 2
//! cache before another, the present CPU before a new one, the lowest CPU last.
//!
//! **Who moves.** First each is judged with all others where they are. Who is well placed stays,
//! the others are placed anew, the heaviest first. Then whoever that made worse off moves on, the
//! lightest first, until all are well placed. An order of placing alone would not do: two queues of
//! about the same load would change places with each measurement.

use std::collections::BTreeMap;

use netsilo_model::derive::silo::heaviest;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;

use crate::place::{Floor, IDLE_BELOW, IDLE_LEAVES, IDLE_STAYS, Room, Suggestion, Vector, WORTH_MOVING, consumer_in_words, millionths, softirq_in_words};

/// Busyness is compared in steps of this share of a CPU, so that noise does not decide.
const STEP: f64 = 0.05;

/// What another place has to offer, by where the vector is.
struct Claim {
    /// A core elsewhere is idle below this.
    idle_below: f64,
    /// The core where it is counts as idle below this.
    idle_stays: f64,
    /// Another core has to be less busy by more than this.
    margin: f64,
}

/// Where it is in truth.
const AT_HOME: Claim = Claim { idle_below: IDLE_LEAVES, idle_stays: IDLE_STAYS, margin: WORTH_MOVING };

/// Where it was just put: what it would still gain elsewhere is then clearly less than what the
/// next plan asks for.
const JUST_PUT: Claim =
    Claim { idle_below: IDLE_BELOW, idle_stays: (IDLE_BELOW + IDLE_STAYS) / 2.0, margin: WORTH_MOVING / 2.0 };

/// How often all are gone through at most until each is well placed.
const ROUNDS: usize = 16;

pub(super) fn suggest(room: &Room<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
    let caches = Caches::of(room.topology);
    let wishes: Vec<Result<Wish<'_>, String>> = vectors.iter().map(|vector| Wish::of(vector, room, &caches)).collect();
    let mut seating = Seating::of(room, vectors);
    seating.settle(&wishes.iter().map(|wish| wish.as_ref().ok()).collect::<Vec<_>>());
    let mut suggestion = |(index, wish): (usize, Result<Wish<'_>, String>)| match (wish, seating.at[index]) {
        (Ok(wish), Some(cpu)) => {
            seating.leave(index);
            let merit = seating.merit(&wish, cpu);
            seating.sit(index, Some(cpu));
            wish.suggestion(cpu, &merit)
        }
        (Ok(_), None) => Suggestion::Leave("no cpu is allowed".into()),
        (Err(reason), _) => Suggestion::Leave(reason),
    };
    wishes.into_iter().enumerate().map(&mut suggestion).collect()
}

/// The last-level caches, and which is whose.
struct Caches {
    llcs: Vec<CpuSet>,
    of_cpu: BTreeMap<CpuId, usize>,
}

impl Caches {
    fn of(topology: &Topology) -> Self {
        let llcs = topology.llc_groups();
        let of_cpu = llcs.iter().enumerate().flat_map(|(llc, cpus)| cpus.iter().map(move |cpu| (cpu, llc))).collect();
        Self { llcs, of_cpu }
    }
}

/// What one vector wants, wherever the others are.
struct Wish<'a> {
    vector: &'a Vector,
    caches: &'a Caches,
    /// Allowed CPUs of the node where most is read that are not its consumers' cores.
    free: CpuSet,
    /// CPUs under the same level 2 cache as one of its consumers.
    l2: CpuSet,
    /// Bytes per second read under each last-level cache.
    read_under: BTreeMap<usize, f64>,
    /// The last-level cache under which most is read.
    best: usize,
}

impl<'a> Wish<'a> {
    /// What it wants, or why it stays where it is.
    fn of(vector: &'a Vector, room: &Room<'_>, caches: &'a Caches) -> Result<Self, String> {
        if let Some(quiet) = vector.quiet() {
            return Err(quiet);
        }
        let topology = room.topology;
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
                let l2 = own.iter().filter_map(|cpu| topology.cpus.get(&cpu)).fold(own.clone(), |l2, c| l2.or(&c.l2));
                Ok(Self { vector, caches, free, l2, read_under, best })
            }
            (true, true) => Err(format!(
                "its consumer {consumer}: all allowed cpus of that node are on its consumers' cores; `spread` does not mind"
            )),
            (true, false) => Err(format!("its consumer {consumer}, on a node of which no cpu is allowed")),
        }
    }

    /// The nearest CPUs that there are, and what they share with most of the reading; before them
    /// the cache where it is already, if hardly less is read there.
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
            let reason = format!("already well placed: its consumer {consumer}, cpu {cpu} is {merit}");
            return Suggestion::Keep(cpu, reason);
        }
        let softirq = softirq_in_words(self.vector);
        Suggestion::Move(cpu, format!("its consumer {consumer}; cpu {cpu} is {merit}{softirq}"))
    }
}

/// Who is where.
struct Seating<'a> {
    vectors: &'a [Vector],
    floor: Floor<'a>,
    /// CPUs on which data is read, of any vector.
    readers: CpuSet,
    /// Their cores.
    reader_cores: CpuSet,
    /// The CPU of each vector; `None` when it is not known or does not matter.
    at: Vec<Option<CpuId>>,
}

impl<'a> Seating<'a> {
    /// All where they are now.
    fn of(room: &'a Room<'a>, vectors: &'a [Vector]) -> Self {
        let readers = vectors.iter().fold(CpuSet::new(), |all, vector| all.or(&vector.consumer_cpus()));
        let reader_cores = cores_of(room.topology, &readers);
        let at = vec![None; vectors.len()];
        let mut seating = Self { vectors, floor: Floor::new(room), readers, reader_cores, at };
        for (index, vector) in vectors.iter().enumerate().filter(|(_, vector)| vector.quiet().is_none()) {
            seating.sit(index, vector.present.or(vector.softirq.map(|softirq| softirq.cpu)));
        }
        seating
    }

    fn sit(&mut self, index: usize, cpu: Option<CpuId>) {
        self.at[index] = cpu;
        if let Some(cpu) = cpu {
            self.floor.put(cpu, self.vectors[index].load);
        }
    }

    fn leave(&mut self, index: usize) {
        if let Some(cpu) = self.at[index].take() {
            self.floor.take(cpu, self.vectors[index].load);
        }
    }

    /// Gives each with a wish the place that is best for it, where that is clearly better than the
    /// one it has.
    fn settle(&mut self, wishes: &[Option<&Wish<'_>>]) {
        let order = heaviest_first(wishes);
        let mut badly_placed = Vec::new();
        for &(index, wish) in &order {
            let present = self.at[index];
            self.leave(index);
            let best = self.place(wish, wish.vector.present, &AT_HOME);
            if best.is_none() || best != wish.vector.present {
                badly_placed.push((index, wish));
            }
            self.sit(index, present);
        }
        for (index, _) in &badly_placed {
            self.leave(*index);
        }
        for (index, wish) in badly_placed {
            let cpu = self.place(wish, wish.vector.present, &JUST_PUT);
            self.sit(index, cpu);
        }
        for _ in 0..ROUNDS {
            let mut moved = false;
            for &(index, wish) in order.iter().rev() {
                let from = self.at[index];
                self.leave(index);
                let claim = if from == wish.vector.present { AT_HOME } else { JUST_PUT };
                let to = self.place(wish, from, &claim);
                self.sit(index, to);
                moved |= from != to;
            }
            if !moved {
                break;
            }
        }
    }

    /// The best place for one that is here and not counted on the floor.
    fn place(&self, wish: &Wish<'_>, at: Option<CpuId>, claim: &Claim) -> Option<CpuId> {
        let (zone, _) = wish.zone(at);
        let idle = self.idle(wish, &zone.minus(&self.reader_cores), at, claim);
        idle.or_else(|| self.least_busy(&zone, at, claim))
    }

    fn idle(&self, wish: &Wish<'_>, zone: &CpuSet, at: Option<CpuId>, claim: &Claim) -> Option<CpuId> {
        let floor = &self.floor;
        let limit = |cpu: CpuId| if at == Some(cpu) { claim.idle_stays } else { claim.idle_below };
        let rank = |cpu: &CpuId| {
            let queues = floor.queues_on(floor.core(*cpu));
            (queues, floor.is_slow(*cpu), !wish.l2.contains(*cpu), at != Some(*cpu), *cpu)
        };
        zone.iter().filter(|cpu| floor.core_busy_below(*cpu, limit(*cpu))).min_by_key(rank)
    }

    /// The least busy core, the present one if it is hardly busier; then the CPU of it that is not
    /// read on.
    fn least_busy(&self, zone: &CpuSet, at: Option<CpuId>, claim: &Claim) -> Option<CpuId> {
        let floor = &self.floor;
        let rank = |cpu: &CpuId| {
            let core = floor.core(*cpu);
            (floor.core_busy(*cpu) / millionths(STEP), floor.queues_on(core), !self.is_core_of(at, *cpu), core.lowest())
        };
        let best = zone.iter().min_by_key(rank)?;
        let good_enough = |cpu: &CpuId| {
            self.is_core_of(at, *cpu) && floor.core_busy(*cpu) <= floor.core_busy(best) + millionths(claim.margin)
        };
        let core = floor.core(zone.iter().find(good_enough).unwrap_or(best));
        zone.and(core).iter().min_by_key(|cpu| (self.readers.contains(*cpu), at != Some(*cpu), *cpu))
    }

    fn is_core_of(&self, at: Option<CpuId>, cpu: CpuId) -> bool {
        at.is_some_and(|at| self.floor.core(cpu).contains(at))
    }

    /// What speaks for a CPU, with all but this one where they are.
    fn merit(&self, wish: &Wish<'_>, cpu: CpuId) -> String {
        let (_, word) = wish.zone(Some(cpu));
        if !self.reader_cores.contains(cpu) && self.floor.core_busy_below(cpu, IDLE_STAYS) {
            return format!("on an idle core of {word}");
        }
        let busy = self.floor.core_busy(cpu) as f64 / 1e4 / self.floor.core(cpu).len().max(1) as f64;
        // a CPU of which nothing is known counts as busy
        let busy = if busy < 99.5 { format!("{busy:.0}% busy") } else { "all busy, or not known".to_owned() };
        format!("on the least busy core of {word} ({busy}) that is not its consumer's")
    }
}

/// Load to the per cent first, packets where no load is known, the given order among equals.
fn heaviest_first<'w>(wishes: &[Option<&'w Wish<'w>>]) -> Vec<(usize, &'w Wish<'w>)> {
    let weight = |vector: &Vector| ((vector.load * 100.0).round() as u64, vector.packets_per_s as u64);
    let mut order: Vec<(usize, &Wish<'_>)> =
        wishes.iter().enumerate().filter_map(|(index, wish)| Some((index, (*wish)?))).collect();
    order.sort_by_key(|(_, wish)| std::cmp::Reverse(weight(wish.vector)));
    order
}

fn cores_of(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    cpus.iter().fold(CpuSet::new(), |cores, cpu| cores.or(&topology.core_of(cpu)))
}

/// CPUs of the same node, or package where the kernel shows no nodes.
fn node_of(topology: &Topology, cpu: CpuId) -> CpuSet {
    let Some(known) = topology.cpus.get(&cpu) else { return CpuSet::new() };
    known.node.map_or_else(|| known.package.clone(), |node| topology.node_cpus(node))
}
