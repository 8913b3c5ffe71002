//! Builds the silos of an observation: which polls, CPU time and reads belong to each queue.

use std::collections::BTreeMap;

use crate::derive::counted::add_counted;
use crate::derive::forwarding;
use crate::derive::net_threads::{polls_unlisted, times};
use crate::derive::queue_map::{Origin, QueueMap};
use crate::derive::rates::Rates;
use crate::derive::reader_spread::ReaderSpread;
use crate::derive::silo::{
    ConsumerShare, OutsideTraffic, PollRate, Silo, Silos, SoftirqShare, heaviest,
};
use crate::derive::unread::add_unknown;
use crate::derive::wakeups::{Wakeups, of_kthread};
use crate::drivers::software::SoftwareNetdev;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::{Irq, NapiId};
use crate::parse::container::Container;
use crate::parse::virtual_machine;
use crate::snapshot::attribution::{
    Attribution, AttributionSource, Consumption, CpuTime, Forwarded, Poll, Protocol,
    QueueResolution, ReaderKind,
};
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::{Napi, NapiThread, Netdev, NetdevIdentity, RxQueue, TxQueue};
use crate::snapshot::observation::Observation;

/// Builds all silos of an observation.
pub fn silos(observation: &Observation, rates: &Rates) -> Silos {
    let Observation { after, attribution, .. } = observation;
    let map = QueueMap::new(after, attribution, rates);
    let polled = map.polls_by_origin(attribution);
    let index = Index::new(after);
    let mut queues: Vec<Silo> = Vec::new();
    for netdev in &after.netdevs {
        queues.extend(
            netdev.rx_queues.iter().map(|queue| settings(after, netdev, queue, &map, &index)),
        );
    }
    queues.extend(map.queueless().map(|(netdev, napi)| Silo {
        netdev: NetdevIdentity::from_netdev(netdev),
        kthread: index.thread_of(netdev, napi.to),
        napi: Some(napi),
        ..Silo::default()
    }));
    let (read, [local, foreign, unresolved]) = consumption_by_origin(attribution, &map);
    let (sent, of_no_queue) = forwarded_by_origin(attribution, &map);
    let wakeups = Wakeups::from_attribution(attribution);
    let per_cpu = PerCpu::new(rates, attribution);
    let seconds = attribution.elapsed.as_secs_f64();
    let (times, unlisted) = (times(observation, rates), polls_unlisted(after));
    for (index, silo) in queues.iter_mut().enumerate() {
        let origin = map.origin_at(index);
        measure(silo, polled.get(&origin).map_or(&[][..], Vec::as_slice), &per_cpu);
        let irq = silo.irq.as_ref().map(|edge| edge.to);
        silo.interrupt_cpu = irq.and_then(|irq| rates.cpu_of_irq(after, irq));
        let rows = sent.get(&origin).map_or(&[][..], Vec::as_slice);
        silo.forwards = forwarding::egress_shares(rows, seconds, silo.packets_per_s.unwrap_or(0.0));
        let rows = read.get(&origin).map_or(&[][..], Vec::as_slice);
        let rows = without_copies(rows, !silo.forwards.is_empty());
        consume(silo, &rows, after, attribution);
        silo.consumers = consumers(&rows, attribution, &wakeups);
        silo.concentration = ReaderSpread::from_reads(&silo.read_on(), &after.topology);
        silo.kthread_time = silo.kthread.as_ref().and_then(|it| times.get(&it.pid)).copied();
        silo.only_wakes = silo.kthread.is_some() || (unlisted && raises_no_softirq(silo, rates));
        let woken_by = silo.kthread.as_ref().map(|thread| of_kthread(thread.pid, attribution));
        silo.kthread_woken_by = woken_by.unwrap_or_default();
    }
    let elsewhere = |rows: Vec<&Consumption>| {
        let rows = without_copies(&rows, false);
        OutsideTraffic {
            bytes_per_s: per_s(total(&rows), seconds),
            consumers: consumers(&rows, attribution, &wakeups),
        }
    };
    for silo in &mut queues {
        silo.busy_polled = per_cpu.busy_polled(silo);
    }
    add_counted(&mut queues, observation, rates);
    own_shares(&mut queues, &per_cpu, after);
    let unread_on_backlogs = add_unknown(&mut queues, observation, rates);
    let is_here = |row: &&&Consumption| after.machine.is_own_netns(row.consumer.netns);
    let unresolved_here: Vec<&Consumption> = unresolved.iter().filter(is_here).copied().collect();
    Silos {
        queues,
        local: elsewhere(local),
        foreign: elsewhere(foreign),
        unresolved: elsewhere(unresolved),
        unresolved_here: elsewhere(unresolved_here),
        forwarded: forwarding::totals(&attribution.forwarded, &of_no_queue, seconds),
        unread_on_backlogs,
    }
}

/// The time of each CPU, as far as it is known.
struct PerCpu<'a> {
    rates: &'a Rates,
    attribution: &'a Attribution,
    /// What was polled on each CPU, of all devices; `None` if polls were not counted.
    polled: Option<BTreeMap<CpuId, Polled>>,
}

/// What was polled on one CPU.
#[derive(Clone, Copy)]
struct Polled {
    packets: u64,
    /// Time of all polls in nanoseconds; `None` if that of any packet was not measured.
    ns: Option<u64>,
}

impl<'a> PerCpu<'a> {
    fn new(rates: &'a Rates, attribution: &'a Attribution) -> Self {
        let polled = counts_polls(attribution).then(|| {
            let mut polled = BTreeMap::new();
            for poll in &attribution.polls {
                let none = Polled { packets: 0, ns: Some(0) };
                let sum = polled.entry(poll.cpu).or_insert(none);
                sum.packets = sum.packets.saturating_add(poll.packets);
                let ns = poll.ns.or((poll.packets == 0).then_some(0));
                sum.ns = sum.ns.zip(ns).map(|(sum, ns)| sum.saturating_add(ns));
            }
            polled
        });
        Self { rates, attribution, polled }
    }

    fn measured_share(&self, cpu: CpuId, nanoseconds: impl Fn(&CpuTime) -> u64) -> Option<f64> {
        let elapsed = self.attribution.elapsed.as_secs_f64();
        let time = self.attribution.cpu_time.get(&cpu).filter(|_| elapsed > 0.0)?;
        Some((nanoseconds(time) as f64 / 1e9 / elapsed).min(1.0))
    }

    /// The CPUs that poll a queue often while the softirqs there are too short for that.
    fn busy_polled(&self, silo: &Silo) -> CpuSet {
        const OFTEN_PER_S: f64 = 1000.0;
        /// No packet, and no poll without one, takes less time.
        const LEAST_NS: f64 = 20.0;
        let is_busy = |(cpu, rate): &(&CpuId, &PollRate)| {
            // Its own polls in softirqs, or else all of the CPU.
            let of_cpu = || self.measured_share(**cpu, |time| time.net_rx_ns);
            let is_short =
                |share: f64| share * 1e9 <= LEAST_NS * rate.polls_per_s.max(rate.packets_per_s);
            let share = rate.time_share.or_else(of_cpu);
            rate.polls_per_s >= OFTEN_PER_S && share.is_some_and(is_short)
        };
        let polls = silo.polls.iter().filter(|_| silo.kthread.is_none());
        polls.filter(is_busy).map(|(cpu, _)| *cpu).collect()
    }

    fn softirq(&self, cpu: CpuId) -> Option<SoftirqShare> {
        if let Some(share) = self.measured_share(cpu, |time| time.softirq_ns()) {
            return Some(SoftirqShare { cpu, share, measured: true });
        }
        let share = self.rates.cpus.get(&cpu)?.shares?.softirq;
        Some(SoftirqShare { cpu, share, measured: false })
    }

    /// Share of the CPU's time in which it polls NAPIs.
    fn polling(&self, cpu: CpuId, threaded: bool) -> Option<f64> {
        let ticks = || self.rates.cpus.get(&cpu)?.shares;
        if threaded {
            return Some(ticks()?.sys);
        }
        self.measured_share(cpu, |time| time.net_rx_ns).or_else(|| Some(ticks()?.softirq))
    }
}

/// Whether polls were counted; an empty list may also mean that no packet arrived.
fn counts_polls(attribution: &Attribution) -> bool {
    attribution.source == AttributionSource::Bpf
        && attribution
            .hooks
            .iter()
            .all(|hook| !hook.hook.ends_with("napi_poll") || hook.refused.is_none())
}

/// Indexes for lookups per queue, so that thousands of queues need no scans.
struct Index<'a> {
    /// The queues of each interrupt; `true` for rx.
    announced: BTreeMap<Irq, Vec<(&'a Netdev, bool, u32)>>,
    /// NAPIs by interface index and id.
    napis: BTreeMap<(u32, NapiId), &'a Napi>,
    /// Tx queues by interface index and number.
    tx_queues: BTreeMap<(u32, u32), &'a TxQueue>,
}

impl<'a> Index<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let mut announced: BTreeMap<Irq, Vec<(&Netdev, bool, u32)>> = BTreeMap::new();
        for netdev in &snapshot.netdevs {
            let rx = netdev.rx_queues.iter().map(|rx| (&rx.irq, true, rx.index));
            let tx = netdev.tx_queues.iter().map(|tx| (&tx.irq, false, tx.index));
            for (irq, is_rx, queue) in rx.chain(tx) {
                if let Some(irq) = irq {
                    announced.entry(irq.to).or_default().push((netdev, is_rx, queue));
                }
            }
        }
        let netdevs = || snapshot.netdevs.iter();
        let napis =
            netdevs().flat_map(|dev| dev.napis.iter().map(|napi| ((dev.ifindex, napi.id), napi)));
        let tx =
            netdevs().flat_map(|dev| dev.tx_queues.iter().map(|tx| ((dev.ifindex, tx.index), tx)));
        Self { announced, napis: napis.collect(), tx_queues: tx.collect() }
    }

    fn thread_of(&self, netdev: &Netdev, napi: NapiId) -> Option<NapiThread> {
        self.napis.get(&(netdev.ifindex, napi)).filter(|_| napi.0 != 0)?.thread.clone()
    }

    /// The kthread of a netdev that a NAPI without an id polls; `None` if there are several.
    fn thread_without_id(netdev: &Netdev) -> Option<NapiThread> {
        SoftwareNetdev::from_netdev(netdev).filter(|kind| kind.is_polled_without_id())?;
        // a netdev of another network namespace may have the same name
        netdev.threaded.filter(|threaded| *threaded > 0)?;
        let mut threads =
            netdev.napis.iter().filter(|it| it.id.0 == 0).filter_map(|it| it.thread.as_ref());
        threads.next().filter(|_| threads.next().is_none()).cloned()
    }

    /// Other queues of the same interrupt; those of other devices include the device name. Of many,
    /// the first ones and the number of the others.
    fn sharers(&self, netdev: &Netdev, queue: &RxQueue, irq: Irq) -> Vec<String> {
        let all = self.announced.get(&irq).map_or(&[][..], Vec::as_slice);
        let others = all.iter().filter(|(other, is_rx, index)| {
            !(other.ifindex == netdev.ifindex && *is_rx && *index == queue.index)
        });
        let label = |(other, is_rx, index): &(&Netdev, bool, u32)| {
            let device = if other.ifindex == netdev.ifindex {
                String::new()
            } else {
                format!("{} ", other.name)
            };
            format!("{device}{}-{index}", if *is_rx { "rx" } else { "tx" })
        };
        let more = all.len().saturating_sub(MOST_SHARERS + 1);
        let more = (more > 0).then(|| format!("{more} more"));
        others.map(label).take(MOST_SHARERS).chain(more).collect()
    }
}

/// Greatest number of actions and queues that are named as sharers of an interrupt.
const MOST_SHARERS: usize = 32;

/// Builds a silo from the queue's settings in the snapshot.
fn settings(
    snapshot: &Snapshot,
    netdev: &Netdev,
    queue: &RxQueue,
    map: &QueueMap<'_>,
    index: &Index<'_>,
) -> Silo {
    let napi = map.napi_of(netdev, queue);
    let by_napi = || {
        let edge = napi.clone()?;
        let irq = index.napis.get(&(netdev.ifindex, edge.to))?.irq?;
        Some(edge.with(irq))
    };
    let irq = queue.irq.clone().or_else(by_napi);
    let state = irq.as_ref().and_then(|irq| snapshot.irqs.get(&irq.to));
    Silo {
        netdev: NetdevIdentity::from_netdev(netdev),
        queue: Some(queue.index),
        actions: state.iter().flat_map(|s| &s.actions).take(MOST_SHARERS).cloned().collect(),
        shares_irq_with: irq
            .as_ref()
            .map(|irq| index.sharers(netdev, queue, irq.to))
            .unwrap_or_default(),
        requested: state.and_then(|s| s.requested.clone()),
        effective: state.and_then(|s| s.effective.clone()),
        writable: state.map(|s| s.writable.clone()),
        kthread: match &napi {
            Some(napi) => index.thread_of(netdev, napi.to),
            None => Index::thread_without_id(netdev),
        },
        irq,
        napi,
        rps_cpus: queue.rps_cpus.clone(),
        rps_flow_cnt: queue.rps_flow_cnt,
        xps_cpus: index
            .tx_queues
            .get(&(netdev.ifindex, queue.index))
            .and_then(|tx| tx.xps_cpus.clone()),
        leased: queue.leased.clone(),
        ..Silo::default()
    }
}

/// Adds the rates of polls and interrupts by CPU.
fn measure(silo: &mut Silo, polls: &[&Poll], per_cpu: &PerCpu<'_>) {
    let seconds = per_cpu.attribution.elapsed.as_secs_f64();
    for poll in polls {
        let rate = silo.polls.entry(poll.cpu).or_default();
        rate.polls_per_s += per_s(poll.polls, seconds);
        rate.packets_per_s += per_s(poll.packets, seconds);
        let share = poll.ns.map(|ns| per_s(ns, seconds) / 1e9);
        rate.time_share = share.map(|share| share + rate.time_share.unwrap_or(0.0));
    }
    // Without polls of its NAPI the queue's packets are unknown: another NAPI may have polled it.
    let is_polled = silo.napi.is_some() || !silo.polls.is_empty();
    let known = per_cpu.polled.is_some() && is_polled;
    silo.packets_per_s = known.then(|| silo.polls.values().map(|rate| rate.packets_per_s).sum());
    let irq = silo.irq.as_ref().and_then(|irq| per_cpu.rates.irqs.get(&irq.to));
    silo.interrupts_per_s = irq.map(|rates| rates.per_s.clone());
    silo.ignores_affinity = irq.is_some_and(|rates| rates.ignores_affinity);
    silo.softirq = polling_cpu(silo).and_then(|cpu| per_cpu.softirq(cpu));
}

/// The CPU that polls the queue most: by polls, then by interrupts, then by settings.
fn polling_cpu(silo: &Silo) -> Option<CpuId> {
    let polled = heaviest(silo.polls.iter().map(|(cpu, rate)| (*cpu, rate.packets_per_s)));
    let interrupted =
        || heaviest(silo.interrupts_per_s.iter().flatten().map(|(cpu, rate)| (*cpu, *rate)));
    polled.or_else(interrupted).or_else(|| silo.effective.as_ref()?.single())
}

/// Whether the interrupts of a queue arrive, nothing is known to poll it, and the CPUs run hardly
/// any NET_RX softirqs for them. A handler that schedules a NAPI raises one.
fn raises_no_softirq(silo: &Silo, rates: &Rates) -> bool {
    /// Softirqs for each interrupt; a softirq polls the NAPIs of several interrupts.
    const HARDLY_ANY: f64 = 0.1;
    const LEAST_PER_S: f64 = 10.0;
    let softirqs = |cpu: &CpuId| rates.cpus.get(cpu)?.net_rx_per_s;
    let arrived = || silo.interrupts_per_s.iter().flatten().filter(|(_, rate)| **rate > 0.0);
    let interrupts: f64 = arrived().map(|(_, rate)| rate).sum();
    let softirqs: Option<f64> = arrived().map(|(cpu, _)| softirqs(cpu)).sum();
    silo.polls.is_empty()
        && interrupts >= LEAST_PER_S
        && softirqs.is_some_and(|all| all < HARDLY_ANY * interrupts)
}

/// The time of a queue's kthread on each CPU that polled it, in proportion to the packets; if polls
/// were not counted, on the CPU where it ran last.
fn kthread_shares(silo: &Silo, after: &Snapshot) -> Option<BTreeMap<CpuId, f64>> {
    let ran = silo.kthread_time?.ran;
    if silo.packets_per_s.is_none() && silo.polls.is_empty() {
        let thread = silo.kthread.as_ref()?;
        let last = || after.net_threads.get(&thread.pid)?.ran_on;
        return Some([(thread.cpus.single().or_else(last)?, ran)].into());
    }
    let weight = |rate: &PollRate| rate.packets_per_s + rate.polls_per_s;
    let all: f64 = silo.polls.values().map(weight).sum();
    let share = |(cpu, rate): (&CpuId, &PollRate)| (*cpu, ran * weight(rate) / all);
    (all > 0.0).then(|| silo.polls.iter().map(share).collect())
}

/// Divides each CPU's polling time among the queues polled there.
fn own_shares(queues: &mut [Silo], per_cpu: &PerCpu<'_>, after: &Snapshot) {
    let seconds = per_cpu.attribution.elapsed.as_secs_f64();
    let mut interrupts: BTreeMap<CpuId, f64> = BTreeMap::new();
    for (cpu, rate) in queues.iter().flat_map(|silo| silo.interrupts_per_s.iter().flatten()) {
        *interrupts.entry(*cpu).or_default() += rate;
    }
    for silo in queues.iter_mut() {
        if let Some(shares) = kthread_shares(silo, after) {
            silo.own_share = shares;
            continue;
        }
        if silo.only_wakes && silo.kthread.is_none() {
            continue;
        }
        let of_all = |part: f64, all: f64| if all > 0.0 { (part / all).min(1.0) } else { 0.0 };
        let parts: Vec<(CpuId, f64)> = match (&per_cpu.polled, silo.packets_per_s) {
            (Some(polled), Some(_)) => {
                let part = |cpu: &CpuId, rate: &PollRate| {
                    let all = polled.get(cpu)?;
                    Some(match all.ns.zip(rate.time_share) {
                        Some((ns, share)) => of_all(share, per_s(ns, seconds) / 1e9),
                        None => of_all(rate.packets_per_s, per_s(all.packets, seconds)),
                    })
                };
                let rates = silo.polls.iter();
                rates.map(|(cpu, rate)| (*cpu, part(cpu, rate).unwrap_or(0.0))).collect()
            }
            _ => {
                let all = |cpu| interrupts.get(&cpu).copied().unwrap_or(0.0);
                let rates = silo.interrupts_per_s.iter().flatten();
                rates.map(|(cpu, rate)| (*cpu, of_all(*rate, all(*cpu)))).collect()
            }
        };
        let threaded = silo.kthread.is_some();
        silo.own_share = parts
            .into_iter()
            .filter(|(cpu, _)| !silo.busy_polled.contains(*cpu))
            .filter_map(|(cpu, part)| Some((cpu, part * per_cpu.polling(cpu, threaded)?)))
            .collect();
    }
}

/// Groups consumption by queue, and separately what was local, foreign and unresolved.
fn consumption_by_origin<'a>(
    attribution: &'a Attribution,
    map: &QueueMap<'_>,
) -> (BTreeMap<Origin, Vec<&'a Consumption>>, [Vec<&'a Consumption>; 3]) {
    let (mut read, mut elsewhere) = (BTreeMap::new(), [const { Vec::new() }; 3]);
    for row in &attribution.consumption {
        match map.origin_of(row) {
            Origin::Local => elsewhere[0].push(row),
            Origin::Foreign => elsewhere[1].push(row),
            Origin::Unresolved => elsewhere[2].push(row),
            origin => read.entry(origin).or_insert_with(Vec::new).push(row),
        }
    }
    (read, elsewhere)
}

/// Leaves out what packet sockets read if others take the same packets: those are copies.
fn without_copies<'a>(rows: &[&'a Consumption], is_forwarded: bool) -> Vec<&'a Consumption> {
    let is_copy = |row: &&&Consumption| row.protocol == Protocol::Packet;
    let others = rows.iter().any(|row| !is_copy(&row) && row.bytes > 0);
    rows.iter().filter(|row| !(is_copy(row) && (others || is_forwarded))).copied().collect()
}

/// Groups forwarded traffic by the queue of arrival, and separately what arrived on no queue of
/// this host.
fn forwarded_by_origin<'a>(
    attribution: &'a Attribution,
    map: &QueueMap<'_>,
) -> (BTreeMap<Origin, Vec<&'a Forwarded>>, Vec<&'a Forwarded>) {
    let (mut sent, mut of_no_queue) = (BTreeMap::new(), Vec::new());
    for row in &attribution.forwarded {
        match map.origin_of_forwarded(row) {
            origin @ (Origin::Queue(..) | Origin::Napi(..)) => {
                sent.entry(origin).or_insert_with(Vec::new).push(row)
            }
            _ => of_no_queue.push(row),
        }
    }
    (sent, of_no_queue)
}

/// Adds the bytes read from the queue, and their locality.
fn consume(silo: &mut Silo, rows: &[&Consumption], snapshot: &Snapshot, attribution: &Attribution) {
    let seconds = attribution.elapsed.as_secs_f64();
    let bytes = total(rows);
    silo.bytes_per_s = (attribution.source != AttributionSource::None && seconds > 0.0)
        .then(|| per_s(bytes, seconds));
    let polled_on = heaviest(silo.polls.iter().map(|(cpu, rate)| (*cpu, rate.packets_per_s)));
    let share = |row: &Consumption| if bytes > 0 { row.bytes as f64 / bytes as f64 } else { 0.0 };
    silo.locality.bytes_per_s = per_s(bytes, seconds);
    // RPS has the protocol run elsewhere; without it, where the packet was polled.
    let is_steered = silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
    for row in rows {
        // What is not resolved is here because as much arrived where its protocol ran.
        let is_probable = row.approximate || row.resolved == QueueResolution::Unresolved;
        silo.approximate_share += if is_probable { share(row) } else { 0.0 };
        let polled = row.poll_cpu.or(polled_on).filter(|_| !is_steered);
        match row.protocol_cpu.or(polled) {
            Some(cpu) => {
                let distance = snapshot.topology.distance(cpu, row.consumer_cpu);
                *silo.protocol_cpus.entry(cpu).or_default() += share(row);
                *silo.locality.shares.entry(distance).or_default() += share(row);
            }
            None => silo.locality.unknown += share(row),
        }
    }
}

/// The name of a cgroup's container or virtual machine, or the container's label without a name.
fn container(cgroup: &str, attribution: &Attribution) -> Option<String> {
    if let Some(guest) = virtual_machine::of_cgroup(cgroup) {
        return Some(format!("virtual machine {guest}"));
    }
    let container = Container::from_path(cgroup)?;
    let name = attribution.containers.get(container.id);
    Some(name.cloned().unwrap_or_else(|| container.label()))
}

pub(super) fn consumers(
    rows: &[&Consumption],
    attribution: &Attribution,
    wakeups: &Wakeups,
) -> Vec<ConsumerShare> {
    let seconds = attribution.elapsed.as_secs_f64();
    let mut by_consumer: BTreeMap<_, Vec<&Consumption>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.bytes > 0) {
        by_consumer.entry(&row.consumer).or_default().push(row);
    }
    let all = total(rows).max(1) as f64;
    let mut consumers: Vec<(u64, ConsumerShare)> = by_consumer
        .into_iter()
        .map(|(consumer, rows)| {
            let bytes = total(&rows);
            let kind = consumer.kind();
            let mut cpus = BTreeMap::new();
            for row in &rows {
                *cpus.entry(row.consumer_cpu).or_default() += row.bytes as f64 / bytes as f64;
            }
            let mut protocols: Vec<Protocol> = rows.iter().map(|row| row.protocol).collect();
            protocols.sort_unstable();
            protocols.dedup();
            let wakeups_on = wakeups.of_reads(&rows);
            // they are counted by process
            let are_counted = kind == ReaderKind::Process;
            let share = ConsumerShare {
                tgid: consumer.tgid,
                comm: match consumer.comm.as_str() {
                    "" if kind == ReaderKind::Kernel => "softirq".into(),
                    comm => comm.into(),
                },
                kind,
                cgroup: consumer.cgroup.clone(),
                container: consumer.cgroup.as_deref().and_then(|it| container(it, attribution)),
                bytes_per_s: per_s(bytes, seconds),
                share: bytes as f64 / all,
                cpus,
                protocols,
                wakeups_per_s: (wakeups.counted && are_counted)
                    .then(|| wakeups_on.values().map(|rate| rate.per_s).sum()),
                idle_wakeups_on: (wakeups.idle_counted && are_counted).then(|| {
                    wakeups_on.iter().map(|(cpu, rate)| (*cpu, rate.idle_per_s)).collect()
                }),
                wakeups_on: wakeups_on.iter().map(|(cpu, rate)| (*cpu, rate.per_s)).collect(),
            };
            (bytes, share)
        })
        .collect();
    consumers.sort_by_key(|(bytes, consumer)| (std::cmp::Reverse(*bytes), consumer.tgid));
    consumers.into_iter().map(|(_, consumer)| consumer).collect()
}

fn total(rows: &[&Consumption]) -> u64 {
    rows.iter().fold(0, |sum, row| sum.saturating_add(row.bytes))
}

fn per_s(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests;
