//! The receive work that was observed: each queue's packets, what they cost, and who reads them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::backlog::BacklogWork;
use netsilo_model::derive::receive_work::{Bounds, movable_share, pinned_readers, steerable_share};
use netsilo_model::derive::seen_costs::dilation;
use netsilo_model::derive::silo::Silo;
use netsilo_model::derive::unmapped::UnmappedWork;
use netsilo_model::derive::utilization::{CpuUtilization, napi_kthreads, utilization};
use netsilo_model::machine::cpuset::{CpuId, CpuSet, MAX_CPUS};
use netsilo_model::machine::topology::{Levels, NodeId};
use netsilo_model::rss::model::flows_on;
use netsilo_model::snapshot::attribution::{Consumption, Protocol};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;

use crate::flows::Flows;
use crate::placement::{MOST_BATCH, Shares};
use crate::prediction::CpuTime;

/// Least share of the packets whose cost must be known.
const LEAST_KNOWN: f64 = 0.5;

/// The receive work of a machine.
#[derive(Debug, Clone)]
pub struct Work<'a> {
    /// What it is derived from.
    pub(crate) analysis: &'a Analysis<'a>,
    /// The settings under which it was observed.
    pub(crate) settings: &'a Snapshot,
    /// The load, as a multiple of the observed one.
    pub(crate) load: f64,
    /// Queues that receive packets.
    pub(crate) queues: Vec<Queue<'a>>,
    /// How each CPU spent its time; NAPI kthreads count as softirqs.
    pub(crate) cpus: BTreeMap<CpuId, CpuTime>,
    /// What the cost of a step depends on, of each CPU, by its number.
    seats: Vec<Seat>,
    /// The share of each CPU's time that the hypervisor leaves, by its number.
    pub(crate) room: Vec<f64>,
    /// The fullest link, and how full it is at the observed load.
    pub(crate) fullest_link: Option<(String, f64)>,
    /// CPUs to which readers are pinned, one entry for each set.
    pub(crate) pinned: Vec<CpuSet>,
    /// The CPUs, the idlest first.
    pub(crate) idlest: Vec<CpuId>,
    /// The share of softirq time after driver and GRO, if it was sampled.
    pub(crate) protocol_share: Option<Bounds>,
}

/// A CPU, as far as the cost of a step depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    /// Share of its time in softirqs.
    pub(crate) softirq: f64,
    /// Share of all of its time that is idle or taken by the hypervisor.
    pub(crate) idle: f64,
    /// How busy the busiest of the other hardware threads of its core is.
    pub(crate) sibling_busy: f64,
    /// How many times as long work takes there as on the fastest CPU.
    pub(crate) slowdown: f64,
    /// `None` outside the topology.
    pub(crate) levels: Option<Levels>,
}

/// The receive work of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Queue<'a> {
    /// Its silo.
    pub(crate) silo: Cow<'a, Silo>,
    /// Whether it is a netdev without NAPI, whose packets are on the backlog of the CPU that sends
    /// them: all that is measured of them is the protocol.
    pub(crate) is_backlog: bool,
    /// Packets per second.
    pub(crate) packets: f64,
    /// Packets of one poll.
    pub(crate) batch: f64,
    /// Packets that arrive here in a time, over those that arrived on an observed queue: 1 unless
    /// the machine is a supposed one.
    pub(crate) crowd: f64,
    /// Softirq time of one packet on the CPU that polls it (ns), if it were the fastest; `None` if
    /// it was not measured.
    pub(crate) ns: Option<f64>,
    /// Softirq time of one packet on the CPU to which RPS has taken it (ns), if it were the
    /// fastest; `None` where RPS is off or this was not measured.
    pub(crate) steered_ns: Option<f64>,
    /// Time of one packet in handlers of interrupts on the fastest CPU (ns), where they were
    /// measured and no kthread polls.
    pub(crate) handler_ns: f64,
    /// Payload of one packet (bytes).
    pub(crate) bytes: f64,
    /// Shares of the packets by the CPU that polls them.
    pub(crate) polled: Shares,
    /// Shares of the data by the CPU that reads it; empty if nobody does.
    pub(crate) read: Shares,
    /// Wakeups of readers per second, by the CPU where they slept.
    pub(crate) wakeups: BTreeMap<CpuId, f64>,
    /// Share of the data that is read by connected sockets, which RFS steers; `None` if nobody was
    /// seen to read it.
    pub(crate) steerable: Option<Bounds>,
    /// Share of the data that is UDP; where nobody reads it, of the packets.
    pub(crate) udp: f64,
    /// The flows that arrive on the netdev; `None` if they were not counted.
    pub(crate) flows: Option<Flows>,
    /// Node of the device.
    pub(crate) node: Option<NodeId>,
}

/// Why an observation says too little for a forecast.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TooLittle {
    /// There are no rates.
    #[error("the observation has no two snapshots of one boot")]
    NoRates,
    /// The rates are averages since boot.
    #[error("averages since boot do not show how full the cpus are: a second report gives rates")]
    SinceBoot,
    /// Neither polls nor packets were counted.
    #[error(
        "the packets of each queue were not counted: netsilo doctor shows what is missing here"
    )]
    NoPolls,
    /// No packets arrived.
    #[error("no netdev received packets in the {0} observed: observe it under load")]
    NoPackets(String),
    /// Packets arrived, and it is not known on which CPUs.
    #[error("{0} received packets, and which cpus poll it is not known: {1}")]
    UnknownCpus(String, String),
    /// The hypervisor runs the CPUs now and then, or emulates them.
    #[error(
        "a packet seems to take {0:.0} us of softirq time: this guest's CPUs are emulated or often \
         stopped, and tell no times"
    )]
    NotTheCpus(f64),
    /// The cost of packets is not known.
    #[error("the softirq time of the queues' CPUs was too short to measure: observe longer (-i)")]
    NoCosts,
}

impl TooLittle {
    /// Why no packets are known where none is.
    fn nothing_known(analysis: &Analysis<'_>) -> Self {
        let received = |it: &&Netdev| analysis.rate(it, "rx_packets").is_some_and(|it| it > 0.0);
        let mut receiving: Vec<&Netdev> = analysis.running().filter(received).collect();
        receiving.sort_by(|a, b| {
            let [a, b] = [a, b].map(|it| analysis.rate(it, "rx_packets").unwrap_or(0.0));
            b.total_cmp(&a)
        });
        let Some(most) = receiving.first() else {
            return Self::NoPackets(format!("{:.0?}", analysis.rates.elapsed));
        };
        let told = UnmappedWork::of(analysis, most).and_then(Result::err);
        let why = told.unwrap_or_else(|| "neither polls nor interrupts of it were seen".into());
        Self::UnknownCpus(most.name.clone(), why)
    }
}

impl<'a> Work<'a> {
    /// Collects the receive work of an observation.
    ///
    /// # Errors
    /// Why the observation says too little.
    pub fn new(analysis: &'a Analysis<'a>) -> Result<Self, TooLittle> {
        let work = Self::without_costs(analysis)?;
        work.check_costs()?;
        Ok(work)
    }

    /// Checks whether the times of packets are known, and are the CPU's.
    ///
    /// # Errors
    /// Why the observation says too little.
    pub fn check_costs(&self) -> Result<(), TooLittle> {
        let known = self.queues.iter().filter(|queue| queue.ns.is_some());
        let all = self.packets_per_s();
        if known.map(|queue| queue.packets).sum::<f64>() < LEAST_KNOWN * all {
            return Err(TooLittle::NoCosts);
        }
        let polled: Vec<&Silo> = self.queues.iter().map(|queue| &*queue.silo).collect();
        if dilation(self.analysis, &polled) > 1.0 {
            let time: f64 = self.queues.iter().map(|it| it.packets * it.ns.unwrap_or(0.0)).sum();
            return Err(TooLittle::NotTheCpus(time / all / 1e3));
        }
        Ok(())
    }

    /// Collects the receive work of an observation whose times may mean nothing: for counts alone.
    ///
    /// # Errors
    /// Why the observation says too little.
    pub fn without_costs(analysis: &'a Analysis<'a>) -> Result<Self, TooLittle> {
        if analysis.rates.elapsed.is_zero() {
            return Err(TooLittle::NoRates);
        }
        if analysis.after().is_since_boot() {
            return Err(TooLittle::SinceBoot);
        }
        let silos = &analysis.silos.queues;
        let is_placed = |silo: &&Silo| silo.has_traffic() && !is_unplaced(silo);
        let busy = || silos.iter().filter(is_placed);
        if busy().next().is_some() && busy().all(|it| arriving(analysis, it).is_none()) {
            return Err(TooLittle::NoPolls);
        }
        let queues = silos.iter().filter_map(|silo| {
            let rows = reads(analysis, silo).collect::<Vec<_>>();
            Queue::new(analysis, Cow::Borrowed(silo), arriving(analysis, silo)?, &rows)
        });
        let queues = queues.chain(backlogs(analysis)).chain(unmapped(analysis));
        let mut queues: Vec<Queue<'_>> = queues.collect();
        count_flows(analysis, &mut queues);
        for queue in queues.iter_mut().filter(|queue| !queue.is_backlog) {
            queue.steered_ns = steered_ns(analysis, queue);
            queue.handler_ns = handler_ns(analysis, queue);
        }
        let all: f64 = queues.iter().map(|queue| queue.packets).sum();
        if all <= 0.0 {
            return Err(TooLittle::nothing_known(analysis));
        }
        let work = utilization(analysis);
        let cpus = work.iter().map(|(cpu, work)| (*cpu, cpu_time(work))).collect();
        Ok(Self {
            fullest_link: fullest_link(analysis),
            idlest: idlest(&cpus),
            seats: seats(analysis, &cpus),
            cpus,
            pinned: pinned_readers(&analysis.observation.attribution),
            room: room(&work),
            protocol_share: protocol_share(analysis, &queues),
            load: 1.0,
            settings: settings(analysis, &queues),
            queues,
            analysis,
        })
    }

    /// The share of each CPU's time in NAPI kthreads.
    pub(crate) fn kthreads(&self) -> BTreeMap<CpuId, f64> {
        napi_kthreads(self.queues.iter().map(|queue| &*queue.silo))
    }

    /// CPUs that may process packets: those that are online and not set apart, and those that do
    /// so now.
    pub fn usable(&self) -> CpuSet {
        let topology = &self.analysis.after().topology;
        let polling = self.queues.iter().flat_map(|queue| queue.polled.cpus());
        let usable = topology.online.minus(&topology.reserved()).or(&polling.collect());
        usable.iter().filter(|cpu| self.cpus.contains_key(cpu)).collect()
    }

    /// The share of what the hypervisor leaves of these CPUs' time that is not idle; low-priority
    /// work counts as idle, because it yields.
    pub fn busy(&self, cpus: &CpuSet) -> f64 {
        let these = || cpus.iter().filter_map(|cpu| Some((cpu, self.cpus.get(&cpu)?)));
        let time: f64 = these().map(|(_, cpu)| cpu.usr + cpu.sys + cpu.softirq).sum();
        time / these().map(|(cpu, _)| self.room(cpu)).sum::<f64>().max(0.05)
    }

    /// The share of what the hypervisor leaves of a CPU's time that no scheduler moves: interrupts,
    /// softirqs and NAPI kthreads.
    pub fn bound(&self, cpu: CpuId) -> f64 {
        self.cpus.get(&cpu).map_or(0.0, |time| time.softirq / self.room(cpu)).min(1.0)
    }

    /// How busy the busiest of the other hardware threads of a CPU's core is.
    pub fn sibling_busy(&self, cpu: CpuId) -> f64 {
        self.seat(cpu).sibling_busy
    }

    #[inline]
    pub(crate) fn seat(&self, cpu: CpuId) -> &Seat {
        const NONE: Seat =
            Seat { softirq: 0.0, idle: 0.0, sibling_busy: 0.0, slowdown: 1.0, levels: None };
        self.seats.get(cpu.0 as usize).unwrap_or(&NONE)
    }

    /// Whether no CPU has a busy sibling.
    pub(crate) fn is_without_siblings(&self) -> bool {
        self.seats.iter().all(|seat| seat.sibling_busy == 0.0)
    }

    /// The share of a CPU's time that the hypervisor leaves.
    pub(crate) fn room(&self, cpu: CpuId) -> f64 {
        room_of(&self.room, cpu)
    }

    /// Packets per second of all queues.
    pub fn packets_per_s(&self) -> f64 {
        self.queues.iter().map(|queue| queue.packets).sum()
    }

    /// The same work on a machine whose CPUs spend their time so.
    pub(crate) fn with_cpus(self, cpus: BTreeMap<CpuId, CpuTime>) -> Self {
        Self { idlest: idlest(&cpus), seats: seats(self.analysis, &cpus), cpus, ..self }
    }

    /// The same machine with this many times the load: packets, and all CPU time.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Self {
        if factor == 1.0 {
            return self;
        }
        self.load *= factor;
        for queue in &mut self.queues {
            queue.packets *= factor;
            queue.wakeups.values_mut().for_each(|rate| *rate *= factor);
        }
        for cpu in self.cpus.values_mut() {
            cpu.usr *= factor;
            cpu.sys *= factor;
            cpu.softirq *= factor;
        }
        self.seats = seats(self.analysis, &self.cpus);
        self
    }
}

/// The settings under which queues were observed: those of the first snapshot, unless a queue came
/// later.
fn settings<'a>(analysis: &Analysis<'a>, queues: &[Queue<'_>]) -> &'a Snapshot {
    let Observation { before, after, .. } = analysis.observation;
    let is_known = |silo: &Silo| {
        let irq = silo.irq.as_ref().is_none_or(|irq| before.irqs.contains_key(&irq.to));
        let netdev = before.netdevs.identified(&silo.netdev);
        let napi = silo.kthread.as_ref().and(silo.napi.as_ref());
        let has = |netdev: &Netdev| {
            napi.is_none_or(|napi| {
                netdev.napis.iter().any(|it| it.id == napi.to && it.thread.is_some())
            })
        };
        irq && netdev.is_some_and(has)
    };
    if queues.iter().all(|queue| is_known(&queue.silo)) { before } else { after }
}

/// The room of these CPUs, by their number.
fn room(work: &BTreeMap<CpuId, CpuUtilization>) -> Vec<f64> {
    let numbers = work.last_key_value().map_or(0..0, |(last, _)| 0..last.0 + 1);
    numbers.map(|cpu| work.get(&CpuId(cpu)).map_or(1.0, CpuUtilization::room)).collect()
}

/// The room of one CPU.
pub(crate) fn room_of(room: &[f64], cpu: CpuId) -> f64 {
    room.get(cpu.0 as usize).copied().unwrap_or(1.0)
}

/// How each CPU spent its time. NAPI kthreads count as softirqs; nice work yields to everything.
fn cpu_time(work: &CpuUtilization) -> CpuTime {
    let (usr, sys) = work.tasks();
    CpuTime { usr, sys, softirq: work.bound(), booked_softirq: work.booked() }
}

/// Of two links that are equally full, the first one.
fn fullest_link(analysis: &Analysis<'_>) -> Option<(String, f64)> {
    let links = analysis.running().filter_map(|it| Some((it, analysis.link_use(it)?)));
    let fullest = links.reduce(|a, b| if b.1 > a.1 { b } else { a });
    fullest.map(|(netdev, share)| (netdev.name.clone(), share))
}

/// The seats of CPUs that spend their time so.
fn seats(analysis: &Analysis<'_>, cpus: &BTreeMap<CpuId, CpuTime>) -> Vec<Seat> {
    let topology = &analysis.after().topology;
    let is_possible = |cpu: &&CpuId| cpu.0 < MAX_CPUS;
    let last = cpus.keys().rfind(is_possible).max(topology.cpus.keys().rfind(is_possible));
    let numbers = last.map_or(0..0, |last| 0..last.0 + 1);
    let idle = |cpu: &CpuId| cpus.get(cpu).map_or(0.0, CpuTime::idle);
    let seat = |cpu: CpuId| {
        let known = topology.cpus.get(&cpu);
        let core = known.into_iter().flat_map(|known| known.siblings.iter());
        let others = core.filter(|other| *other != cpu);
        Seat {
            softirq: cpus.get(&cpu).map_or(0.0, |time| time.softirq),
            idle: idle(&cpu),
            sibling_busy: others.map(|other| 1.0 - idle(&other)).fold(0.0, f64::max),
            slowdown: topology.slowdown(cpu),
            levels: known.map(|known| known.levels(cpu)),
        }
    };
    numbers.map(CpuId).map(seat).collect()
}

/// CPUs, the idlest first.
fn idlest(cpus: &BTreeMap<CpuId, CpuTime>) -> Vec<CpuId> {
    let mut idlest: Vec<CpuId> = cpus.keys().copied().collect();
    idlest.sort_unstable_by(|a, b| cpus[b].idle().total_cmp(&cpus[a].idle()).then(a.cmp(b)));
    idlest
}

impl<'a> Queue<'a> {
    /// `None` unless packets arrive that this machine processes.
    fn new(
        analysis: &Analysis<'_>,
        silo: Cow<'a, Silo>,
        packets: f64,
        rows: &[&Consumption],
    ) -> Option<Self> {
        if silo.leased.is_some() || packets <= 0.0 {
            return None;
        }
        let counted = silo.polls.iter().map(|(cpu, poll)| (*cpu, poll.packets_per_s));
        let polled = normalized(counted);
        let polled =
            if polled.is_empty() { normalized(polled_on(&silo).into_iter()) } else { polled };
        let batch = packets / polls_per_s(&silo).max(f64::MIN_POSITIVE);
        // A poll by interrupt may have been several, each of at most this many packets.
        let batch = if silo.polls.is_empty() { batch.min(MOST_BATCH) } else { batch };
        let own = silo.own_share.iter().map(|(cpu, share)| share / slowdown(analysis, *cpu));
        let own: f64 = own.sum();
        let sum = |rows: &mut dyn Iterator<Item = &&Consumption>| -> f64 {
            rows.map(|row| row.bytes as f64).sum()
        };
        let udp = sum(&mut rows.iter().filter(|row| row.protocol == Protocol::Udp));
        Some(Self {
            is_backlog: false,
            packets,
            batch: batch.max(1.0),
            crowd: 1.0,
            ns: (own > 0.0).then_some(own * 1e9 / packets),
            steered_ns: None,
            handler_ns: 0.0,
            bytes: silo.bytes_per_s.unwrap_or(0.0) / packets,
            polled,
            read: normalized(silo.read_on().into_iter()),
            wakeups: wakeups(&silo),
            steerable: steerable_share(rows.iter().copied()),
            udp: udp / sum(&mut rows.iter()).max(1.0),
            flows: None,
            node: None,
            silo,
        })
    }

    /// Share of the data that RFS is likely to steer.
    pub(crate) fn likely_steerable(&self) -> f64 {
        self.steerable.map_or(0.0, |share| share.likely)
    }

    /// Whether its polls, or the interrupts that begin them, were counted.
    pub(crate) fn polls_are_counted(&self) -> bool {
        polls_per_s(&self.silo) > 0.0
    }

    /// Whether RPS has put its packets on these backlogs, so that it is not known who sends them.
    pub(crate) fn has_unknown_senders(&self) -> bool {
        self.is_backlog && self.silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty())
    }

    /// Whether a kthread polls it that no interrupt wakes: packets of a veth come from any CPU.
    pub(crate) fn is_polled_by_kthread_alone(&self) -> bool {
        self.silo.kthread.is_some() && self.silo.irq.is_none()
    }

    /// Whether nobody here reads it: it is handed on.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.read.is_empty() && !self.silo.forwards.is_empty()
    }
}

/// The work of netdevs without NAPI.
fn backlogs<'a>(analysis: &'a Analysis<'a>) -> impl Iterator<Item = Queue<'a>> {
    let of_netdev = |netdev: &'a Netdev| {
        let silos: Vec<&Silo> = analysis.silos_of(&netdev.name).collect();
        let work = BacklogWork::of(analysis, netdev, &silos)?;
        let silo = Cow::Owned(work.silo(analysis, netdev));
        let queue = Queue::new(analysis, silo, work.packets_per_s, &work.reads)?;
        Some(Queue { is_backlog: true, ..queue })
    };
    analysis.running().filter_map(of_netdev)
}

/// The work of netdevs without a known interrupt or poll, as far as the CPUs' softirqs tell it.
fn unmapped<'a>(analysis: &'a Analysis<'a>) -> impl Iterator<Item = Queue<'a>> {
    let of_netdev = |netdev: &'a Netdev| {
        let work = UnmappedWork::of(analysis, netdev)?.ok()?;
        let silo = Cow::Owned(work.silo(netdev));
        let queue = Queue::new(analysis, silo, work.packets_per_s, &[])?;
        let batch = (work.packets_per_s / work.softirqs_per_s).clamp(1.0, MOST_BATCH);
        Some(Queue { batch, ..queue })
    };
    analysis.running().filter_map(of_netdev)
}

/// Says of each queue on which node its netdev is, and which flows arrive there.
fn count_flows(analysis: &Analysis<'_>, queues: &mut [Queue<'_>]) {
    let mut flows: HashMap<String, Option<Flows>> = HashMap::new();
    for queue in queues {
        let Some(netdev) = analysis.after().netdevs.identified(&queue.silo.netdev) else {
            continue;
        };
        let of_netdev = flows.entry(netdev.name.clone()).or_insert_with(|| {
            let silos: Vec<&Silo> = analysis.silos_of(&netdev.name).collect();
            Flows::of(analysis, netdev, &silos)
        });
        (queue.flows, queue.node) = (*of_netdev, netdev.node);
        if queue.read.is_empty() {
            queue.udp = udp_of_flows(analysis, netdev, queue);
        }
    }
}

/// The share of UDP in the packets of a queue, by the flows that arrived.
fn udp_of_flows(analysis: &Analysis<'_>, netdev: &Netdev, queue: &Queue<'_>) -> f64 {
    let flows = flows_on(analysis.observation, netdev);
    let of_queue = flows.filter(|flow| flow.queue.is_some() && flow.queue == queue.silo.queue);
    let (mut udp, mut all) = (0.0, 0.0);
    for flow in of_queue {
        all += flow.packets as f64;
        udp += if flow.outer.is_udp() { flow.packets as f64 } else { 0.0 };
    }
    udp / f64::max(all, 1.0)
}

/// Wakeups per second of all readers, by the CPU where they slept.
fn wakeups(silo: &Silo) -> BTreeMap<CpuId, f64> {
    let mut all = BTreeMap::new();
    for (cpu, rate) in silo.consumers.iter().flat_map(|consumer| &consumer.wakeups_on) {
        *all.entry(*cpu).or_default() += rate;
    }
    all
}

/// Packets per second that arrive on a queue: as its polls returned them. If no poll of its netdev
/// returned any, its part of what the netdev counted, by the time that its polls take, or by its
/// interrupts.
fn arriving(analysis: &Analysis<'_>, silo: &Silo) -> Option<f64> {
    let of_netdev = || analysis.silos_of(&silo.netdev.name);
    let are_counted = of_netdev().any(|it| it.packets_per_s > Some(0.0));
    let counted = silo.counted_per_s.filter(|_| !is_unplaced(silo));
    if let Some(packets) = silo.packets_per_s.filter(|_| are_counted).or(counted) {
        return Some(packets);
    }
    let all = *analysis.rates.netdevs.get(&silo.netdev.name)?.get("rx_packets")?;
    let time = |silo: &Silo| silo.own_share.values().sum::<f64>();
    let part = |weight: fn(&Silo) -> f64| {
        let sum: f64 = of_netdev().map(weight).sum();
        (sum > 0.0).then(|| weight(silo) / sum)
    };
    Some(all * part(time).or_else(|| part(interrupts))?)
}

fn slowdown(analysis: &Analysis<'_>, cpu: CpuId) -> f64 {
    analysis.after().topology.slowdown(cpu)
}

/// Time of one packet on the backlogs to which RPS takes a queue's packets (ns).
fn steered_ns(analysis: &Analysis<'_>, queue: &Queue<'_>) -> Option<f64> {
    let attribution = &analysis.observation.attribution;
    let (mut time, mut packets) = (0.0, 0.0);
    for cpu in queue.silo.rps_cpus.as_ref()?.iter().filter(|cpu| !queue.polled.contains(*cpu)) {
        let polls = || attribution.polls.iter().filter(move |poll| poll.cpu == cpu);
        let all: u64 = polls().map(|poll| poll.packets).sum();
        let backlog = polls().filter(|poll| poll.netdev.is_empty());
        let backlog: u64 = backlog.map(|poll| poll.packets).sum();
        let ns = attribution.cpu_time.get(&cpu)?.net_rx_ns as f64 / slowdown(analysis, cpu);
        time += ns * backlog as f64 / (all as f64).max(1.0);
        packets += backlog as f64;
    }
    (packets > 0.0).then_some(time / packets)
}

/// Time of one packet in handlers of interrupts (ns): each of a CPU's interrupts takes as long as
/// the others.
fn handler_ns(analysis: &Analysis<'_>, queue: &Queue<'_>) -> f64 {
    if queue.silo.kthread.is_some() {
        return 0.0;
    }
    let times = &analysis.observation.attribution.cpu_time;
    let of_cpu = |(cpu, per_s): (&CpuId, &f64)| {
        let time = times.get(cpu).filter(|time| time.hardirqs > 0)?;
        let ns = time.hardirq_ns as f64 / slowdown(analysis, *cpu);
        Some(per_s * ns / time.hardirqs as f64)
    };
    let all = queue.silo.interrupts_per_s.iter().flatten();
    all.filter_map(of_cpu).sum::<f64>() / queue.packets
}

/// Polls per second of a queue, as eBPF counted them; else each interrupt counts as a poll.
fn polls_per_s(silo: &Silo) -> f64 {
    let polls: f64 = silo.polls.values().map(|poll| poll.polls_per_s).sum();
    if polls > 0.0 { polls } else { interrupts(silo) }
}

/// Interrupts per second of a queue.
fn interrupts(silo: &Silo) -> f64 {
    silo.interrupts_per_s.iter().flatten().map(|(_, rate)| rate).sum()
}

/// Weights of the CPUs that poll a queue, where polls were not counted.
fn polled_on(silo: &Silo) -> BTreeMap<CpuId, f64> {
    if silo.own_share.is_empty() && !silo.only_wakes {
        silo.interrupts_per_s.clone().unwrap_or_default()
    } else {
        silo.own_share.clone()
    }
}

/// Whether nothing shows which CPUs poll a queue.
fn is_unplaced(silo: &Silo) -> bool {
    silo.polls.is_empty() && silo.packets_per_s.is_none() && polled_on(silo).is_empty()
}

/// The reads of data that arrived on a queue.
fn reads<'a>(analysis: &'a Analysis<'_>, silo: &Silo) -> impl Iterator<Item = &'a Consumption> {
    let napi = silo.napi.as_ref().map(|napi| napi.to);
    let rows = analysis.observation.attribution.consumption.iter();
    rows.filter(move |row| row.bytes > 0 && napi.is_some() && row.napi == napi)
}

/// Weights as shares of their sum; empty if that is 0.
pub(crate) fn normalized(weights: impl Iterator<Item = (CpuId, f64)>) -> Shares {
    weights.collect::<Shares>().normalized()
}

/// The share of the softirqs' time after driver and GRO; `None` if it was not sampled, or where RPS
/// already takes that part elsewhere.
fn protocol_share(analysis: &Analysis<'_>, queues: &[Queue<'_>]) -> Option<Bounds> {
    let away = |queue: &Queue<'_>| {
        let protocol = queue.silo.protocol_cpus.keys();
        protocol.filter(|cpu| !queue.polled.contains(**cpu)).count() > 0
    };
    if queues.iter().any(away) {
        return None;
    }
    let polling: BTreeSet<CpuId> = queues.iter().flat_map(|queue| queue.polled.cpus()).collect();
    let movable = movable_share(&analysis.observation.attribution, polling.iter())?;
    Some(movable.share)
}
