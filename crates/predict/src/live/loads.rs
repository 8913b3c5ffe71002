//! What the receive work of an observed machine takes of each CPU under a placement.

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Distance;

use crate::live::work::{Queue, Work};
use crate::loads::{Cpus, LEAST_POLL, Loads, Parts, Place, Route, Steps};
use crate::placement::Placement;
use crate::prices::Prices;

/// Where the packets of one queue run, with what the cost of each step depends on.
#[derive(Debug, Clone)]
pub(crate) struct Routed {
    pub(crate) placement: Placement,
    route: Route,
    reads: Vec<Read>,
    wakeups: Vec<Wakeup>,
}

/// What one CPU reads.
#[derive(Debug, Clone)]
struct Read {
    cpu: CpuId,
    /// Packets per second of which it gets the lines from another CPU.
    packets: f64,
    /// The part of the packets that a CPU at this distance ran the protocol of.
    from: Vec<(f64, Distance)>,
}

/// The IPIs of wakeups per second, from one CPU to another.
#[derive(Debug, Clone, Copy)]
struct Wakeup {
    from: Place,
    to: Place,
    distance: Distance,
    ipis: f64,
}

impl Routed {
    pub(crate) fn new(work: &Work<'_>, queue: &Queue<'_>, placement: Placement) -> Self {
        let cpus = Seen { work, queue };
        let apart = 1.0 - placement.steered;
        let read = |(cpu, share)| {
            let from = |(from, part)| (part, cpus.distance(from, cpu));
            let packets = queue.packets * share * apart;
            Read { cpu, packets, from: placement.protocol().iter().map(from).collect() }
        };
        let mut wakeups = Vec::new();
        // A reader that sleeps on an idle CPU needs one, unless the protocol runs there.
        for (&to, rate) in queue.wakeups.iter().filter(|_| apart > 0.0) {
            let woken = rate * apart * cpus.idle(to);
            let others = placement.protocol().iter().filter(|(from, _)| *from != to);
            wakeups.extend(others.map(|(from, part)| Wakeup {
                from: Place::new(&cpus, from),
                to: Place::new(&cpus, to),
                distance: cpus.distance(from, to),
                ipis: woken * part,
            }));
        }
        let reads = queue.read.iter().map(read).collect();
        Self { route: Route::new(&cpus, &placement), reads, wakeups, placement }
    }

    fn steps<'a>(&'a self, queue: &Queue<'_>, prices: &'a Prices, batch: f64) -> Steps<'a> {
        let Queue { packets, is_backlog, .. } = *queue;
        Steps { route: &self.route, prices, batch, packets, is_backlog }
    }

    /// Adds the loads of a queue's packets with this number of them in a poll: divided as `now`,
    /// which was measured. `parts` are those of its packets.
    pub(crate) fn add(
        &self,
        loads: &mut Loads,
        prices: &Prices,
        queue: &Queue<'_>,
        parts: Parts,
        (now, batch): (&Self, f64),
    ) {
        if queue.ns.is_none() {
            return;
        }
        self.steps(queue, prices, batch).add(loads, parts);
        self.handlers(loads, prices, queue, (now, batch));
        // The lines that readers get from the CPU that ran the protocol.
        for Read { cpu, packets, from } in &self.reads {
            let ns: f64 = from.iter().map(|(part, it)| part * prices.lines(*it)).sum();
            let task = packets * ns / 1e9;
            loads.on_mut(*cpu).task += task;
            loads.path.lines += task;
        }
        for Wakeup { from, to, distance, ipis } in &self.wakeups {
            let (send, receive) = prices.reschedule(*distance);
            let sent = from.softirq(prices, loads, ipis * send);
            loads.path.wakeups += sent + to.softirq(prices, loads, ipis * receive);
            loads.ipis += ipis;
        }
    }

    /// The handlers of the interrupts, one for each poll: where the queue is polled, or was before
    /// a kthread does it.
    fn handlers(
        &self,
        loads: &mut Loads,
        prices: &Prices,
        queue: &Queue<'_>,
        (now, batch): (&Self, f64),
    ) {
        let ns = queue.handler_ns * now.placement.batch / batch;
        let route = if self.route.is_threaded { &now.route } else { &self.route };
        for poller in &route.pollers {
            loads.path.poll +=
                poller.place.softirq(prices, loads, queue.packets * poller.share * ns);
        }
    }

    /// Divides the measured time of a queue's packet into poll and protocol, if it was measured
    /// where the queue is placed here.
    pub(crate) fn parts(&self, work: &Work<'_>, prices: &Prices, queue: &Queue<'_>) -> Parts {
        let Some(ns) = queue.ns else { return Parts::default() };
        let steps = self.steps(queue, prices, self.placement.batch);
        let begin = steps.begin();
        if queue.is_backlog {
            return Parts { poll: 0.0, begin, protocol: ns };
        }
        // What RPS takes away from the CPU that polls, and what it costs there.
        let away = self.route.away();
        let measured = (ns - steps.sending() - self.waking(prices, queue)).max(LEAST_POLL * ns);
        if let (Some(steered), true) = (queue.steered_ns, away > 0.0) {
            let protocol = (steered - steps.receiving() / away).max(LEAST_POLL * steered);
            let poll = (measured - (1.0 - away) * protocol).max(LEAST_POLL * measured);
            return Parts { poll, begin, protocol };
        }
        let share = prices.protocol_share(queue, work.protocol_share);
        let ratio = share / (1.0 - share).max(f64::MIN_POSITIVE);
        let poll = measured / (1.0 + (1.0 - away) * ratio);
        Parts { poll, begin, protocol: poll * ratio }
    }

    /// What wakeups cost the CPUs that poll, per packet (ns).
    fn waking(&self, prices: &Prices, queue: &Queue<'_>) -> f64 {
        let sent = |it: &Wakeup| {
            let polls = self.placement.poll.contains(it.from.cpu);
            let send = prices.reschedule(it.distance).0;
            if polls { it.ipis * send / queue.packets } else { 0.0 }
        };
        self.wakeups.iter().map(sent).sum()
    }
}

/// What the polls of a queue take of the one CPU that polls it, by the packets of a poll; the rest
/// of its loads does not depend on that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollTime {
    parts: Parts,
    lines: f64,
    /// Of each poll, with the handler of its interrupt (ns).
    begin: f64,
    handler: f64,
    /// Packets per second, times what the time of one means for the CPU.
    packets: f64,
}

impl PollTime {
    /// `None` if several CPUs poll, or if RPS steers: how many IPIs it sends depends on the polls.
    pub(crate) fn new(
        prices: &Prices,
        queue: &Queue<'_>,
        parts: Parts,
        now: &Routed,
    ) -> Option<Self> {
        let [poller] = now.route.pollers.as_slice() else { return None };
        let Placement { protocol, poll, begun, batch, is_threaded, .. } = &now.placement;
        queue.ns.filter(|_| protocol.is_none() && *poll == queue.polled)?;
        Some(Self {
            parts,
            lines: poller.more_lines(prices),
            begin: prices.begin_poll(*is_threaded) * begun,
            handler: queue.handler_ns * batch,
            packets: queue.packets * poller.place.slow(prices) / 1e9,
        })
    }

    /// The share of the CPU's time.
    pub(crate) fn softirq(&self, batch: f64) -> f64 {
        let poll = self.parts.poll_with(self.begin / batch) + self.lines;
        self.packets * (poll + self.handler / batch)
    }
}

/// The CPUs as they were seen by the packets of one queue.
struct Seen<'a, 'b> {
    work: &'a Work<'b>,
    queue: &'a Queue<'b>,
}

impl Cpus for Seen<'_, '_> {
    fn softirq(&self, cpu: CpuId) -> f64 {
        self.work.seat(cpu).softirq
    }

    fn idle(&self, cpu: CpuId) -> f64 {
        self.work.seat(cpu).idle
    }

    fn sibling_busy(&self, cpu: CpuId) -> f64 {
        self.work.seat(cpu).sibling_busy
    }

    fn slowdown(&self, cpu: CpuId) -> f64 {
        self.work.seat(cpu).slowdown
    }

    fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        match [a, b].map(|cpu| self.work.seat(cpu).levels.as_ref()) {
            _ if a == b => Distance::SameCpu,
            [Some(a), Some(b)] => Distance::between(a, b),
            _ => Distance::Remote,
        }
    }

    fn is_far_from_device(&self, cpu: CpuId) -> bool {
        let (topology, node) = (&self.work.analysis.after().topology, self.queue.node);
        node.is_some() && topology.distance_from_device(node, cpu) > 10
    }
}
