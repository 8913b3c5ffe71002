//! What the receive work takes of each CPU under a placement.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Distance;
use serde::{Deserialize, Serialize};

use crate::live::placement::{Placement, on};
use crate::live::prices::Prices;
use crate::live::work::{Queue, Work};

/// Least share of the measured time that the poll keeps, where what RPS takes is subtracted.
const LEAST_POLL: f64 = 0.2;

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
    /// Of each CPU.
    pub(crate) cpus: BTreeMap<CpuId, Load>,
    /// Inter-processor interrupts per second, of RPS and of wakeups.
    pub(crate) ipis: f64,
    /// Time of each stage, as a share of one CPU.
    pub(crate) path: Path,
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
#[derive(Debug, Clone, Copy)]
struct Parts {
    poll: f64,
    /// The part of `poll` before its first packet, shared by the packets of a poll.
    begin: f64,
    protocol: f64,
}

/// Adds the loads of a queue's packets: divided as `now`, which was measured, and placed as
/// `placed`.
pub(crate) fn add(
    loads: &mut Loads,
    work: &Work<'_>,
    prices: &Prices,
    queue: &Queue<'_>,
    (now, placed): (&Placement, &Placement),
) {
    let Some(ns) = queue.ns else { return };
    let parts = parts(work, prices, queue, now, ns);
    Adding { loads, work, queue, placed, prices }.all(parts);
}

/// Divides the measured time of a packet into poll and protocol.
fn parts(work: &Work<'_>, prices: &Prices, queue: &Queue<'_>, now: &Placement, ns: f64) -> Parts {
    let share = prices.protocol_share(queue, work.protocol_share);
    let adding = Adding { loads: &mut Loads::default(), work, queue, placed: now, prices };
    if queue.is_backlog {
        return Parts { poll: 0.0, begin: adding.begin(), protocol: ns };
    }
    // What RPS takes away from the CPU that polls, and what it costs there.
    let away: f64 = adding.steered().map(|pair| pair.share).sum();
    let measured = (ns - adding.sending() - adding.waking()).max(LEAST_POLL * ns);
    if let (Some(steered), true) = (queue.steered_ns, away > 0.0) {
        let protocol = (steered - adding.receiving() / away).max(LEAST_POLL * steered);
        let poll = (measured - (1.0 - away) * protocol).max(LEAST_POLL * measured);
        return Parts { poll, begin: adding.begin(), protocol };
    }
    let ratio = share / (1.0 - share).max(f64::MIN_POSITIVE);
    let poll = measured / (1.0 + (1.0 - away) * ratio);
    Parts { poll, begin: adding.begin(), protocol: poll * ratio }
}

/// Packets that are polled on one CPU and processed on one, as a share of the queue's; or wakeups
/// from one CPU to another, per packet.
#[derive(Debug, Clone, Copy)]
struct Pair {
    from: CpuId,
    to: CpuId,
    share: f64,
}

/// The loads of one queue under a placement.
struct Adding<'a, 'b> {
    loads: &'a mut Loads,
    work: &'a Work<'b>,
    queue: &'a Queue<'b>,
    placed: &'a Placement,
    prices: &'a Prices,
}

impl Adding<'_, '_> {
    fn all(&mut self, parts: Parts) {
        self.polls(parts);
        self.protocol(parts);
        self.readers();
        self.wakeups();
    }

    /// Adds time (ns) of each second to a CPU's softirqs, and returns it as a share; it takes
    /// longer while the sibling is busy.
    fn softirq(&mut self, cpu: CpuId, ns: f64) -> f64 {
        let share = ns * self.prices.slow(self.work.sibling_busy(cpu)) / 1e9;
        self.loads.cpus.entry(cpu).or_default().softirq += share;
        share
    }

    fn polls(&mut self, parts: Parts) {
        let topology = &self.work.analysis.after().topology;
        let netdevs = &self.work.analysis.after().netdevs;
        let netdev = netdevs.iter().find(|netdev| self.queue.silo.netdev.is(netdev));
        let node = netdev.and_then(|netdev| netdev.node);
        for (cpu, share) in self.placed.poll.clone() {
            let is_far = node.is_some() && topology.distance_from_device(node, cpu) > 10;
            let lines = self.prices.device_lines(is_far) - self.prices.device_lines(false);
            let poll = (parts.poll + self.begin() - parts.begin).max(LEAST_POLL * parts.poll);
            let share = self.softirq(cpu, self.queue.packets * share * (poll + lines));
            self.loads.path.poll += share;
        }
    }

    /// What the begin of a poll costs each of its packets (ns).
    fn begin(&self) -> f64 {
        self.prices.begin_poll(self.placed.is_threaded) / self.placed.batch
    }

    /// Which CPU polls and which runs the protocol: the hash of RPS knows nothing of the first.
    fn pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (&from, &share) in &self.placed.poll {
            match &self.placed.protocol {
                None => pairs.push(Pair { from, to: from, share }),
                Some(protocol) => pairs.extend(protocol.iter().map(|(&to, part)| Pair {
                    from,
                    to,
                    share: share * part,
                })),
            }
        }
        pairs
    }

    /// The packets that another CPU processes than the one that polls.
    fn steered(&self) -> impl Iterator<Item = Pair> {
        self.pairs().into_iter().filter(|pair| pair.from != pair.to)
    }

    /// What RPS costs the CPUs that poll, per packet of the queue (ns).
    fn sending(&self) -> f64 {
        let each = |pair: Pair| {
            let ipi = self.prices.ipi(self.distance(pair)).0;
            pair.share * self.prices.enqueue() + self.ipis(pair) * ipi / self.queue.packets
        };
        self.steered().map(each).sum()
    }

    /// What wakeups cost the CPUs that poll, per packet of the queue (ns).
    fn waking(&self) -> f64 {
        let all = self.waking_pairs().into_iter();
        let polling = all.filter(|pair| self.placed.poll.contains_key(&pair.from));
        polling.map(|pair| pair.share * self.prices.ipi(self.distance(pair)).0).sum()
    }

    /// What RPS costs the CPUs that it takes packets to, beyond the protocol, per packet of the
    /// queue (ns).
    fn receiving(&self) -> f64 {
        let each = |pair: Pair| {
            let ipi = self.prices.ipi(self.distance(pair)).1;
            let backlog = self.backlog(self.distance(pair));
            pair.share * backlog + self.ipis(pair) * ipi / self.queue.packets
        };
        self.steered().map(each).sum()
    }

    fn protocol(&mut self, parts: Parts) {
        for pair in self.pairs() {
            let packets = self.queue.packets * pair.share;
            let share = self.softirq(pair.to, packets * parts.protocol);
            self.loads.path.protocol += share;
            if pair.from == pair.to {
                continue;
            }
            let (distance, ipis) = (self.distance(pair), self.ipis(pair));
            let (send, receive) = self.prices.ipi(distance);
            let enqueue = self.softirq(pair.from, packets * self.prices.enqueue());
            let backlog = self.softirq(pair.to, packets * self.backlog(distance));
            self.loads.path.steering += enqueue + backlog;
            let both = self.softirq(pair.from, ipis * send) + self.softirq(pair.to, ipis * receive);
            self.loads.path.ipis += both;
            self.loads.ipis += ipis;
        }
    }

    /// What a packet costs more on another CPU's backlog. If it would be on its sender's backlog
    /// otherwise, only its cache lines.
    fn backlog(&self, distance: Distance) -> f64 {
        let own = if self.queue.is_backlog { self.prices.backlog(Distance::SameCpu) } else { 0.0 };
        self.prices.backlog(distance) - own
    }

    /// IPIs of RPS per second: one for each poll that has packets for the other CPU
    /// (`net_rps_action_and_irq_enable`), unless its backlog is scheduled.
    fn ipis(&self, pair: Pair) -> f64 {
        let polls = self.queue.packets * on(&self.placed.poll, pair.from) / self.placed.batch;
        let part = pair.share / on(&self.placed.poll, pair.from).max(f64::MIN_POSITIVE);
        let any = 1.0 - (1.0 - part.min(1.0)).powf(self.placed.batch);
        let scheduled = self.work.cpus.get(&pair.to).map_or(0.0, |cpu| cpu.softirq);
        polls * any * (1.0 - scheduled.min(MOST_SCHEDULED))
    }

    /// The lines that readers get from the CPU that ran the protocol.
    fn readers(&mut self) {
        for (reader, share) in &self.queue.read {
            let ns: f64 = (self.placed.protocol().iter())
                .map(|(from, part)| part * self.prices.lines(self.between(*from, *reader)))
                .sum();
            let apart = 1.0 - self.placed.steered;
            let task = self.queue.packets * share * apart * ns / 1e9;
            self.loads.cpus.entry(*reader).or_default().task += task;
            self.loads.path.lines += task;
        }
    }

    /// The IPIs of wakeups: a reader that sleeps on an idle CPU needs one, unless the protocol runs
    /// there.
    fn waking_pairs(&self) -> Vec<Pair> {
        let mut all = Vec::new();
        for (to, rate) in &self.queue.wakeups {
            for (from, part) in self.placed.protocol() {
                let apart = (1.0 - self.placed.steered) * part;
                if from != to && apart > 0.0 {
                    let ipis = rate * apart * self.idle(*to);
                    all.push(Pair { from: *from, to: *to, share: ipis / self.queue.packets });
                }
            }
        }
        all
    }

    fn wakeups(&mut self) {
        for pair in self.waking_pairs() {
            let ipis = pair.share * self.queue.packets;
            let (send, receive) = self.prices.ipi(self.distance(pair));
            let both = self.softirq(pair.from, ipis * send) + self.softirq(pair.to, ipis * receive);
            self.loads.path.wakeups += both;
            self.loads.ipis += ipis;
        }
    }

    fn distance(&self, pair: Pair) -> Distance {
        self.between(pair.from, pair.to)
    }

    fn between(&self, a: CpuId, b: CpuId) -> Distance {
        self.work.analysis.after().topology.distance(a, b)
    }

    fn idle(&self, cpu: CpuId) -> f64 {
        self.work.idle(cpu)
    }
}
