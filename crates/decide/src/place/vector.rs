//! [`Vector`]: what an algorithm places, with its load, its readers and the CPUs it may use.

use std::collections::BTreeMap;

use netsilo_model::derive::silo::{ConsumerShare, Silo, SoftirqShare, heaviest};
use netsilo_model::derive::wakeups::WakeupRate;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::NodeId;
use netsilo_model::snapshot::netdev::NapiThread;
use netsilo_model::snapshot::subject::Subject;

/// A CPU that reads less than this share of a queue's bytes is not avoided.
pub const CONSUMER_FROM: f64 = 0.05;

/// A vector with fewer packets per second than this does not move, unless it takes [`LOAD_FROM`] of
/// a CPU.
pub const TRAFFIC_FROM: f64 = 10.0;

/// A vector with [`TRAFFIC_FROM`] or more packets per second, or with this load, may move.
pub const LOAD_FROM: f64 = 0.005;

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
    /// The CPU that it was on when all this was measured: also while an algorithm assumes another
    /// present one.
    pub measured_on: Option<CpuId>,
    /// Whether a NAPI kthread polls it, which gets its turn like any other thread.
    pub threaded: bool,
    /// Share of the time in which that kthread waited for a CPU; `None` if not known.
    pub waited: Option<f64>,
    /// How often that kthread is woken, by the CPU that wakes it; empty if that was not counted.
    pub woken_by: BTreeMap<CpuId, WakeupRate>,
    /// Whether any packet arrived.
    pub traffic: bool,
    /// Why that is not known, while the netdev received some.
    pub not_counted: Option<String>,
    /// Share of one CPU's time that polling takes.
    pub load: f64,
    /// Packets per second; interrupts per second if nothing counted packets.
    pub packets_per_s: f64,
    /// Polls per second; interrupts per second if polls were not counted.
    pub polls_per_s: f64,
    /// Wakeups per second by the CPU where the woken thread slept; `None` if not counted.
    pub wakeups_on: Option<BTreeMap<CpuId, f64>>,
    /// Those of them that found that CPU idle; `None` if not counted.
    pub idle_wakeups_on: Option<BTreeMap<CpuId, f64>>,
    /// CPUs to which RPS distributes its packets, evenly: the protocol runs there, wherever the
    /// vector is.
    pub rps_targets: CpuSet,
    /// Packets per second that are forwarded, with no reader on this host.
    pub forwarded_per_s: f64,
    /// The vectors of the same list that complete the transmission of the packets it forwards.
    pub completed_by: Vec<Completion>,
    /// The tx queue whose completions it processes for packets of other vectors.
    pub completes: Option<Subject>,
    /// Packets per second whose transmission it completes for queues that are not placed with it,
    /// by the CPU that sends them.
    pub sent_from: BTreeMap<CpuId, f64>,
    /// Bytes per second by the CPU that reads them.
    pub read_on: BTreeMap<CpuId, f64>,
    /// The consumer that reads most.
    pub consumer: Option<ConsumerShare>,
    /// Softirq time of the CPU that polls the vector now.
    pub softirq: Option<SoftirqShare>,
}

/// Forwarded packets whose transmission another vector completes.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Index of that vector in the same list.
    pub to: usize,
    /// The tx queue.
    pub queue: Subject,
    /// Packets per second.
    pub packets_per_s: f64,
    /// The CPUs that send through that vector's queue, if the CPU decides (XPS).
    pub senders: Option<CpuSet>,
}

impl Completion {
    /// Whether a vector on this CPU hands its packets there; `None` is anywhere.
    pub(super) fn is_from(&self, cpu: Option<CpuId>) -> bool {
        self.senders.as_ref().zip(cpu).is_none_or(|(senders, cpu)| senders.contains(cpu))
    }
}

impl Vector {
    /// Builds the vector of these queues: the heaviest queue decides, the loads are added.
    pub fn new(
        silos: &[&Silo],
        node: Option<NodeId>,
        kthread: Option<&NapiThread>,
    ) -> Option<Self> {
        let sum = |silo: &Silo| silo.own_share.values().sum::<f64>();
        let interrupts =
            |silo: &Silo| silo.interrupts_per_s.iter().flatten().map(|(_, rate)| rate).sum();
        let packets = |silo: &Silo| silo.received_per_s().unwrap_or_else(|| interrupts(silo));
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
        let mut wakeups_on = BTreeMap::new();
        for (cpu, rate) in consumers().flat_map(|consumer| &consumer.wakeups_on) {
            *wakeups_on.entry(*cpu).or_default() += rate;
        }
        let idle_counted = consumers()
            .filter(|consumer| consumer.wakeups_per_s.is_some())
            .all(|consumer| consumer.idle_wakeups_on.is_some());
        let mut idle_wakeups_on = BTreeMap::new();
        for (cpu, rate) in consumers().filter_map(|it| it.idle_wakeups_on.as_ref()).flatten() {
            *idle_wakeups_on.entry(*cpu).or_default() += rate;
        }
        let known = Some(heaviest).filter(|silo| silo.readers_are_known());
        let mut woken_by: BTreeMap<CpuId, WakeupRate> = BTreeMap::new();
        for (cpu, rate) in silos.iter().flat_map(|silo| &silo.kthread_woken_by) {
            woken_by.entry(*cpu).or_default().add(*rate, 1.0);
        }
        let present = kthread.map_or(heaviest.interrupt_cpu, |thread| thread.cpus.single());
        Some(Self {
            label: heaviest.subject(),
            node,
            present,
            measured_on: present,
            threaded: kthread.is_some(),
            waited: kthread.and(heaviest.kthread_time).map(|time| time.waited),
            woken_by,
            traffic: silos.iter().any(|silo| silo.has_traffic()),
            not_counted: silos.iter().find_map(|silo| silo.not_counted.clone()),
            load: silos.iter().map(|silo| sum(silo)).sum(),
            packets_per_s: silos.iter().map(|silo| packets(silo)).sum(),
            polls_per_s: silos
                .iter()
                .map(|silo| polls(silo).unwrap_or_else(|| interrupts(silo)))
                .sum(),
            wakeups_on: counted.then_some(wakeups_on),
            idle_wakeups_on: (counted && idle_counted).then_some(idle_wakeups_on),
            forwarded_per_s: silos
                .iter()
                .flat_map(|silo| &silo.forwards)
                .map(|it| it.packets_per_s)
                .sum(),
            rps_targets: CpuSet::new(),
            completed_by: Vec::new(),
            completes: None,
            sent_from: BTreeMap::new(),
            pool: CpuSet::new(),
            hint: None,
            read_on: known.map(|silo| silo.read_on()).unwrap_or_default(),
            consumer: known.and_then(|silo| silo.consumers.first().cloned()),
            softirq: heaviest.softirq,
        })
    }

    /// Returns why the vector is left alone under every algorithm: no traffic, or almost none.
    pub fn quiet(&self) -> Option<String> {
        match self.traffic {
            false => Some(match &self.completes {
                Some(queue) => format!("it receives nothing and completes what {queue} sends"),
                None => match &self.not_counted {
                    Some(why) => format!("no interrupt arrived; its packets are not known: {why}"),
                    None => "no traffic seen".into(),
                },
            }),
            true if self.packets_per_s < TRAFFIC_FROM && self.load < LOAD_FROM => {
                Some(format!("almost no traffic ({:.1} packets/s)", self.packets_per_s))
            }
            true => None,
        }
    }

    /// Returns the CPU that reads most.
    pub fn main_reader(&self) -> Option<CpuId> {
        heaviest(self.read_on.iter().map(|(cpu, bytes)| (*cpu, *bytes)))
    }

    /// Returns why no reader is known.
    pub(super) fn no_reader(&self) -> String {
        if self.forwarded_per_s > 0.0 {
            "its packets are forwarded and not read on this host; auto places it".into()
        } else {
            "packets arrive, but their reader is not known".into()
        }
    }

    /// Consumer CPUs that are worth avoiding.
    pub(super) fn consumer_cpus(&self) -> CpuSet {
        let all: f64 = self.read_on.values().sum();
        self.read_on
            .iter()
            .filter(|(_, bytes)| **bytes >= all * CONSUMER_FROM)
            .map(|(cpu, _)| *cpu)
            .collect()
    }
}
