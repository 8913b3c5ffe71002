//! Another number of queues of a netdev, or other hash fields: its packets spread evenly over all
//! queues.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::attribution::{Consumption, Forwarded, Poll, Protocol, Wakeup};
use netsilo_model::snapshot::ethtool::{Ethtool, FlowType};
use netsilo_model::snapshot::flow::Outer;
use netsilo_model::snapshot::host::{IrqState, Snapshot};
use netsilo_model::snapshot::netdev::{Association, Napi, Netdev, NetdevIdentity, RxQueue};

use crate::live::supposed::{CannotSuppose, QueueCost, Supposed, parts};
use crate::live::work::{Queue, Work};

/// Flows for each queue at least, so that these get about as many packets each.
const LEAST_FLOWS: usize = 4;

/// Which packets spread again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// All, over this many queues.
    All(u32),
    /// Those of UDP, whose ports the hash did not take in, over the queues that there are.
    Udp,
}

impl Moved {
    /// The share of a queue's packets.
    fn share(self, queue: &Queue<'_>) -> f64 {
        match self {
            Self::All(_) => 1.0,
            Self::Udp => queue.udp,
        }
    }

    fn has(self, protocol: Protocol) -> bool {
        self != Self::Udp || protocol == Protocol::Udp
    }

    fn words(self) -> &'static str {
        match self {
            Self::All(_) => "queues",
            Self::Udp => "hash of UDP's ports",
        }
    }
}

/// A queue of the supposed machine: where it is polled, and what was seen there.
struct NewQueue {
    number: u32,
    napi: NapiId,
    irq: Irq,
    cpu: CpuId,
}

impl Supposed {
    /// Another number of queues of one netdev.
    ///
    /// # Errors
    /// Why nothing can be said of it.
    pub(crate) fn with_queues(
        work: &Work<'_>,
        netdev: &NetdevIdentity,
        count: u32,
    ) -> Result<Self, CannotSuppose> {
        Self::spread_anew(work, netdev, Moved::All(count))
    }

    /// A hash that takes in the ports of UDP.
    ///
    /// # Errors
    /// Why nothing can be said of it.
    pub(crate) fn with_udp_ports(
        work: &Work<'_>,
        netdev: &NetdevIdentity,
    ) -> Result<Self, CannotSuppose> {
        Self::spread_anew(work, netdev, Moved::Udp)
    }

    fn spread_anew(
        work: &Work<'_>,
        netdev: &NetdevIdentity,
        moved: Moved,
    ) -> Result<Self, CannotSuppose> {
        let mut supposed = Self::same(work);
        supposed.spread(work, netdev, moved)?;
        supposed.write_ticks(work);
        Ok(supposed)
    }

    /// Spreads packets of a netdev evenly over its queues.
    pub(crate) fn spread(
        &mut self,
        work: &Work<'_>,
        netdev: &NetdevIdentity,
        moved: Moved,
    ) -> Result<(), CannotSuppose> {
        let silos: Vec<&Silo> = work.analysis.silos_of(&netdev.name).collect();
        let old: Vec<&Queue<'_>> =
            work.queues.iter().filter(|it| it.silo.netdev == *netdev).collect();
        if silos.iter().any(|silo| silo.kthread.is_some()) {
            return Err(CannotSuppose::Kthreads(netdev.name.clone()));
        }
        let known = silos.iter().all(|it| it.irq.is_some() && it.napi.is_some());
        if old.is_empty() || !known {
            return Err(CannotSuppose::NoInterrupts);
        }
        let count = match moved {
            Moved::All(count) => count,
            Moved::Udp => silos.len() as u32,
        };
        if old.iter().all(|queue| moved.share(queue) <= 0.0) {
            return Err(CannotSuppose::NoUdp(netdev.name.clone()));
        }
        let flows = self.flows(netdev, moved);
        if flows.is_some_and(|flows| flows < LEAST_FLOWS * count as usize) {
            let seen = flows.unwrap_or(0);
            return Err(CannotSuppose::FewFlows(netdev.name.clone(), moved.words(), seen, count));
        }
        let new = self.new_queues(&silos, count);
        self.put_queues(netdev, &silos, &new);
        self.move_time(&old, &new, moved);
        self.move_interrupts(&silos, &old, &new, moved);
        self.move_rows(work, netdev, &old, &new, moved);
        self.note_costs(netdev, &old, &new, moved);
        let which = if moved == Moved::Udp { "UDP flows" } else { "flows" };
        self.assumed.push(format!(
            "that the {which} of {} are many and spread evenly over {count} queues{}",
            netdev.name,
            if count as usize > silos.len() {
                "; that the interrupts of the new ones go to CPUs without one"
            } else {
                ""
            }
        ));
        Ok(())
    }

    /// How many flows spread, if they were recorded.
    fn flows(&self, netdev: &NetdevIdentity, moved: Moved) -> Option<usize> {
        let flows = &self.observation.attribution.flows;
        if flows.is_empty() {
            return None;
        }
        let spread = |outer: Outer| moved != Moved::Udp || outer.is_udp();
        let its = flows.iter().filter(|it| it.netdev == netdev.name && spread(it.outer));
        Some(its.map(|it| (it.connection, it.hash)).collect::<BTreeSet<_>>().len())
    }

    /// The queues that it then has: those that stay where they are, and new ones on CPUs that have
    /// no interrupt of the netdev, the node of the device first.
    fn new_queues(&self, silos: &[&Silo], count: u32) -> Vec<NewQueue> {
        let after = &self.observation.after;
        let home = |silo: &Silo| {
            let polls = silo.polls.iter();
            let most = polls.max_by(|a, b| a.1.packets_per_s.total_cmp(&b.1.packets_per_s));
            let set = || silo.effective.as_ref().or(silo.requested.as_ref())?.lowest();
            most.map(|(cpu, _)| *cpu).or(silo.interrupt_cpu).or_else(set)
        };
        let taken: CpuSet = silos.iter().filter_map(|silo| home(silo)).collect();
        let node = silos.first().and_then(|silo| after.netdevs.identified(&silo.netdev)?.node);
        let mut free: Vec<CpuId> = after.topology.online.iter().collect();
        free.sort_unstable_by_key(|cpu| {
            (taken.contains(*cpu), after.topology.distance_from_device(node, *cpu), cpu.0)
        });
        let mut free = free.into_iter().cycle();
        let polled = self.observation.attribution.polls.iter().map(|poll| poll.napi.0);
        let known = after.netdevs.iter().flat_map(|it| it.napis.iter().map(|napi| napi.id.0));
        let mut napi = polled.chain(known).max().unwrap_or(0);
        let mut irq = after.irqs.keys().map(|irq| irq.0).max().unwrap_or(0);
        let mut new = Vec::new();
        for number in 0..count {
            let stays = silos.iter().find(|silo| silo.queue == Some(number));
            let queue = stays.and_then(|silo| {
                let (napi, irq) = (silo.napi.as_ref()?.to, silo.irq.as_ref()?.to);
                Some(NewQueue { number, napi, irq, cpu: home(silo)? })
            });
            let queue = queue.or_else(|| {
                (napi, irq) = (napi + 1, irq + 1);
                Some(NewQueue { number, napi: NapiId(napi), irq: Irq(irq), cpu: free.next()? })
            });
            new.extend(queue);
        }
        new
    }

    /// Gives the netdev these queues, in both snapshots.
    fn put_queues(&mut self, netdev: &NetdevIdentity, silos: &[&Silo], new: &[NewQueue]) {
        let gone: BTreeSet<Irq> = (silos.iter())
            .filter(|silo| new.iter().all(|it| Some(it.number) != silo.queue))
            .filter_map(|silo| Some(silo.irq.as_ref()?.to))
            .collect();
        let gone: BTreeSet<Irq> =
            gone.into_iter().filter(|irq| new.iter().all(|it| it.irq != *irq)).collect();
        for snapshot in [&mut self.observation.before, &mut self.observation.after] {
            let Snapshot { netdevs, irqs, .. } = snapshot;
            let Some(netdev) = netdevs.identified_mut(netdev) else { continue };
            let Some(like) = netdev.rx_queues.first().cloned() else { continue };
            let state = like.irq.as_ref().and_then(|irq| irqs.get(&irq.to).cloned());
            resize(netdev, &like, new);
            irqs.retain(|irq, _| !gone.contains(irq));
            netdev.irqs.retain(|irq| !gone.contains(irq));
            for queue in new {
                if let (false, Some(state)) = (irqs.contains_key(&queue.irq), &state) {
                    netdev.irqs.push(queue.irq);
                    irqs.insert(queue.irq, interrupt_like(state, queue));
                }
            }
        }
    }

    /// Moves the time of polls.
    fn move_time(&mut self, old: &[&Queue<'_>], new: &[NewQueue], moved: Moved) {
        let mut change = BTreeMap::<CpuId, f64>::new();
        let mut all = 0.0;
        for queue in old {
            for (cpu, share) in &queue.silo.own_share {
                let part = moved.share(queue) * share;
                *change.entry(*cpu).or_default() -= part;
                all += part;
            }
        }
        for queue in new {
            *change.entry(queue.cpu).or_default() += all / new.len() as f64;
        }
        let elapsed = self.observation.attribution.elapsed.as_secs_f64();
        for (cpu, change) in change {
            let time = self.cpus.entry(cpu).or_default();
            time.softirq = (time.softirq + change).max(0.0);
            let measured = self.observation.attribution.cpu_time.entry(cpu).or_default();
            let ns = measured.net_rx_ns as f64 + change * elapsed * 1e9;
            measured.net_rx_ns = ns.max(0.0) as u64;
        }
    }

    /// Moves interrupts: those of the queues that stay, and of new ones.
    fn move_interrupts(
        &mut self,
        silos: &[&Silo],
        old: &[&Queue<'_>],
        new: &[NewQueue],
        moved: Moved,
    ) {
        let seconds = self.observation.after.at.saturating_sub(self.observation.before.at);
        let mut all = 0.0;
        let mut kept: BTreeMap<Irq, BTreeMap<CpuId, f64>> = BTreeMap::new();
        for silo in silos {
            let share = old.iter().find(|queue| queue.silo.queue == silo.queue);
            let share = share.map_or(0.0, |queue| moved.share(queue));
            let Some(irq) = &silo.irq else { continue };
            for (cpu, rate) in silo.interrupts_per_s.iter().flatten() {
                let count = rate * seconds.as_secs_f64();
                all += share * count;
                *kept.entry(irq.to).or_default().entry(*cpu).or_default() += (1.0 - share) * count;
            }
        }
        for queue in new {
            let counts = kept.entry(queue.irq).or_default().entry(queue.cpu).or_default();
            *counts += all / new.len() as f64;
        }
        let Self { observation, .. } = self;
        for queue in new {
            let before = observation.before.irqs.get(&queue.irq).map(|irq| irq.counts.clone());
            let Some(state) = observation.after.irqs.get_mut(&queue.irq) else { continue };
            state.counts = before.unwrap_or_default();
            for (cpu, count) in kept.get(&queue.irq).into_iter().flatten() {
                *state.counts.entry(*cpu).or_default() += count.round() as u64;
            }
        }
    }

    /// Moves what was counted by NAPI: polls, reads, forwarded packets, wakeups.
    fn move_rows(
        &mut self,
        work: &Work<'_>,
        netdev: &NetdevIdentity,
        old: &[&Queue<'_>],
        new: &[NewQueue],
        moved: Moved,
    ) {
        let share: BTreeMap<NapiId, f64> = (old.iter())
            .filter_map(|queue| Some((queue.silo.napi.as_ref()?.to, moved.share(queue))))
            .collect();
        // Steering decides where the protocol runs, not the queue.
        let has_rfs = self.observation.after.net.rps_sock_flow_entries.unwrap_or(0) > 0;
        let is_steered = old.iter().any(|queue| {
            let rps = queue.silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
            rps || (has_rfs && queue.silo.rps_flow_cnt.unwrap_or(0) > 0)
        });
        let attribution = &mut self.observation.attribution;
        let polled: BTreeSet<CpuId> = (attribution.polls.iter())
            .filter(|poll| share.contains_key(&poll.napi))
            .map(|poll| poll.cpu)
            .collect();
        move_polls(&mut attribution.polls, netdev, work, &share, new);
        if !is_steered {
            let is_its = |row: &Consumption| {
                row.napi.is_some_and(|napi| share.contains_key(&napi)) && moved.has(row.protocol)
            };
            let parts = moved_reads(&attribution.consumption, &polled, is_its);
            move_wakeups(&mut attribution.wakeups, &parts, new);
        }
        move_reads(
            &mut attribution.consumption,
            &share,
            new,
            |row| moved.has(row.protocol),
            |cpu| !is_steered && polled.contains(&cpu),
        );
        if moved != Moved::Udp {
            move_forwarded(&mut attribution.forwarded, &share, new, |cpu| {
                !is_steered && polled.contains(&cpu)
            });
        }
    }

    /// What the queues' packets cost, and how many arrive on each.
    fn note_costs(
        &mut self,
        netdev: &NetdevIdentity,
        old: &[&Queue<'_>],
        new: &[NewQueue],
        moved: Moved,
    ) {
        let packets: f64 = old.iter().map(|queue| queue.packets).sum();
        let known = || old.iter().filter(|queue| queue.ns.is_some());
        let known_packets: f64 = known().map(|queue| queue.packets).sum();
        let time: f64 = known().map(|queue| queue.packets * queue.ns.unwrap_or(0.0)).sum();
        let ns = (known_packets > 0.0).then(|| time / known_packets);
        // The queue on which the average packet arrived.
        let usual: f64 =
            old.iter().map(|queue| queue.packets * queue.packets).sum::<f64>() / packets;
        let spread: f64 = old.iter().map(|queue| queue.packets * moved.share(queue)).sum();
        for queue in new {
            let stays = old.iter().find(|it| it.silo.queue == Some(queue.number));
            let stays = stays.map_or(0.0, |it| it.packets * (1.0 - moved.share(it)));
            let crowd = (stays + spread / new.len() as f64) / usual.max(f64::MIN_POSITIVE);
            self.queues.insert((netdev.clone(), queue.number), QueueCost { ns, crowd });
        }
    }
}

/// Gives a netdev these queues, each like the one that it had first, or stayed.
fn resize(netdev: &mut Netdev, like: &RxQueue, new: &[NewQueue]) {
    let count = new.len();
    let edge = |irq: Irq| Some(Association { to: irq, ..like.irq.clone()? }.clone());
    let old = std::mem::take(&mut netdev.rx_queues);
    netdev.rx_queues = (new.iter())
        .map(|queue| match old.iter().find(|it| it.index == queue.number) {
            Some(stays) => stays.clone(),
            None => RxQueue {
                index: queue.number,
                irq: edge(queue.irq),
                napi: like.napi.clone().map(|napi| napi.with(queue.napi)),
                leased: None,
                ..like.clone()
            },
        })
        .collect();
    if netdev.tx_queues.len() == old.len() && old.len() != count {
        let first = netdev.tx_queues.first().cloned();
        // A tx queue on the interrupt of its rx queue, as combined channels have it.
        let is_combined = first.as_ref().is_some_and(|tx| {
            tx.irq.as_ref().map(|irq| irq.to) == like.irq.as_ref().map(|irq| irq.to)
        });
        netdev.tx_queues.retain(|tx| (tx.index as usize) < count);
        for queue in new.iter().filter(|queue| queue.number as usize >= old.len()) {
            let Some(mut tx) = first.clone() else { break };
            tx.index = queue.number;
            tx.irq = if is_combined { edge(queue.irq) } else { None };
            tx.napi = tx.napi.filter(|_| is_combined).map(|napi| napi.with(queue.napi));
            tx.xps_cpus = tx.xps_cpus.map(|_| CpuSet::new());
            tx.xps_rxqs = None;
            netdev.tx_queues.push(tx);
        }
    }
    if !netdev.napis.is_empty() {
        let has_irq = netdev.napis.iter().any(|napi| napi.irq.is_some());
        for queue in new {
            if netdev.napis.iter().all(|napi| napi.id != queue.napi) {
                let irq = has_irq.then_some(queue.irq);
                netdev.napis.push(Napi { id: queue.napi, irq, thread: None });
            }
        }
    }
    if let Some(ethtool) = &mut netdev.ethtool {
        resize_rss(ethtool, count as u32);
    }
}

/// The numbers of queues that ethtool would report, and a table that names all of them.
fn resize_rss(ethtool: &mut Ethtool, count: u32) {
    if let Reading::Value(channels) = &mut ethtool.channels {
        for limit in [&mut channels.combined, &mut channels.rx].into_iter().flatten() {
            if limit.current > 0 {
                limit.current = count;
                limit.max = limit.max.max(count);
            }
        }
    }
    if let Reading::Value(rings) = &mut ethtool.rx_rings {
        *rings = count;
    }
    if let Reading::Value(rss) = &mut ethtool.rss {
        for (at, queue) in (0..).zip(&mut rss.indirection) {
            *queue = at % count.max(1);
        }
    }
}

/// An interrupt of a new queue.
fn interrupt_like(state: &IrqState, queue: &NewQueue) -> IrqState {
    let number = |action: &String| {
        let name = action.trim_end_matches(|it: char| it.is_ascii_digit());
        format!("{name}{}", queue.number)
    };
    IrqState {
        actions: state.actions.iter().map(number).collect(),
        counts: BTreeMap::new(),
        requested: Some(CpuSet::from_cpu(queue.cpu)),
        effective: Some(CpuSet::from_cpu(queue.cpu)),
        hint: None,
        ..state.clone()
    }
}

fn move_polls(
    polls: &mut Vec<Poll>,
    netdev: &NetdevIdentity,
    work: &Work<'_>,
    share: &BTreeMap<NapiId, f64>,
    new: &[NewQueue],
) {
    let Some(device) = work.analysis.after().netdevs.identified(netdev) else {
        return;
    };
    let mut sum = Poll {
        napi: NapiId(0),
        netdev: device.name.clone(),
        ifindex: device.ifindex,
        netns: work.analysis.after().machine.netns,
        cpu: CpuId(0),
        polls: 0,
        packets: 0,
        ns: Some(0),
    };
    polls.retain_mut(|row| {
        let Some(share) = share.get(&row.napi) else { return true };
        let take = |count: &mut u64| {
            let part = (*count as f64 * share).round() as u64;
            *count -= part.min(*count);
            part
        };
        sum.polls += take(&mut row.polls);
        sum.packets += take(&mut row.packets);
        sum.ns = sum.ns.zip(row.ns.as_mut()).map(|(sum, ns)| sum + take(ns));
        sum.netns = row.netns;
        row.packets > 0
    });
    let ns: Vec<Option<u64>> = match sum.ns {
        Some(ns) => parts(ns, new.len()).map(Some).collect(),
        None => vec![None; new.len()],
    };
    let counts = parts(sum.polls, new.len()).zip(parts(sum.packets, new.len())).zip(ns);
    polls.extend(new.iter().zip(counts).map(|(queue, ((polls, packets), ns))| Poll {
        napi: queue.napi,
        cpu: queue.cpu,
        polls,
        packets,
        ns,
        ..sum.clone()
    }));
}

/// Of each polling CPU, the share of the data whose protocol runs there that moves.
fn moved_reads(
    rows: &[Consumption],
    polled: &BTreeSet<CpuId>,
    is_its: impl Fn(&Consumption) -> bool,
) -> BTreeMap<CpuId, f64> {
    let mut sums: BTreeMap<CpuId, (f64, f64)> = BTreeMap::new();
    for row in rows {
        let Some(cpu) = row.protocol_cpu.or(row.poll_cpu).filter(|cpu| polled.contains(cpu)) else {
            continue;
        };
        let (its, all) = sums.entry(cpu).or_default();
        *all += row.bytes as f64;
        *its += if is_its(row) { row.bytes as f64 } else { 0.0 };
    }
    sums.into_iter().map(|(cpu, (its, all))| (cpu, its / all.max(1.0))).collect()
}

fn move_wakeups(rows: &mut Vec<Wakeup>, moved: &BTreeMap<CpuId, f64>, new: &[NewQueue]) {
    for mut row in std::mem::take(rows) {
        let share = moved.get(&row.waker_cpu).copied().unwrap_or(0.0);
        let part = (row.count as f64 * share).round() as u64;
        row.count -= part.min(row.count);
        let each = new.iter().zip(parts(part, new.len())).filter(|(_, count)| *count > 0);
        rows.extend(each.map(|(queue, count)| Wakeup { waker_cpu: queue.cpu, count, ..row }));
        rows.extend((row.count > 0).then_some(row));
    }
}

fn move_reads(
    rows: &mut Vec<Consumption>,
    share: &BTreeMap<NapiId, f64>,
    new: &[NewQueue],
    has: impl Fn(&Consumption) -> bool,
    is_poller: impl Fn(CpuId) -> bool,
) {
    // Rows that differ in their queue only become one.
    let mut merged: BTreeMap<Consumption, (u64, u64)> = BTreeMap::new();
    for mut row in std::mem::take(rows) {
        let is_its = row.napi.is_some_and(|napi| share.contains_key(&napi)) && has(&row);
        if !is_its {
            rows.push(row);
            continue;
        }
        (row.napi, row.rx_queue) = (None, row.rx_queue.map(|_| 0));
        row.poll_cpu = row.poll_cpu.map(|_| CpuId(0));
        // The protocol runs where the queue is polled.
        let follows = row.protocol_cpu.is_none_or(&is_poller);
        let key = Consumption {
            protocol_cpu: row.protocol_cpu.filter(|_| !follows),
            bytes: 0,
            events: 0,
            ..row
        };
        let (bytes, events) = merged.entry(key).or_default();
        (*bytes, *events) = (*bytes + row.bytes, *events + row.events);
    }
    for (row, (bytes, events)) in merged {
        let counts = parts(bytes, new.len()).zip(parts(events, new.len()));
        for (queue, (bytes, events)) in new.iter().zip(counts).filter(|(_, it)| it.0 > 0) {
            rows.push(Consumption {
                napi: Some(queue.napi),
                rx_queue: row.rx_queue.map(|_| queue.number),
                poll_cpu: row.poll_cpu.map(|_| queue.cpu),
                protocol_cpu: row.protocol_cpu.or(Some(queue.cpu)),
                bytes,
                events,
                ..row.clone()
            });
        }
    }
}

fn move_forwarded(
    rows: &mut Vec<Forwarded>,
    share: &BTreeMap<NapiId, f64>,
    new: &[NewQueue],
    is_poller: impl Fn(CpuId) -> bool,
) {
    for row in std::mem::take(rows) {
        if !row.napi.is_some_and(|napi| share.contains_key(&napi)) {
            rows.push(row);
            continue;
        }
        let counts = parts(row.packets, new.len()).zip(parts(row.bytes, new.len()));
        rows.extend(new.iter().zip(counts).map(|(queue, (packets, bytes))| Forwarded {
            napi: Some(queue.napi),
            rx_queue: row.rx_queue.map(|_| queue.number),
            poll_cpu: queue.cpu,
            xmit_cpu: if is_poller(row.xmit_cpu) { queue.cpu } else { row.xmit_cpu },
            packets,
            bytes,
            ..row.clone()
        }));
    }
}

/// Whether a netdev hashes the ports of UDP, in both versions of IP; `None` if that is not known.
pub(crate) fn hashes_udp_ports(netdev: &Netdev) -> Option<bool> {
    use netsilo_model::snapshot::ethtool::HashFields;
    let ethtool = netdev.ethtool.as_ref()?;
    let fields = |flow: FlowType| ethtool.flow_hash.get(&flow)?.value().copied();
    let has = |fields: HashFields| fields.bits() & HashFields::PORTS.bits() != 0;
    match (fields(FlowType::Udp4), fields(FlowType::Udp6)) {
        (None, None) => None,
        (udp4, udp6) => Some(udp4.is_none_or(has) && udp6.is_none_or(has)),
    }
}
