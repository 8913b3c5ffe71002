//! What the receive work of an observed machine takes of each CPU under a placement.

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Distance;

use crate::live::work::{Queue, Work};
use crate::loads::{Cpus, LEAST_POLL, Loads, Parts, Steps};
use crate::placement::Placement;
use crate::prices::Prices;

/// Adds the loads of a queue's packets: divided as `now`, which was measured, and placed as
/// `placed`, with that number of packets in a poll. `parts` are those of its packets.
pub(crate) fn add(
    loads: &mut Loads,
    work: &Work<'_>,
    prices: &Prices,
    queue: &Queue<'_>,
    parts: Parts,
    (now, placed, batch): (&Placement, &Placement, f64),
) {
    if queue.ns.is_none() {
        return;
    }
    let cpus = Seen { work, queue };
    let steps = Steps { batch, ..steps(&cpus, prices, placed) };
    steps.add(loads, parts);
    handlers(&steps, now, loads);
    readers(&steps, loads);
    for (from, to, ipis) in woken(&steps) {
        let (send, receive) = prices.reschedule(steps.cpus.distance(from, to));
        let sent = steps.softirq(loads, from, ipis * send);
        loads.path.wakeups += sent + steps.softirq(loads, to, ipis * receive);
        loads.ipis += ipis;
    }
}

fn steps<'a, 'b>(
    cpus: &'a Seen<'a, 'b>,
    prices: &'a Prices,
    placed: &'a Placement,
) -> Steps<'a, Seen<'a, 'b>> {
    let Queue { packets, is_backlog, .. } = *cpus.queue;
    Steps { cpus, prices, placed, batch: placed.batch, packets, is_backlog }
}

/// Divides the measured time of a queue's packet into poll and protocol.
pub(crate) fn parts(work: &Work<'_>, prices: &Prices, queue: &Queue<'_>, now: &Placement) -> Parts {
    let Some(ns) = queue.ns else { return Parts::default() };
    let cpus = Seen { work, queue };
    let steps = &steps(&cpus, prices, now);
    let begin = steps.begin();
    if queue.is_backlog {
        return Parts { poll: 0.0, begin, protocol: ns };
    }
    // What RPS takes away from the CPU that polls, and what it costs there.
    let away = steps.away();
    let measured = (ns - steps.sending() - waking(steps)).max(LEAST_POLL * ns);
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

/// The handlers of the interrupts, one for each poll: where the queue is polled, or was before a
/// kthread does it.
fn handlers(steps: &Steps<'_, Seen<'_, '_>>, now: &Placement, loads: &mut Loads) {
    let ns = steps.cpus.queue.handler_ns * now.batch / steps.batch;
    let placed = if steps.placed.is_threaded { now } else { steps.placed };
    for (cpu, share) in &placed.poll {
        loads.path.poll += steps.softirq(loads, *cpu, steps.packets * share * ns);
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
        work: &Work<'_>,
        prices: &Prices,
        queue: &Queue<'_>,
        parts: Parts,
        now: &Placement,
    ) -> Option<Self> {
        let cpus = Seen { work, queue };
        let cpu = *now.poll.keys().next().filter(|_| now.poll.len() == 1)?;
        queue.ns.filter(|_| now.protocol.is_none() && now.poll == queue.polled)?;
        Some(Self {
            parts,
            lines: steps(&cpus, prices, now).more_lines(cpu),
            begin: prices.begin_poll(now.is_threaded) * now.begun,
            handler: queue.handler_ns * now.batch,
            packets: queue.packets * prices.slow(cpus.sibling_busy(cpu)) / 1e9,
        })
    }

    /// The share of the CPU's time.
    pub(crate) fn softirq(&self, batch: f64) -> f64 {
        let poll = self.parts.poll_with(self.begin / batch) + self.lines;
        self.packets * (poll + self.handler / batch)
    }
}

/// The lines that readers get from the CPU that ran the protocol.
fn readers(steps: &Steps<'_, Seen<'_, '_>>, loads: &mut Loads) {
    for (reader, share) in &steps.cpus.queue.read {
        let ns: f64 = (steps.placed.protocol().iter())
            .map(|(from, part)| part * steps.prices.lines(steps.cpus.distance(*from, *reader)))
            .sum();
        let apart = 1.0 - steps.placed.steered;
        let task = steps.packets * share * apart * ns / 1e9;
        loads.on_mut(*reader).task += task;
        loads.path.lines += task;
    }
}

/// The IPIs of wakeups per second, from one CPU to another: a reader that sleeps on an idle CPU
/// needs one, unless the protocol runs there.
fn woken(steps: &Steps<'_, Seen<'_, '_>>) -> impl Iterator<Item = (CpuId, CpuId, f64)> {
    let apart = 1.0 - steps.placed.steered;
    steps.cpus.queue.wakeups.iter().filter(move |_| apart > 0.0).flat_map(move |(to, rate)| {
        let woken = rate * apart * steps.cpus.idle(*to);
        let others = steps.placed.protocol().iter().filter(move |(from, _)| *from != to);
        others.map(move |(from, part)| (*from, *to, woken * part))
    })
}

/// What wakeups cost the CPUs that poll, per packet (ns).
fn waking(steps: &Steps<'_, Seen<'_, '_>>) -> f64 {
    let sent = |(from, to, ipis): (CpuId, CpuId, f64)| {
        let polls = steps.placed.poll.contains_key(&from);
        let send = steps.prices.reschedule(steps.cpus.distance(from, to)).0;
        if polls { ipis * send / steps.packets } else { 0.0 }
    };
    woken(steps).map(sent).sum()
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
