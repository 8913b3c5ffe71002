//! The time that receive work takes on each CPU under a placement, for an observed machine and for
//! one that a file describes.

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Distance;
use serde::{Deserialize, Serialize};

use crate::placement::{Placement, Shares};
use crate::prices::Prices;

/// Least share of a packet's time that the poll keeps, where what RPS takes is subtracted.
pub(crate) const LEAST_POLL: f64 = 0.2;

/// Greatest share of the time in which a backlog is scheduled already.
const MOST_SCHEDULED: f64 = 0.9;

/// Shares of one CPU's time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    /// In interrupts, softirqs and NAPI kthreads.
    pub(crate) softirq: f64,
    /// In system calls.
    pub(crate) task: f64,
}

/// What the receive work takes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Loads {
    /// Of each CPU, by its number.
    cpus: Vec<Load>,
    /// Inter-processor interrupts per second, of RPS and of wakeups.
    pub(crate) ipis: f64,
    /// Time of each stage, as a share of one CPU.
    pub(crate) path: Path,
}

impl Loads {
    /// Of one CPU.
    pub(crate) fn on(&self, cpu: CpuId) -> Load {
        self.cpus.get(cpu.0 as usize).copied().unwrap_or_default()
    }

    /// None yet, with room for those of this many CPUs.
    pub(crate) fn for_cpus(count: usize) -> Self {
        Self { cpus: Vec::with_capacity(count), ..Self::default() }
    }

    #[inline]
    fn add_softirq(&mut self, cpu: CpuId, share: f64) {
        // Nearly always, the CPU has a load.
        match self.cpus.get_mut(cpu.0 as usize) {
            Some(load) => load.softirq += share,
            None => self.on_mut(cpu).softirq += share,
        }
    }

    pub(crate) fn on_mut(&mut self, cpu: CpuId) -> &mut Load {
        let at = cpu.0 as usize;
        if self.cpus.len() <= at {
            self.cpus.resize(at + 1, Load::default());
        }
        &mut self.cpus[at]
    }

    /// The same with the first loads gone and the second ones come: exactly the same if these are
    /// equal.
    pub(crate) fn changed(&self, gone: &Self, come: &Self) -> Self {
        if gone == come {
            return self.clone();
        }
        let mut all = self.clone();
        for (loads, sign) in [(gone, -1.0), (come, 1.0)] {
            for (load, cpu) in loads.cpus.iter().zip(0..) {
                let sum = all.on_mut(CpuId(cpu));
                sum.softirq += sign * load.softirq;
                sum.task += sign * load.task;
            }
            all.ipis += sign * loads.ipis;
            all.path = all.path.plus(loads.path.times(sign));
        }
        all
    }

    /// Divides the loads of these CPUs evenly among them.
    pub(crate) fn level(&mut self, cpus: &[usize]) {
        let of = |cpu: &usize| CpuId(*cpu as u32);
        let all: f64 = cpus.iter().map(|cpu| self.on(of(cpu)).softirq).sum();
        for cpu in cpus {
            self.on_mut(of(cpu)).softirq = all / cpus.len() as f64;
        }
    }

    /// The CPUs that do some of it.
    pub(crate) fn cpus(&self) -> impl Iterator<Item = CpuId> {
        let used = self.cpus.iter().zip(0..).filter(|(load, _)| **load != Load::default());
        used.map(|(_, cpu)| CpuId(cpu))
    }
}

/// Time of each stage of receive work, of all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Path {
    /// Interrupt, driver's poll, GRO.
    pub poll: f64,
    /// The protocol up to the socket, or forwarding.
    pub protocol: f64,
    /// RPS: enqueue, and dequeue on the other CPU with its cache lines.
    pub steering: f64,
    /// Inter-processor interrupts of RPS, sent and received.
    pub ipis: f64,
    /// Interrupts that wake readers on other CPUs, sent and received.
    pub wakeups: f64,
    /// Cache lines that a reader gets from the CPU that ran the protocol.
    pub lines: f64,
}

impl Path {
    /// The names of the stages, in the order of a packet.
    pub const NAMES: [&'static str; 6] =
        ["poll", "protocol", "steering", "IPIs", "wakeups", "cache lines"];

    /// The times in the order of [`Self::NAMES`].
    pub fn to_array(self) -> [f64; 6] {
        [self.poll, self.protocol, self.steering, self.ipis, self.wakeups, self.lines]
    }

    #[must_use]
    fn plus(self, other: Self) -> Self {
        Self {
            poll: self.poll + other.poll,
            protocol: self.protocol + other.protocol,
            steering: self.steering + other.steering,
            ipis: self.ipis + other.ipis,
            wakeups: self.wakeups + other.wakeups,
            lines: self.lines + other.lines,
        }
    }

    /// The same, each stage times this.
    #[must_use]
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            poll: self.poll * factor,
            protocol: self.protocol * factor,
            steering: self.steering * factor,
            ipis: self.ipis * factor,
            wakeups: self.wakeups * factor,
            lines: self.lines * factor,
        }
    }
}

/// The parts of a packet's softirq time (ns).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Parts {
    pub(crate) poll: f64,
    /// The part of `poll` before its first packet, shared by the packets of a poll.
    pub(crate) begin: f64,
    pub(crate) protocol: f64,
}

impl Parts {
    /// Time of the poll if its begin takes this much of each packet.
    pub(crate) fn poll_with(self, begin: f64) -> f64 {
        (self.poll + begin - self.begin).max(LEAST_POLL * self.poll)
    }
}

/// How CPUs spend their time: the cost of a step depends on it.
pub(crate) trait Cpus {
    /// Share of the time in softirqs.
    fn softirq(&self, cpu: CpuId) -> f64;
    /// Share of the time without work.
    fn idle(&self, cpu: CpuId) -> f64;
    /// Share of the time in which the busiest of its core's other hardware threads is.
    fn sibling_busy(&self, cpu: CpuId) -> f64;
    /// How far two of them are from each other.
    fn distance(&self, a: CpuId, b: CpuId) -> Distance;
    /// How many times as long work takes there as on the fastest one.
    fn slowdown(&self, cpu: CpuId) -> f64;
    /// Whether the device's memory is on another node.
    fn is_far_from_device(&self, _: CpuId) -> bool {
        false
    }
}

/// A CPU that runs a step, how busy the other threads of its core are (at most 1), and how many
/// times as long work takes there as on the fastest one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) cpu: CpuId,
    sibling_busy: f64,
    slowdown: f64,
}

impl Place {
    pub(crate) fn new(cpus: &impl Cpus, cpu: CpuId) -> Self {
        let sibling_busy = cpus.sibling_busy(cpu).min(1.0);
        Self { cpu, sibling_busy, slowdown: cpus.slowdown(cpu) }
    }

    /// How much longer the same takes than on the fastest CPU without a busy sibling.
    #[inline]
    pub(crate) fn slow(self, prices: &Prices) -> f64 {
        prices.slow(self.sibling_busy) * self.slowdown
    }

    /// Adds time (ns) of each second to the CPU's softirqs, and returns it as a share.
    #[inline]
    pub(crate) fn softirq(self, prices: &Prices, loads: &mut Loads, ns: f64) -> f64 {
        let share = ns * self.slow(prices) / 1e9;
        loads.add_softirq(self.cpu, share);
        share
    }
}

/// A CPU that polls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Poller {
    pub(crate) place: Place,
    /// Share of the packets.
    pub(crate) share: f64,
    is_far_from_device: bool,
}

impl Poller {
    /// What a packet takes more on a CPU that is far from the device (ns).
    pub(crate) fn more_lines(&self, prices: &Prices) -> f64 {
        prices.device_lines(self.is_far_from_device) - prices.device_lines(false)
    }
}

/// Packets that are polled on one CPU and processed on one.
#[derive(Debug, Clone, Copy)]
struct Pair {
    from: Place,
    to: Place,
    /// Share of all packets that `from` polls.
    polled: f64,
    /// Share of these that `to` processes.
    part: f64,
    distance: Distance,
    /// Share of the time in which `to` idles, and in which its backlog is not scheduled.
    idle: f64,
    unscheduled: f64,
}

impl Pair {
    fn share(&self) -> f64 {
        self.polled * self.part
    }

    fn stays(&self) -> bool {
        self.from.cpu == self.to.cpu
    }
}

/// Where packets run, with what the cost of each step depends on: the same under all assumptions,
/// of which a forecast makes a dozen.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) pollers: Vec<Poller>,
    /// Pairs of the CPU that polls and the CPU that runs the protocol, which do not depend on each
    /// other under RPS.
    pairs: Vec<Pair>,
    /// Whether packets pass a backlog.
    is_steered: bool,
    pub(crate) is_threaded: bool,
    begun: f64,
}

impl Route {
    pub(crate) fn new(cpus: &impl Cpus, placed: &Placement) -> Self {
        let Placement { is_threaded, begun, .. } = *placed;
        let poller = |(cpu, share)| {
            let is_far_from_device = cpus.is_far_from_device(cpu);
            Poller { place: Place::new(cpus, cpu), share, is_far_from_device }
        };
        let pollers: Vec<Poller> = placed.poll.iter().map(poller).collect();
        let is_steered = placed.protocol.is_some();
        let mut pairs = Vec::with_capacity(pollers.len() * placed.protocol().len());
        for Poller { place: from, share: polled, .. } in &pollers {
            let own = (!is_steered).then_some((from.cpu, 1.0));
            let targets = placed.protocol.iter().flat_map(Shares::iter);
            pairs.extend(own.into_iter().chain(targets).map(|(to, part)| Pair {
                from: *from,
                to: Place::new(cpus, to),
                polled: *polled,
                part,
                distance: cpus.distance(from.cpu, to),
                idle: cpus.idle(to),
                unscheduled: 1.0 - cpus.softirq(to).min(MOST_SCHEDULED),
            }));
        }
        Self { pollers, pairs, is_steered, is_threaded, begun }
    }

    /// The packets that are polled and processed on different CPUs.
    fn steered(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().filter(|pair| !pair.stays())
    }

    /// The share of the packets that RPS takes to another CPU.
    pub(crate) fn away(&self) -> f64 {
        self.steered().map(Pair::share).sum()
    }
}

/// Packets of one kind, and what their steps cost.
pub(crate) struct Steps<'a> {
    pub(crate) route: &'a Route,
    pub(crate) prices: &'a Prices,
    /// Packets of one poll.
    pub(crate) batch: f64,
    /// Packets per second.
    pub(crate) packets: f64,
    /// Whether they are on their sender's backlog, without RPS.
    pub(crate) is_backlog: bool,
}

impl Steps<'_> {
    /// Adds polls, protocol, and what RPS takes between them.
    pub(crate) fn add(&self, loads: &mut Loads, parts: Parts) {
        self.polls(loads, parts);
        // The hash gives most CPUs the same part, and a power takes long.
        let mut last = (f64::NAN, f64::NAN, 0.0);
        for pair in &self.route.pairs {
            let packets = self.packets * pair.share();
            loads.path.protocol += pair.to.softirq(self.prices, loads, packets * parts.protocol);
            if self.route.is_steered {
                if (last.0, last.1) != (pair.polled, pair.part) {
                    last = (pair.polled, pair.part, self.sends(pair));
                }
                self.steer(loads, pair, packets, last.2);
            }
        }
    }

    fn polls(&self, loads: &mut Loads, parts: Parts) {
        for poller in &self.route.pollers {
            let poll = parts.poll_with(self.begin()) + poller.more_lines(self.prices);
            loads.path.poll +=
                poller.place.softirq(self.prices, loads, self.packets * poller.share * poll);
        }
    }

    /// What the begin of a poll costs each of its packets (ns).
    pub(crate) fn begin(&self) -> f64 {
        self.prices.begin_poll(self.route.is_threaded) * self.route.begun / self.batch
    }

    /// What RPS costs the CPUs that poll, per packet (ns): a packet passes the backlog also where
    /// it stays on its CPU.
    pub(crate) fn sending(&self) -> f64 {
        let each = |pair: &Pair| {
            let ipi = self.prices.ipi(pair.distance, pair.idle).0;
            let own = if pair.stays() { self.backlog(Distance::SameCpu) } else { 0.0 };
            pair.share() * (self.prices.enqueue() + own)
                + self.ipis(pair, self.sends(pair)) * ipi / self.packets
        };
        if self.route.is_steered { self.route.pairs.iter().map(each).sum() } else { 0.0 }
    }

    /// Time of RPS on its target CPUs, without the protocol, per packet (ns).
    pub(crate) fn receiving(&self) -> f64 {
        let each = |pair: &Pair| {
            let ipi = self.prices.ipi(pair.distance, pair.idle).1;
            let backlog = self.backlog(pair.distance);
            pair.share() * backlog + self.ipis(pair, self.sends(pair)) * ipi / self.packets
        };
        self.route.steered().map(each).sum()
    }

    fn steer(&self, loads: &mut Loads, pair: &Pair, packets: f64, sends: f64) {
        let Self { prices, .. } = self;
        let ipis = self.ipis(pair, sends);
        let (send, receive) = prices.ipi(pair.distance, pair.idle);
        let enqueue = pair.from.softirq(prices, loads, packets * prices.enqueue());
        let backlog = pair.to.softirq(prices, loads, packets * self.backlog(pair.distance));
        loads.path.steering += enqueue + backlog;
        let sent = pair.from.softirq(prices, loads, ipis * send);
        loads.path.ipis += sent + pair.to.softirq(prices, loads, ipis * receive);
        loads.ipis += ipis;
    }

    /// What a packet costs more on another CPU's backlog. If it would be on its sender's backlog
    /// otherwise, only its cache lines.
    fn backlog(&self, distance: Distance) -> f64 {
        let own = if self.is_backlog { self.prices.backlog(Distance::SameCpu) } else { 0.0 };
        self.prices.backlog(distance) - own
    }

    /// IPIs of RPS per second: one for each poll that has packets for the other CPU
    /// (`net_rps_action_and_irq_enable`), unless its backlog is scheduled. There are this many such
    /// polls.
    fn ipis(&self, pair: &Pair, polls: f64) -> f64 {
        if pair.stays() { 0.0 } else { polls * pair.unscheduled }
    }

    /// The polls per second that have packets for the CPU that processes.
    fn sends(&self, pair: &Pair) -> f64 {
        let polls = self.packets * pair.polled / self.batch;
        polls * (1.0 - (1.0 - pair.part.min(1.0)).powf(self.batch))
    }
}
