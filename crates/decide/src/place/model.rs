//! Builds the [`Problem`] that the solver solves: the cost of each CPU for each vector.

use std::collections::BTreeMap;

use netsilo_model::cost::problem::{CpuPlace, Item, Pair, Problem, SECOND_NS};
use netsilo_model::cost::weights::ByDistance;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{LOCAL, NodeId};

use crate::place::capacity::Capacity;
use crate::place::level_costs::LevelCosts;
use crate::place::parts::Parts;
use crate::place::vector::{Completion, Vector};

/// The problem of a host, and the CPU of each of its places.
pub struct Model<'a> {
    /// The places, the items and the costs.
    pub problem: Problem,
    /// The CPU of each place.
    pub cpus: Vec<CpuId>,
    pub(crate) capacity: &'a Capacity<'a>,
    pub(crate) vectors: &'a [Vector],
    /// [`Problem::pairs`], without what a move must gain.
    pairs: Vec<Pair>,
    ground: Ground,
}

impl<'a> Model<'a> {
    /// Builds the problem of placing these vectors.
    pub fn new(capacity: &'a Capacity<'a>, vectors: &'a [Vector]) -> Self {
        let topology = capacity.topology;
        let cpus: Vec<CpuId> =
            topology.online.iter().filter(|cpu| topology.cpus.contains_key(cpu)).collect();
        let places: Vec<CpuPlace> = cpus.iter().map(|cpu| place(*cpu, capacity)).collect();
        let fixed = Vec::with_capacity(vectors.len() * places.len());
        let ground = Ground::of(&places, &cpus, vectors, capacity);
        let assumed = capacity.costs.assumed;
        let smt_loss = capacity.smt_loss;
        let problem = Problem { places, fixed, assumed, smt_loss, ..Problem::default() };
        let mut model = Self { problem, cpus, capacity, vectors, pairs: Vec::new(), ground };
        for vector in vectors {
            model.add(vector);
        }
        // All rows or none. Only kthreads have one that differs.
        if !model.problem.beyond.is_empty() {
            model.problem.beyond.resize(vectors.len() * model.cpus.len(), 0.0);
        }
        let lines = capacity.costs.lines_per_packet;
        for (from, vector) in vectors.iter().enumerate() {
            for Completion { to, packets_per_s, senders, .. } in &vector.completed_by {
                let cost = capacity.costs.line_ns.map(|ns| ns * lines * packets_per_s);
                let senders = senders.as_ref().map(|senders| model.senders(senders));
                model.pairs.push(Pair { from, to: *to, cost, senders });
            }
        }
        model.add_pairs();
        model
    }

    /// Adds the pairs to the problem. What handing on costs at present is a part of the present
    /// costs by which a vector must gain, and what is on one CPU must gain more to be apart.
    fn add_pairs(&mut self) {
        let Self { problem, pairs, .. } = self;
        for pair in &*pairs {
            let ends = [pair.from, pair.to].map(|item| problem.items[item].home);
            let mut counted = *pair;
            if let [Some(from), Some(to)] = ends {
                let least = problem.assumed.moving_cost * problem.handed(pair, from, to);
                problem.items[pair.from].moving += least;
                problem.items[pair.to].moving += least;
                let sends = pair.senders.is_none_or(|senders| problem.senders[senders][from]);
                if from == to && sends {
                    counted.cost = pair.cost.map(|ns| ns * (1.0 + problem.assumed.leaving_sender));
                }
            }
            problem.pairs.push(counted);
        }
    }

    /// The index of a set of CPUs in [`Problem::senders`].
    fn senders(&mut self, senders: &CpuSet) -> usize {
        let places: Vec<bool> = self.cpus.iter().map(|cpu| senders.contains(*cpu)).collect();
        let known = self.problem.senders.iter().position(|known| *known == places);
        known.unwrap_or_else(|| {
            self.problem.senders.push(places);
            self.problem.senders.len() - 1
        })
    }

    fn add(&mut self, vector: &Vector) {
        let load = self.capacity.load(vector) / self.capacity.dilation;
        let assumed = self.problem.assumed;
        let home = vector.present.and_then(|cpu| self.place(&cpu));
        if vector.quiet().is_some() {
            // A vector without traffic stays where it is.
            let at_home = |place| if Some(place) == home { 0.0 } else { f32::INFINITY };
            self.problem.fixed.extend((0..self.cpus.len()).map(at_home));
            self.problem.items.push(Item { load, home, ..Item::default() });
            return;
        }
        let row = Row::of(self, vector);
        let (turns, parts, beyond) = (row.turns, row.everywhere(self), row.beyond(self));
        let errors = row.errors(self);
        if let Some(beyond) = beyond {
            self.problem.beyond.resize(self.problem.items.len() * self.cpus.len(), 0.0);
            self.problem.beyond.extend(beyond);
        }
        let at_home = home.map(|home| parts[home]);
        let here = at_home.unwrap_or_default();
        let from_sender = self.leaving_sender(vector);
        let cost = |(place, parts): (usize, &Parts)| {
            let cpu = self.cpus[place];
            if !vector.pool.contains(cpu) {
                return f32::INFINITY;
            }
            let nearer = Some(place) == home || parts.cpu_time() < here.cpu_time();
            let by_load = if nearer { 0.0 } else { assumed.moving_load * load * SECOND_NS };
            let by_parts = at_home.map_or(0.0, |home| assumed.moving_parts * parts.changed(home));
            let by_counts = assumed.counting_errors * errors[place];
            // Rounding of the summed differences must not make a zero cost negative.
            let leaving = from_sender.on(cpu, self.problem.places[place].levels);
            (parts.total() + by_load + by_parts + by_counts + leaving).max(0.0) as f32
        };
        self.problem.fixed.extend(parts.iter().enumerate().map(cost));
        let by_cost = assumed.moving_cost * here.total().max(0.0);
        let noise = assumed.busy_noise * vector.turns(&assumed) * self.felt(vector);
        let moving = assumed.moving_least * SECOND_NS + by_cost.max(noise);
        self.problem.items.push(Item { load, turns, home, moving });
    }

    /// How much more a vector must gain to leave a CPU that sends what it completes, for vectors
    /// that are not placed ([`Assumed::leaving_sender`]).
    fn leaving_sender(&self, vector: &Vector) -> LevelCosts {
        let costs = &self.capacity.costs;
        let mut leaving = LevelCosts::default();
        let beside = vector.present.and_then(|cpu| Some((cpu, vector.sent_from.get(&cpu)?)));
        if let Some((cpu, packets)) = beside {
            let lines = packets * costs.lines_per_packet * costs.assumed.leaving_sender;
            leaving.add(cpu, self.capacity.topology, &costs.line_ns, lines);
        }
        leaving
    }

    /// Share of a kthread's wait that costs anything: none while its readers' CPU or its own is
    /// full, as there always is other work to do, which the packets would only wait behind. It
    /// falls from 1 to 0 while the fullest of these CPUs goes from the share at which it counts as
    /// full to all of its time.
    fn felt(&self, vector: &Vector) -> f64 {
        let cpus = vector.read_on.keys().chain(&vector.present);
        let busy = cpus.filter_map(|cpu| Some(self.ground.busy[self.place(cpu)?]));
        let [(full, _), _] = self.problem.assumed.full;
        ((1.0 - busy.fold(0.0, f64::max)) / (1.0 - full)).clamp(0.0, 1.0)
    }

    /// Puts the vectors on these CPUs; those without one, or on one that is not online, nowhere.
    pub fn placed(&self, at: &[Option<CpuId>]) -> Placed<'_> {
        let place = |cpu: &Option<CpuId>| self.place(cpu.as_ref()?);
        let places: Vec<Option<usize>> = at.iter().map(place).collect();
        let (mut loads, mut turns) = (vec![0.0; self.cpus.len()], vec![0.0; self.cpus.len()]);
        for (vector, place) in places.iter().enumerate() {
            if let Some(place) = *place {
                loads[place] += self.problem.load(vector, place);
                turns[place] += self.problem.items[vector].turns;
            }
        }
        Placed { model: self, places, loads, turns }
    }

    /// The place of a CPU.
    pub fn place(&self, cpu: &CpuId) -> Option<usize> {
        self.cpus.binary_search(cpu).ok()
    }
}

/// All vectors, each on a CPU or nowhere.
pub struct Placed<'a> {
    model: &'a Model<'a>,
    places: Vec<Option<usize>>,
    /// Share of each place's time that the vectors take.
    loads: Vec<f64>,
    /// [`Item::turns`] of the vectors on each place.
    turns: Vec<f64>,
}

impl Placed<'_> {
    /// The parts of a vector's cost on each of [`Model::cpus`], with all others where they are.
    pub fn parts(&self, vector: usize) -> Vec<Parts> {
        (0..self.model.cpus.len()).map(self.parts_by_place(vector)).collect()
    }

    /// The same on one of these CPUs, by its number among them.
    pub(crate) fn parts_by_place(&self, vector: usize) -> impl Fn(usize) -> Parts {
        let Self { model, places, loads, turns } = self;
        let Model { problem, ground, vectors, pairs, .. } = model;
        let is_partner = |pair: &&Pair| (pair.from == vector) != (pair.to == vector);
        let partners: Vec<&Pair> = pairs.iter().filter(is_partner).collect();
        let others = move |place: usize| {
            let own = if places[vector] == Some(place) { problem.load(vector, place) } else { 0.0 };
            loads[place] - own
        };
        let own_turns = problem.items[vector].turns;
        let other_turns = move |place: usize| {
            turns[place] - if places[vector] == Some(place) { own_turns } else { 0.0 }
        };
        let row = Row::of(model, &vectors[vector]);
        move |place| {
            let mut parts = row.at(model, place);
            let (load, before) = (problem.load(vector, place), others(place));
            let busy = problem.places[place].busy + before;
            let pressure = |busy, items| problem.assumed.pressure(busy, items);
            let crowd = pressure(busy + load, before + load) - pressure(busy, before);
            let beside: f64 = ground.siblings[place].iter().map(|it| others(*it)).sum();
            parts.waiting += own_turns * before + load * other_turns(place);
            parts.crowding = (crowd + problem.smt_loss * load * beside) * SECOND_NS;
            let handed = |pair: &&Pair| {
                if pair.from == vector {
                    Some(problem.handed(pair, place, places[pair.to]?))
                } else {
                    Some(problem.handed(pair, places[pair.from]?, place))
                }
            };
            parts.handing += partners.iter().filter_map(handed).sum::<f64>();
            parts
        }
    }

    /// Puts a vector elsewhere.
    pub(crate) fn shift(&mut self, vector: usize, to: usize) {
        let problem = &self.model.problem;
        let turns = problem.items[vector].turns;
        if let Some(from) = self.places[vector].replace(to) {
            self.loads[from] -= problem.load(vector, from);
            self.turns[from] -= turns;
        }
        self.loads[to] += problem.load(vector, to);
        self.turns[to] += turns;
    }

    /// The cost of all vectors together, without what a move must gain.
    pub fn cost(&self) -> Parts {
        let Self { model, places, loads, .. } = self;
        let Model { problem, vectors, pairs, .. } = model;
        let at = places.iter().enumerate().filter_map(|(item, place)| Some((item, (*place)?)));
        let (crowding, waiting) = (problem.crowding(loads), problem.waits(at, loads));
        let mut cost = Parts { crowding, waiting, ..Parts::default() };
        for (vector, place) in vectors.iter().zip(places) {
            if let (Some(place), None) = (place, vector.quiet()) {
                cost += Row::of(model, vector).at(model, *place);
            }
        }
        let handed = |pair: &Pair| Some(problem.handed(pair, places[pair.from]?, places[pair.to]?));
        cost.handing += pairs.iter().filter_map(handed).sum::<f64>();
        cost
    }
}

fn place(cpu: CpuId, capacity: &Capacity<'_>) -> CpuPlace {
    let known = capacity.topology.cpus.get(&cpu);
    // A CPU without data counts as busy.
    let busy = capacity.busy.get(&cpu).map_or(1.0, |busy| busy / capacity.dilation);
    CpuPlace {
        levels: known.map_or([cpu.0; 4], |known| known.levels(cpu)),
        busy,
        slowdown: capacity.topology.slowdown(cpu),
    }
}

/// What all rows share.
struct Ground {
    /// The places of the other threads of each place's core.
    siblings: Vec<Vec<usize>>,
    /// Whether each place is on another node than a device, by the device's node.
    far: BTreeMap<Option<NodeId>, Vec<bool>>,
    /// Bytes per second that are read on each CPU, from all vectors.
    read_on: BTreeMap<CpuId, f64>,
    /// Share of each place's time that all work takes at present, the vectors included.
    busy: Vec<f64>,
}

impl Ground {
    fn of(
        places: &[CpuPlace],
        cpus: &[CpuId],
        vectors: &[Vector],
        capacity: &Capacity<'_>,
    ) -> Self {
        let topology = capacity.topology;
        let mut cores: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, CpuPlace { levels: [core, ..], .. }) in places.iter().enumerate() {
            cores.entry(*core).or_default().push(at);
        }
        let others = |(at, place): (usize, &CpuPlace)| {
            cores[&place.levels[0]].iter().copied().filter(|other| *other != at).collect()
        };
        let siblings = places.iter().enumerate().map(others).collect();
        let mut read_on = BTreeMap::new();
        for (cpu, bytes) in vectors.iter().flat_map(|vector| &vector.read_on) {
            *read_on.entry(*cpu).or_default() += bytes;
        }
        let mut far = BTreeMap::new();
        for device in vectors.iter().map(|vector| vector.node) {
            let is_far = |cpu: &CpuId| topology.distance_from_device(device, *cpu) > LOCAL;
            far.entry(device).or_insert_with(|| cpus.iter().map(is_far).collect());
        }
        let mut busy: Vec<f64> = places.iter().map(|place| place.busy).collect();
        for vector in vectors {
            let home = vector.present.and_then(|cpu| cpus.binary_search(&cpu).ok());
            let load = |home: usize| capacity.load_on(cpus[home], vector) / capacity.dilation;
            home.into_iter().for_each(|home| busy[home] += load(home));
        }
        Self { siblings, far, read_on, busy }
    }
}

/// The cost of one vector by its place.
struct Row<'a> {
    vector: &'a Vector,
    capacity: &'a Capacity<'a>,
    ground: &'a Ground,
    /// Whether each place is on another node than the device.
    far: &'a [bool],
    lines: LevelCosts,
    wakeups: LevelCosts,
    /// Wakeups of its kthread by other CPUs.
    woken: LevelCosts,
    /// Packets that it completes for vectors that are not placed.
    handed: LevelCosts,
    /// Variance of lines and wakeups together, if they were counted for a second (ns^2).
    variance: LevelCosts,
    /// Share of a CPU's busy time that never waits for this vector: its own readers sleep until it
    /// has been polled.
    own: BTreeMap<CpuId, f64>,
    /// How long its kthread waits for its turns on a CPU that always runs something else, as far
    /// as anyone waits for it (ns/s); 0 without a kthread.
    turns: f64,
    /// [`Model::felt`] of a kthread; 1 of a softirq, which preempts.
    felt: f64,
}

impl<'a> Row<'a> {
    fn of(model: &'a Model<'a>, vector: &'a Vector) -> Self {
        let Model { capacity, ground, .. } = model;
        let (costs, topology) = (&capacity.costs, capacity.topology);
        let (mut lines, mut wakeups) = (LevelCosts::default(), LevelCosts::default());
        // With RPS, the protocol and the wakeup run on the CPUs to which packets are handed on.
        let rps_cpus: BTreeMap<CpuId, f64> =
            vector.rps_targets.iter().map(|cpu| (cpu, 1.0)).collect();
        let receivers = if rps_cpus.is_empty() { &vector.read_on } else { &rps_cpus };
        let all: f64 = receivers.values().sum();
        let mut variance = LevelCosts::default();
        let squared = |cost: &ByDistance, times: f64| cost.map(|ns| (ns * times).powi(2));
        for (cpu, weight) in receivers.iter().filter(|_| all > 0.0) {
            let packets = (vector.packets_per_s - vector.forwarded_per_s).max(0.0) * weight / all;
            lines.add(*cpu, topology, &costs.line_ns, packets * costs.lines_per_packet);
            let each = squared(&costs.line_ns, costs.lines_per_packet);
            variance.add(*cpu, topology, &each, packets);
            let woken = vector.wakeups_from(*cpu, weight / all, capacity);
            let ipi = vector.ipi_share(*cpu, capacity);
            wakeups.add(*cpu, topology, &costs.ipi_ns, woken * ipi);
            variance.add(*cpu, topology, &squared(&costs.ipi_ns, ipi), woken);
        }
        let mut woken = LevelCosts::default();
        for (cpu, rate) in &vector.woken_by {
            let ipi = vector.ipi_of_kthread(*cpu, *rate, capacity);
            woken.add(*cpu, topology, &costs.ipi_ns, rate.per_s * ipi);
            variance.add(*cpu, topology, &squared(&costs.ipi_ns, ipi), rate.per_s);
        }
        let mut handed = LevelCosts::default();
        for (cpu, packets) in &vector.sent_from {
            handed.add(*cpu, topology, &costs.line_ns, packets * costs.lines_per_packet);
        }
        let own = |(cpu, bytes): (&CpuId, &f64)| {
            let share = bytes / ground.read_on.get(cpu)?;
            Some((*cpu, share.min(1.0) * vector.finds_asleep(*cpu, bytes / all, capacity)))
        };
        let own = if rps_cpus.is_empty() {
            vector.read_on.iter().filter_map(own).collect()
        } else {
            BTreeMap::new()
        };
        let far = ground.far[&vector.node].as_slice();
        let felt = if vector.threaded { model.felt(vector) } else { 1.0 };
        let turns = felt * vector.turns(&costs.assumed);
        let row = Self {
            vector,
            capacity,
            ground,
            far,
            lines,
            wakeups,
            woken,
            handed,
            variance,
            own,
            turns,
            felt,
        };
        row.with_measured_wait(model)
    }

    /// A kthread that was measured to get its turns sooner than estimated gets them sooner on all
    /// CPUs. One that waited longer counts as estimated: elsewhere it would wait longer, too.
    fn with_measured_wait(mut self, model: &Model<'_>) -> Self {
        let Self { vector, capacity, ground, .. } = self;
        let home = vector.present.and_then(|cpu| model.place(&cpu));
        let Some((share, home)) = vector.waited.zip(home) else { return self };
        let own = capacity.load_on(model.cpus[home], vector) / capacity.dilation;
        let others = (ground.busy[home] - model.problem.places[home].busy - own).max(0.0);
        let measured = self.felt * share / capacity.dilation * SECOND_NS;
        let estimated = self.turns * (self.contending(model, home) + others);
        if measured < estimated {
            self.turns *= measured / estimated;
        }
        self
    }

    /// Share of the time in which a CPU runs what waits for this vector.
    fn contending(&self, model: &Model<'_>, place: usize) -> f64 {
        let own = self.own.get(&model.cpus[place]).copied().unwrap_or(0.0);
        model.problem.places[place].busy * (1.0 - own)
    }

    /// What its kthread takes of each CPU's time beyond what it took where it was measured, as a
    /// share; `None` of an interrupt.
    ///
    /// Half of what wakeups and cache lines cost is the time of the CPU that polls, half that of
    /// the readers' CPUs, or of those that wake the kthread. What was measured holds both halves: a
    /// CPU is spared its own half of them once the kthread is there.
    fn beyond(&self, model: &Model<'_>) -> Option<Vec<f32>> {
        let Vector { read_on, woken_by, .. } = self.vector;
        let home = self.vector.measured_on.and_then(|cpu| model.place(&cpu));
        // Without a count of what wakes it, one side of the account is missing. Under RPS, others
        // than the readers are woken.
        let counted = !woken_by.is_empty() && self.vector.rps_targets.is_empty();
        let home = home.filter(|_| counted)?;
        let of = |place: usize| {
            let (cpu, levels) = (model.cpus[place], model.problem.places[place].levels);
            let read = self.wakeups.on(cpu, levels) + self.lines.on(cpu, levels);
            [read / SECOND_NS, self.woken.on(cpu, levels) / SECOND_NS]
        };
        let part = |part: Option<f64>, all: f64| part.map_or(0.0, |part| part / all);
        let read: f64 = read_on.values().sum();
        let woken: f64 = woken_by.values().map(|it| it.per_s).sum();
        let at_home = of(home);
        let beyond = |place: usize| {
            let (cpu, here) = (model.cpus[place], of(place));
            let more = here[0] + here[1] - at_home[0] - at_home[1];
            let spared = part(read_on.get(&cpu).copied(), read) * at_home[0]
                + part(woken_by.get(&cpu).map(|it| it.per_s), woken) * at_home[1];
            let spared = if place == home { 0.0 } else { spared };
            // The weights are typical: they do not explain more than half of what was measured.
            let most = self.vector.load / self.capacity.dilation / 2.0;
            ((more - spared) / 2.0).max(-most) as f32
        };
        Some((0..model.cpus.len()).map(beyond).collect())
    }

    /// Standard error of the difference between the cost on each place and that at home, at most,
    /// in ns/s: of `n` events, another measurement counts about `sqrt(n)` more or less.
    fn errors(&self, model: &Model<'_>) -> Vec<f64> {
        let places = 0..model.cpus.len();
        let home = self.vector.present.and_then(|cpu| model.place(&cpu));
        let Some(home) = home.filter(|_| self.capacity.seconds > 0.0) else {
            return places.map(|_| 0.0).collect();
        };
        let of = |place: usize| {
            self.variance.on(model.cpus[place], model.problem.places[place].levels).max(0.0)
        };
        let at_home = of(home);
        let error = |place: usize| {
            if place == home { 0.0 } else { ((of(place) + at_home) / self.capacity.seconds).sqrt() }
        };
        places.map(error).collect()
    }

    /// [`Self::at`] on each place.
    fn everywhere(&self, model: &Model<'_>) -> Vec<Parts> {
        (0..model.cpus.len()).map(|place| self.at(model, place)).collect()
    }

    /// The parts on one place, without those that depend on other vectors.
    fn at(&self, model: &Model<'_>, place: usize) -> Parts {
        let Self { vector, capacity, ground, .. } = self;
        let (cpu, CpuPlace { levels, slowdown, .. }) =
            (model.cpus[place], model.problem.places[place]);
        let line = capacity.costs.line_ns;
        let fetched = vector.packets_per_s * capacity.costs.device_lines_per_packet;
        let load = capacity.load_on(cpu, vector) / capacity.dilation;
        let here = self.contending(model, place);
        let beside = ground.siblings[place].iter().map(|it| self.contending(model, *it));
        let beside: f64 = beside.sum();
        let preempted = capacity.costs.assumed.preempted;
        let delayed =
            self.felt * preempted * load * here + model.problem.smt_loss * load * beside.min(1.0);
        Parts {
            wakeups: self.wakeups.on(cpu, levels) + self.woken.on(cpu, levels),
            lines: self.lines.on(cpu, levels),
            device: if self.far[place] { fetched * (line.remote - line.llc).max(0.0) } else { 0.0 },
            slow: load * (1.0 - 1.0 / slowdown) * SECOND_NS,
            handing: self.handed.on(cpu, levels),
            waiting: delayed * SECOND_NS + self.turns * here,
            ..Parts::default()
        }
    }
}
