//! Affinity algorithms: each suggests a CPU for every vector, with a reason.
//!
//! Each algorithm is one file under `algorithm/`; a new one needs that file and a line in
//! [`algorithms`]. An algorithm sees all vectors at once, because each placed vector takes room
//! from the next. Algorithms know neither files nor knobs.
//!
//! **Stability.** Once its suggestions were applied, an algorithm suggests nothing new, even though
//! the next measurement differs a little. Three rules ensure this. The load of a vector is
//! subtracted from the busy time of its CPU ([`Room::busy`]) before anything is placed. Whether a
//! vector stays is decided with all others in place. A vector moves only to a clearly better CPU,
//! never to one of equal rank.

pub mod model;

use std::collections::BTreeMap;
use std::fmt;

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::rates::CpuRates;
use netsilo_model::derive::silo::{ConsumerShare, Silo, SoftirqShare};
use netsilo_model::machine::cpuset::{CpuId, CpuSet, MAX_CPUS};
use netsilo_model::machine::topology::{CoreKind, NodeId, Topology};
use netsilo_model::snapshot::netdev::NapiThread;
use netsilo_model::snapshot::subject::Subject;
use serde::{Deserialize, Serialize};

impl Suggestion {
    /// The suggested CPU, if there is one.
    pub fn cpu(&self) -> Option<CpuId> {
        match self {
            Self::Move(cpu, _) | Self::Keep(cpu, _) => Some(*cpu),
            Self::Leave(_) => None,
        }
    }
}

/// Generates the list of algorithms; each entry is a variant, the name on the command line and in
/// hints, and the file.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident = $name:literal in $file:ident;)*) => {
        $(mod $file;)*

        /// The affinity algorithms, by name.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        pub enum AlgorithmName {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl AlgorithmName {
            /// All algorithms.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name on the command line and in hints.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        /// Asks an algorithm for a suggestion for each vector, in the same order.
        pub fn suggest(
            algorithm: AlgorithmName,
            room: &Room<'_>,
            vectors: &[Vector],
        ) -> Vec<Suggestion> {
            match algorithm { $(AlgorithmName::$variant => $file::suggest(room, vectors),)* }
        }
    };
}

algorithms! {
    /// Least cost by the model, for all vectors together; the reason names another algorithm that
    /// agrees.
    #[default]
    Auto = "auto" in auto;
    /// Near the weighted consumers on the closest shared cache, never on their CPU or its SMT
    /// sibling.
    NearConsumer = "near-consumer" in near_consumer;
    /// The CPU of the heaviest consumer.
    RfsMaxWeight = "rfs-max-weight" in rfs_max_weight;
    /// The CPU where all consumers together read most.
    SameCpu = "same-cpu" in same_cpu;
    /// As few CPUs as the softirq time needs, separate from the consumers.
    Dedicated = "dedicated" in dedicated;
    /// One queue per core, on the device's node first.
    Spread = "spread" in spread;
    /// The least busy CPU of the device's node.
    LeastLoaded = "least-loaded" in least_loaded;
    /// The CPUs in the driver's `affinity_hint`.
    DriverHint = "driver-hint" in driver_hint;
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A core is idle if each of its CPUs is busy for less than this share of the time.
///
/// A poll then finds the CPU free four times in five, and clock ticks (1% in a second) resolve this
/// share.
pub const IDLE_BELOW: f64 = 0.20;

/// The present core of a vector counts as idle up to this share, so that noise does not move the
/// vector.
pub const IDLE_STAYS: f64 = 0.30;

/// A core must be idler than this for a vector to leave its present place for it.
pub const IDLE_LEAVES: f64 = 0.15;

/// A CPU that reads less than this share of a queue's bytes is not avoided.
pub const CONSUMER_FROM: f64 = 0.05;

/// A vector with fewer packets per second than this does not move, unless it takes [`LOAD_FROM`] of
/// a CPU.
pub const TRAFFIC_FROM: f64 = 10.0;
/// A vector with [`TRAFFIC_FROM`] or more packets per second, or with this load, may move.
pub const LOAD_FROM: f64 = 0.005;

/// A place is kept unless another one is better by more than this share: measurements vary that
/// much.
pub const WORTH_MOVING: f64 = 0.20;

/// A unit of placement: an interrupt or NAPI kthread, with the queues that it serves.
#[derive(Debug, Clone, Default)]
pub struct Vector {
    /// Name in reports (`eth0 rx-3`).
    pub label: Subject,
    /// Node of the device.
    pub node: Option<NodeId>,
    /// CPUs where the vector may be placed.
    pub pool: CpuSet,
    /// The driver's `affinity_hint`.
    pub hint: Option<CpuSet>,
    /// The present CPU by the settings; `None` if they allow several CPUs.
    pub present: Option<CpuId>,
    /// Whether any packet arrived.
    pub traffic: bool,
    /// Share of one CPU's time that polling takes.
    pub load: f64,
    /// Packets per second; interrupts per second if packets were not counted.
    pub packets_per_s: f64,
    /// Polls per second; interrupts per second if polls were not counted.
    pub polls_per_s: f64,
    /// Wakeups per second by the CPU where the woken thread slept; `None` if not counted.
    pub wakes: Option<BTreeMap<CpuId, f64>>,
    /// CPUs to which RPS distributes its packets, evenly: the protocol runs there, wherever the
    /// vector is.
    pub handed_on: CpuSet,
    /// Packets per second that are forwarded, with no reader on this host.
    pub forwarded_per_s: f64,
    /// Packets per second that it hands to other vectors of the same list, which complete their
    /// transmission.
    pub feeds: Vec<(usize, f64)>,
    /// Bytes per second by the CPU that reads them.
    pub read_on: BTreeMap<CpuId, f64>,
    /// The consumer that reads most.
    pub consumer: Option<ConsumerShare>,
    /// Softirq time of the CPU that polls the vector now.
    pub softirq: Option<SoftirqShare>,
}

impl Vector {
    /// Builds the vector of these queues: the heaviest queue decides, the loads are added.
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
            label: heaviest.subject(),
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

    /// Returns why the vector is left alone under every algorithm: no traffic, or almost none.
    fn quiet(&self) -> Option<String> {
        match self.traffic {
            false => Some("no traffic seen".into()),
            true if self.packets_per_s < TRAFFIC_FROM && self.load < LOAD_FROM => {
                Some(format!("almost no traffic ({:.1} packets/s)", self.packets_per_s))
            }
            true => None,
        }
    }

    /// Returns why no reader is known.
    fn no_reader(&self) -> String {
        match self.forwarded_per_s > 0.0 {
            true => "its packets are forwarded and not read on this host; auto places it".into(),
            false => "packets arrive, but their reader is not known".into(),
        }
    }

    /// Consumer CPUs that are worth avoiding.
    fn consumer_cpus(&self) -> CpuSet {
        let all: f64 = self.read_on.values().sum();
        self.read_on
            .iter()
            .filter(|(_, bytes)| **bytes >= all * CONSUMER_FROM)
            .map(|(cpu, _)| *cpu)
            .collect()
    }
}

/// The CPUs and their free capacity.
#[derive(Debug, Clone)]
pub struct Room<'a> {
    /// The CPUs and the caches that they share.
    pub topology: &'a Topology,
    /// The weights of the cost model.
    pub costs: &'a Costs,
    /// Share of the time in which each CPU is busy with other work than the vectors; unknown CPUs
    /// are left out.
    pub busy: BTreeMap<CpuId, f64>,
}

impl<'a> Room<'a> {
    /// Computes the busy time of the CPUs without the load of the given silos.
    ///
    /// User and system time come from clock ticks. Softirq time is the measured one if available,
    /// and the silos' part of it ([`Silo::own_share`], from the same source) is subtracted. The
    /// system time includes threaded NAPIs.
    pub fn of(analysis: &Analysis<'a>, placed: &[&Silo]) -> Self {
        let attribution = &analysis.observation.attribution;
        let elapsed = attribution.elapsed.as_secs_f64();
        let time = |cpu: &CpuId| attribution.cpu_time.get(cpu).filter(|_| elapsed > 0.0);
        let measured =
            |cpu: &CpuId| Some((time(cpu)?.softirq_ns() as f64 / 1e9 / elapsed).min(1.0));
        let own =
            |cpu: &CpuId| placed.iter().filter_map(|silo| silo.own_share.get(cpu)).sum::<f64>();
        let busy = |(cpu, rates): (&CpuId, &CpuRates)| {
            let shares = rates.shares?;
            let softirq = measured(cpu).unwrap_or(shares.softirq);
            let rest = shares.usr + shares.nice + shares.sys + shares.irq + softirq - own(cpu);
            Some((*cpu, rest.clamp(0.0, 1.0)))
        };
        Self {
            topology: &analysis.after().topology,
            costs: analysis.costs,
            busy: analysis.rates.cpus.iter().filter_map(busy).collect(),
        }
    }
}

/// The suggestion of an algorithm for one vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suggestion {
    /// Put the vector on this CPU, for this reason.
    Move(CpuId, String),
    /// The vector is well placed on this CPU, for this reason.
    Keep(CpuId, String),
    /// No suggestion, for this reason.
    Leave(String),
}

/// Converts a share of a CPU's time to whole millionths, so that subtracting it again leaves no
/// residue that decides a tie.
fn millionths(share: f64) -> u64 {
    // A bundle may contain any load; sums of this many millionths fit in a u64.
    (share * 1e6).round().min(1e12) as u64
}

/// The room with the load of the vectors placed so far.
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
    /// Busy time in [`millionths`]: that of the room plus the load placed here.
    busy: u64,
    /// Number of vectors placed here.
    queues: usize,
}

impl<'a> Floor<'a> {
    fn new(room: &'a Room<'a>) -> Self {
        let topology = room.topology;
        let highest = topology.cpus.keys().next_back().copied().max(topology.online.highest());
        // A bundle may contain any CPU number.
        let count = highest.map_or(0, |cpu| cpu.0.min(MAX_CPUS - 1) + 1);
        // A CPU without data counts as busy.
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

    /// Removes a load that was put there.
    fn take(&mut self, cpu: CpuId, load: f64) {
        if let Some(spot) = self.cpus.get_mut(cpu.0 as usize) {
            spot.queues -= 1;
            spot.busy -= millionths(load);
        }
    }

    /// Number of vectors placed on a CPU.
    fn queues_at(&self, cpu: CpuId) -> usize {
        self.cpus.get(cpu.0 as usize).map_or(0, |spot| spot.queues)
    }

    /// Number of vectors placed on these CPUs.
    fn queues_on(&self, cpus: &CpuSet) -> usize {
        cpus.iter().map(|cpu| self.queues_at(cpu)).sum()
    }

    /// Busy time of a CPU in [`millionths`], including the load placed there.
    fn busy(&self, cpu: CpuId) -> u64 {
        self.cpus.get(cpu.0 as usize).map_or(millionths(1.0), |spot| spot.busy)
    }

    /// Busy time of a whole core in [`millionths`]; up to 1 for each of its online CPUs, more if
    /// overloaded.
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

/// Formats `iperf (71% of 1.2 MB/s) runs on cpu 7`.
fn consumer_in_words(vector: &Vector) -> String {
    let Some(consumer) = &vector.consumer else { return "an unknown reader".into() };
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

/// Formats `; cpu 2 spends 41% of its time in softirq` for the CPU that polls the vector now.
fn softirq_in_words(vector: &Vector) -> String {
    match vector.softirq {
        Some(SoftirqShare { cpu, share, .. }) if share >= 0.01 => {
            format!("; cpu {cpu} spends {:.0}% of its time in softirq", share * 100.0)
        }
        _ => String::new(),
    }
}

/// Formats a rate, as `1.2 MB/s`.
fn bytes_per_s(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.1} GB/s", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB/s", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB/s", b / 1e3),
        b => format!("{b:.0} B/s"),
    }
}
