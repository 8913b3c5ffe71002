//! Affinity algorithms: given what is to be placed and the room there is, each suggests a CPU and
//! says why.
//!
//! One file each under `algorithm/`; a new one is that file and a line in [`algorithms`]. An
//! algorithm sees all vectors at once, as what it places takes room from what it places next. It
//! knows neither files nor knobs.
//!
//! **Stability.** An algorithm asked again after its suggestions were followed suggests nothing
//! new, though what it measures then differs a little: what a vector itself brings to a CPU is
//! taken out of that CPU's busyness ([`Room::busy`]) before anything is placed; whether a vector
//! stays is judged with all others where they are; and it leaves only for a place that is clearly
//! better, never for one of equal rank.

pub mod model;

use std::collections::BTreeMap;
use std::fmt;

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::rates::Rates;
use netsilo_model::derive::silo::{ConsumerShare, Silo, SoftirqShare};
use netsilo_model::machine::cpuset::{CpuId, CpuSet, MAX_CPUS};
use netsilo_model::machine::topology::{CoreKind, NodeId, Topology};
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::NapiThread;
use serde::{Deserialize, Serialize};

impl Suggestion {
    /// The CPU that it means.
    pub fn cpu(&self) -> Option<CpuId> {
        match self {
            Self::Move(cpu, _) | Self::Keep(cpu, _) => Some(*cpu),
            Self::Leave(_) => None,
        }
    }
}

/// Makes the list of algorithms: a variant, the name that people type and that hints carry, the
/// file.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident = $name:literal in $file:ident;)*) => {
        $(mod $file;)*

        /// The affinity algorithms, by name.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum AlgorithmName {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl AlgorithmName {
            /// All algorithms.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name that people type and that hints carry.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        /// Asks an algorithm for a suggestion for each vector, in the same order.
        pub fn suggest(algorithm: AlgorithmName, room: &Room<'_>, vectors: &[Vector]) -> Vec<Suggestion> {
            match algorithm { $(AlgorithmName::$variant => $file::suggest(room, vectors),)* }
        }
    };
}

algorithms! {
    /// Least cost by the model, for all vectors together; says which of the others it agrees with,
    /// and why.
    #[default]
    Auto = "auto" in auto;
    /// Close to the weighted consumers, never on their own CPU or its SMT sibling, sharing the
    /// closest cache.
    NearConsumer = "near-consumer" in near_consumer;
    /// The CPU of the heaviest consumer.
    RfsMaxWeight = "rfs-max-weight" in rfs_max_weight;
    /// The CPU where most is read, by all consumers together.
    SameCpu = "same-cpu" in same_cpu;
    /// As few CPUs as the softirq time needs, apart from the consumers.
    Dedicated = "dedicated" in dedicated;
    /// One queue per core, on the device's node first.
    Spread = "spread" in spread;
    /// The least busy CPU of the device's node.
    LeastLoaded = "least-loaded" in least_loaded;
    /// Where the driver suggests.
    DriverHint = "driver-hint" in driver_hint;
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A core is idle when each of its CPUs is busy for less than this share of the time: a poll then
/// finds the CPU free four times in five, and clock ticks (1% in a second) are fine enough to tell.
pub const IDLE_BELOW: f64 = 0.20;

/// The core where something is placed already counts as idle up to here, so that it does not leave
/// for noise.
pub const IDLE_STAYS: f64 = 0.30;

/// A core has to be idler than that for something to leave its place for it.
pub const IDLE_LEAVES: f64 = 0.15;

/// A CPU on which less than this share of a queue's bytes is read is not worth keeping clear of.
pub const CONSUMER_FROM: f64 = 0.05;

/// Fewer packets per second than this are not worth a move, unless they take this share of a CPU.
pub const TRAFFIC_FROM: f64 = 10.0;
/// See [`TRAFFIC_FROM`].
pub const LOAD_FROM: f64 = 0.005;

/// A place keeps what it has while another one is better by no more than this share: measurements
/// vary that much.
pub const WORTH_MOVING: f64 = 0.20;

/// Something that is placed as one: an interrupt or NAPI kthread, with the queues that it serves.
#[derive(Debug, Clone, Default)]
pub struct Vector {
    /// How people call it (`eth0 rx-3`).
    pub label: String,
    /// Node of the device.
    pub node: Option<NodeId>,
    /// CPUs that it may be placed on.
    pub pool: CpuSet,
    /// Where its driver wants it.
    pub hint: Option<CpuSet>,
    /// The CPU where it is now, by its settings; `None` when they leave it open.
    pub present: Option<CpuId>,
    /// Whether any packet was seen to arrive.
    pub traffic: bool,
    /// Share of one CPU's time that polling takes.
    pub load: f64,
    /// Packets per second; interrupts where packets were not counted.
    pub packets_per_s: f64,
    /// Polls per second; interrupts where polls were not counted.
    pub polls_per_s: f64,
    /// Wakeups per second by the CPU on which the one woken slept; `None` where they were not
    /// counted.
    pub wakes: Option<BTreeMap<CpuId, f64>>,
    /// RPS hands its packets on to these CPUs, alike: the protocol runs there, wherever the vector
    /// is.
    pub handed_on: CpuSet,
    /// Packets per second that leave again, read by nobody here.
    pub forwarded_per_s: f64,
    /// Packets per second that it hands to other vectors of the same list, which complete their
    /// transmission.
    pub feeds: Vec<(usize, f64)>,
    /// Bytes per second by the CPU on which they are read.
    pub read_on: BTreeMap<CpuId, f64>,
    /// Who reads most.
    pub consumer: Option<ConsumerShare>,
    /// Softirq time of the CPU that polls it now.
    pub softirq: Option<SoftirqShare>,
}

impl Vector {
    /// The vector of these queues: the heaviest one decides, the load is that of all.
    pub fn of(silos: &[&Silo], node: Option<NodeId>, kthread: Option<&NapiThread>) -> Option<Self> {
        let sum = |silo: &Silo| silo.own_share.values().sum::<f64>();
        let interrupts =
            |silo: &Silo| silo.interrupts_per_s.iter().flatten().map(|(_, rate)| rate).sum();
        let packets = |silo: &Silo| silo.packets_per_s.unwrap_or_else(|| interrupts(silo));
        let polls = |silo: &Silo| {
            silo.packets_per_s
                .map(|_| silo.polls.values().map(|rate| rate.polls_per_s).sum::<f64>())
        };
        let weight = |silo: &Silo| (packets(silo), silo.bytes_per_s.unwrap_or(0.0));
        let heavier = |a: &&&Silo, b: &&&Silo| {
            let (a_weight, b_weight) = (weight(a), weight(b));
            a_weight
                .0
                .total_cmp(&b_weight.0)
                .then(a_weight.1.total_cmp(&b_weight.1))
                .then(b.queue.cmp(&a.queue))
        };
        let heaviest = silos.iter().max_by(heavier)?;
        let consumers = || silos.iter().flat_map(|silo| &silo.consumers);
        let counted = consumers().any(|consumer| consumer.wakeups_per_s.is_some());
        let mut wakes = BTreeMap::new();
        for (cpu, rate) in consumers().flat_map(|consumer| &consumer.wakeups_on) {
            *wakes.entry(*cpu).or_default() += rate;
        }
        let affinity = heaviest.requested.as_ref().and_then(CpuSet::single);
        let in_force = || heaviest.effective.as_ref().and_then(CpuSet::single);
        Some(Self {
            label: heaviest.label(),
            node,
            present: kthread
                .map_or_else(|| affinity.or_else(in_force), |thread| thread.cpus.single()),
            traffic: silos.iter().any(|silo| silo.has_traffic()),
            load: silos.iter().map(|silo| sum(silo)).sum(),
            packets_per_s: silos.iter().map(|silo| packets(silo)).sum(),
            polls_per_s: silos
                .iter()
                .map(|silo| polls(silo).unwrap_or_else(|| interrupts(silo)))
                .sum(),
            wakes: counted.then_some(wakes),
            forwarded_per_s: silos
                .iter()
                .flat_map(|silo| &silo.forwards)
                .map(|it| it.packets_per_s)
                .sum(),
            handed_on: CpuSet::new(),
            feeds: Vec::new(),
            pool: CpuSet::new(),
            hint: None,
            read_on: heaviest.read_on(),
            consumer: heaviest.consumers.first().cloned(),
            softirq: heaviest.softirq,
        })
    }

    /// Why it is left alone whatever the algorithm sees: nothing, or hardly anything, arrives.
    fn quiet(&self) -> Option<String> {
        match self.traffic {
            false => Some("no traffic seen".into()),
            true if self.packets_per_s < TRAFFIC_FROM && self.load < LOAD_FROM => {
                Some(format!("hardly any traffic ({:.1} packets/s)", self.packets_per_s))
            }
            true => None,
        }
    }

    /// Why nothing can be said of its readers.
    fn no_reader(&self) -> String {
        match self.forwarded_per_s > 0.0 {
            true => "its packets are forwarded, nobody here reads them; auto places that".into(),
            false => "packets arrive, but who reads them is not known".into(),
        }
    }

    /// The CPUs on which it is read that are worth keeping clear of.
    fn consumer_cpus(&self) -> CpuSet {
        let all: f64 = self.read_on.values().sum();
        self.read_on
            .iter()
            .filter(|(_, bytes)| **bytes >= all * CONSUMER_FROM)
            .map(|(cpu, _)| *cpu)
            .collect()
    }
}

/// Where there is room.
#[derive(Debug, Clone)]
pub struct Room<'a> {
    /// CPUs and what they share.
    pub topology: &'a Topology,
    /// The weights of the cost model.
    pub costs: &'a Costs,
    /// Share of the time in which each CPU is busy with something else than the vectors; unknown
    /// ones are left out.
    pub busy: BTreeMap<CpuId, f64>,
}

impl<'a> Room<'a> {
    /// The room that the CPUs have without what these silos bring.
    ///
    /// User and system time are by clock ticks; softirq time is the measured one where there is
    /// one, and the silos' part of it ([`Silo::own_share`], from the same source) is taken out.
    /// Threaded NAPIs are in the system time.
    pub fn of(
        after: &'a Snapshot,
        costs: &'a Costs,
        rates: &Rates,
        attribution: &Attribution,
        placed: &[&Silo],
    ) -> Self {
        let elapsed = attribution.elapsed.as_secs_f64();
        let time = |cpu: &CpuId| attribution.cpu_time.get(cpu).filter(|_| elapsed > 0.0);
        let measured =
            |cpu: &CpuId| Some((time(cpu)?.softirq_ns() as f64 / 1e9 / elapsed).min(1.0));
        let own =
            |cpu: &CpuId| placed.iter().filter_map(|silo| silo.own_share.get(cpu)).sum::<f64>();
        let busy = |(cpu, rates): (&CpuId, &netsilo_model::derive::rates::CpuRates)| {
            let shares = rates.shares?;
            let softirq = measured(cpu).unwrap_or(shares.softirq);
            let rest = shares.usr + shares.nice + shares.sys + shares.irq + softirq - own(cpu);
            Some((*cpu, rest.clamp(0.0, 1.0)))
        };
        Self {
            topology: &after.topology,
            costs,
            busy: rates.cpus.iter().filter_map(busy).collect(),
        }
    }
}

/// What an algorithm says of one vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suggestion {
    /// Put it on this CPU, for this reason.
    Move(CpuId, String),
    /// It is on this CPU, and well placed, for this reason.
    Keep(CpuId, String),
    /// Nothing is suggested, for this reason.
    Leave(String),
}

/// Shares of a CPU's time as whole millionths: what is taken out again leaves no residue that would
/// decide a tie.
fn millionths(share: f64) -> u64 {
    // A bundle may tell of any load; sums of this many fit.
    (share * 1e6).round().min(1e12) as u64
}

/// The room, and what is in it.
struct Floor<'a> {
    room: &'a Room<'a>,
    /// By CPU number.
    cpus: Vec<Spot>,
}

/// A CPU of the floor.
#[derive(Clone, Default)]
struct Spot {
    /// Online CPUs of its core.
    core: CpuSet,
    /// In [`millionths`]: what the room says, and what was put there.
    busy: u64,
    /// How many vectors were put there.
    queues: usize,
}

impl<'a> Floor<'a> {
    fn new(room: &'a Room<'a>) -> Self {
        let topology = room.topology;
        let highest = topology.cpus.keys().next_back().copied().max(topology.online.highest());
        // A bundle may tell of any number.
        let count = highest.map_or(0, |cpu| cpu.0.min(MAX_CPUS - 1) + 1);
        // A CPU of which nothing is known counts as busy.
        let busy = |cpu| millionths(room.busy.get(&cpu).copied().unwrap_or(1.0));
        let spot = |cpu| Spot {
            core: topology.core_of(cpu).and(&topology.online),
            busy: busy(cpu),
            queues: 0,
        };
        Self { room, cpus: (0..count).map(|cpu| spot(CpuId(cpu))).collect() }
    }

    fn put(&mut self, cpu: CpuId, load: f64) {
        if let Some(spot) = self.cpus.get_mut(cpu.0 as usize) {
            spot.queues += 1;
            spot.busy += millionths(load);
        }
    }

    /// Takes out what was put there.
    fn take(&mut self, cpu: CpuId, load: f64) {
        if let Some(spot) = self.cpus.get_mut(cpu.0 as usize) {
            spot.queues -= 1;
            spot.busy -= millionths(load);
        }
    }

    /// How many vectors were put on a CPU.
    fn queues_at(&self, cpu: CpuId) -> usize {
        self.cpus.get(cpu.0 as usize).map_or(0, |spot| spot.queues)
    }

    /// How many vectors were put on these CPUs.
    fn queues_on(&self, cpus: &CpuSet) -> usize {
        cpus.iter().map(|cpu| self.queues_at(cpu)).sum()
    }

    /// Busyness of a CPU with what was put there.
    fn busy(&self, cpu: CpuId) -> u64 {
        self.cpus.get(cpu.0 as usize).map_or(millionths(1.0), |spot| spot.busy)
    }

    /// Busyness of a whole core; up to 1 for each of its online CPUs, more if it is overloaded.
    fn core_busy(&self, cpu: CpuId) -> u64 {
        self.core(cpu).iter().map(|cpu| self.busy(cpu)).sum()
    }

    fn core_busy_below(&self, cpu: CpuId, limit: f64) -> bool {
        self.core(cpu).iter().all(|cpu| self.busy(cpu) < millionths(limit))
    }

    /// Online CPUs of the core.
    fn core(&self, cpu: CpuId) -> &CpuSet {
        const NONE: &CpuSet = &CpuSet::new();
        self.cpus.get(cpu.0 as usize).map_or(NONE, |spot| &spot.core)
    }

    fn is_slow(&self, cpu: CpuId) -> bool {
        self.room.topology.cpus.get(&cpu).is_some_and(|cpu| cpu.kind == CoreKind::Efficiency)
    }
}

/// `iperf (71% of 1.2 MB/s) runs on cpu 7`.
fn consumer_in_words(vector: &Vector) -> String {
    let Some(consumer) = &vector.consumer else { return "nobody known".into() };
    let cpus: CpuSet = consumer
        .cpus
        .iter()
        .filter(|(_, share)| **share >= CONSUMER_FROM)
        .map(|(cpu, _)| *cpu)
        .collect();
    let all: f64 = vector.read_on.values().sum();
    let name =
        format!("{} ({:.0}% of {})", consumer.comm, consumer.share * 100.0, bytes_per_s(all));
    match cpus.single() {
        Some(cpu) => format!("{name} runs on cpu {cpu}"),
        None => format!("{name} runs on cpus {cpus}"),
    }
}

/// `; cpu 2 spends 41% of its time in softirq`, where the vector is polled now.
fn softirq_in_words(vector: &Vector) -> String {
    match vector.softirq {
        Some(SoftirqShare { cpu, share, .. }) if share >= 0.01 => {
            format!("; cpu {cpu} spends {:.0}% of its time in softirq", share * 100.0)
        }
        _ => String::new(),
    }
}

/// `1.2 MB/s`.
fn bytes_per_s(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.1} GB/s", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB/s", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB/s", b / 1e3),
        b => format!("{b:.0} B/s"),
    }
}
