//! Decodes the words of `bpf/*.h` into the values of `netsilo_model::snapshot::attribution`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::parse::kallsyms::Symbol;
use netsilo_model::snapshot::attribution::{
    Consumer, Consumption, CpuTime, Forwarded, GroupReads, Poll, Protocol, QueueResolution,
    Reschedules, Sampling, Sent, Wakeup,
};
use netsilo_model::snapshot::ip_packets::{IpClass, IpPackets};
use netsilo_model::snapshot::scheduled::{Scheduled, ScheduledBy};

use crate::bpf::cgroup::Cgroups;
use crate::bpf::functions::Functions;
use crate::bpf::layout::{self, KEY_WORDS, TIME_WORDS};
use crate::bpf::table::{Entry, Mapped};

/// The words of a CPU in `bpf/time.bpf.c` that say what is running now and when open intervals
/// began.
pub(crate) const TIME_OPEN: Range<usize> = layout::TIME_IRQ_SINCE..layout::TIME_READS;

/// The two halves of a word, upper half first.
pub(crate) fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// The byte that starts at this bit of a word.
fn field(word: u64, bit: usize) -> usize {
    usize::from((word >> bit) as u8)
}

/// Merges duplicates. A key is in two slots if a program was interrupted while it claimed the
/// first.
fn merged(entries: Vec<Entry>) -> impl Iterator<Item = Entry> {
    let mut merged: BTreeMap<(CpuId, [u64; KEY_WORDS]), Entry> = BTreeMap::new();
    for entry in entries {
        match merged.get_mut(&(entry.cpu, entry.key)) {
            Some(earlier) => {
                let sums = earlier.sums.iter_mut().zip(entry.sums);
                sums.for_each(|(sum, more)| *sum = sum.saturating_add(more));
            }
            None => _ = merged.insert((entry.cpu, entry.key), entry),
        }
    }
    merged.into_values()
}

/// Decodes entries of the table of `bpf/polls.bpf.c`.
pub(crate) fn polls(entries: Vec<Entry>) -> Vec<Poll> {
    let poll = |entry: Entry| {
        let (napi, ifindex) = halves(entry.key[layout::POLL_NAPI_IFINDEX]);
        Poll {
            napi: NapiId(napi),
            netdev: entry.label,
            ifindex,
            netns: entry.key[layout::POLL_NETNS] as u32,
            cpu: entry.cpu,
            polls: entry.sums[0],
            packets: entry.sums[1],
            ns: Some(entry.sums[2]).filter(|ns| *ns > 0),
        }
    };
    let is_poll = |entry: &Entry| entry.key[layout::POLL_IRQ] == 0;
    let mut polls: Vec<Poll> = merged(entries).filter(is_poll).map(poll).collect();
    polls.sort_unstable();
    polls
}

/// Decodes which interrupts scheduled which NAPIs: entries of the tables of polls and of wakeups.
pub(crate) fn scheduled(polls: &[Entry], wakeups: &[Entry]) -> Vec<Scheduled> {
    let mut counts: BTreeMap<Scheduled, u64> = BTreeMap::new();
    let mut count = |irq: u32, by, napi_ifindex, netns, label: &str, count| {
        let Some(irq) = irq.checked_sub(1).map(Irq) else { return };
        let (napi, ifindex) = halves(napi_ifindex);
        let (napi, netdev) = (NapiId(napi), label.to_owned());
        let row = Scheduled { irq, napi, netdev, ifindex, netns, by, count: 0 };
        add(counts.entry(row).or_default(), count);
    };
    for entry in polls {
        let (by, irq) = halves(entry.key[layout::POLL_IRQ]);
        let by = match by as usize {
            layout::BY_THREAD => ScheduledBy::Thread,
            layout::BY_SOFTIRQ => ScheduledBy::Softirq,
            _ => ScheduledBy::Handler,
        };
        let netns = entry.key[layout::POLL_NETNS] as u32;
        let napi = entry.key[layout::POLL_NAPI_IFINDEX];
        count(irq, by, napi, netns, &entry.label, entry.sums[0]);
    }
    for entry in wakeups {
        let napi = entry.key[layout::WAKEUP_NAPI_IFINDEX];
        let irq = entry.key[layout::WAKEUP_IRQ] as u32;
        count(irq, ScheduledBy::Wakeup, napi, 0, "", entry.sums[0]);
    }
    counts.into_iter().map(|(row, count)| Scheduled { count, ..row }).collect()
}

/// Decodes entries of the table of `bpf/wakeups.bpf.c`.
pub(crate) fn wakeups(entries: Vec<Entry>) -> Vec<Wakeup> {
    let wakeup = |entry: Entry| {
        let (tgid, sleeper_cpu) = halves(entry.key[layout::WAKEUP_TGID_CPU]);
        let [count, idle, unknown] = entry.sums;
        Wakeup {
            tgid,
            waker_cpu: entry.cpu,
            sleeper_cpu: CpuId(sleeper_cpu),
            count,
            idle: (unknown == 0).then_some(idle),
        }
    };
    let mut wakeups: Vec<Wakeup> = merged(entries).map(wakeup).collect();
    wakeups.sort_unstable();
    wakeups
}

const TO_TUN: u64 = 1 << layout::FORWARD_TO_TUN_BIT;

/// Whether a packet left through a tun or tap.
pub(crate) fn is_to_tun(entry: &Entry) -> bool {
    entry.key[layout::FORWARD_QUEUE_CPU] & TO_TUN != 0
}

/// Decodes entries of the table of `bpf/forward.bpf.c`.
pub(crate) fn forwarded(entries: Vec<Entry>) -> Vec<Forwarded> {
    let forwarded = |mut entry: Entry| {
        let (napi, queue) = halves(entry.key[layout::FORWARD_NAPI_QUEUE]);
        let (egress_ifindex, egress_netns) = halves(entry.key[layout::FORWARD_IFINDEX_NETNS]);
        entry.key[layout::FORWARD_QUEUE_CPU] &= !TO_TUN;
        let (tx_queue, poll_cpu) = halves(entry.key[layout::FORWARD_QUEUE_CPU]);
        Forwarded {
            napi: (napi != 0).then_some(NapiId(napi)),
            rx_queue: queue.checked_sub(1),
            poll_cpu: CpuId(poll_cpu),
            xmit_cpu: entry.cpu,
            egress: entry.label,
            egress_ifindex,
            egress_netns,
            tx_queue,
            packets: entry.sums[0],
            bytes: entry.sums[1],
        }
    };
    let mut rows: Vec<Forwarded> = merged(entries).map(forwarded).collect();
    rows.sort_unstable();
    rows
}

/// Takes what tx queues got out of entries of the table of `bpf/ip_packets.bpf.c`.
pub(crate) fn sent(entries: &mut Vec<Entry>) -> Vec<Sent> {
    let passage = |entry: &mut Entry| {
        field(entry.key[layout::IP_PASSAGE_QUEUE], layout::IP_PASSAGE_BIT) == layout::IP_SENT
    };
    let sent = |entry: Entry| {
        let (netns, ifindex) = halves(entry.key[layout::IP_NETNS_IFINDEX]);
        let tx_queue = entry.key[layout::IP_PASSAGE_QUEUE] as u32;
        Sent { netns, ifindex, tx_queue, cpu: entry.cpu, packets: entry.sums[0] }
    };
    let mut rows: Vec<Sent> = merged(entries.extract_if(.., passage).collect()).map(sent).collect();
    rows.sort_unstable();
    rows
}

/// Decodes the other entries of that table, and adds the packets that were read.
pub(crate) fn ip_packets(entries: Vec<Entry>, reads: &[Entry]) -> Vec<IpPackets> {
    let mut rows: BTreeMap<_, IpPackets> = BTreeMap::new();
    for read in reads {
        let kinds = read.key[layout::READ_KINDS];
        let carried = field(kinds, layout::CARRIED_BIT) as u8;
        let class = match field(kinds, layout::PROTOCOL_BIT) {
            layout::PROTOCOL_UDP => Some(IpClass::Udp),
            layout::PROTOCOL_RAW => Some(IpClass::Other),
            layout::PROTOCOL_TAP => IpClass::of(carried),
            _ => None,
        };
        let Some(class) = class else { continue };
        let netns = read.key[layout::READ_TGID_NETNS] as u32;
        add(&mut rows.entry((netns, class, 0, None)).or_default().read, read.sums[2]);
    }
    for entry in entries {
        let (netns, ifindex) = halves(entry.key[layout::IP_NETNS_IFINDEX]);
        let passage = entry.key[layout::IP_PASSAGE_QUEUE];
        let protocol = field(passage, layout::IP_PROTOCOL_BIT) as u8;
        let Some(class) = IpClass::of(protocol) else { continue };
        let queue = (passage as u32).checked_sub(1);
        let row = rows.entry((netns, class, ifindex, queue)).or_default();
        let [packets, bytes, _] = entry.sums;
        match field(passage, layout::IP_PASSAGE_BIT) {
            layout::IP_ENTERED => {
                add(&mut row.entered, packets);
                add(&mut row.entered_bytes, bytes);
            }
            layout::IP_TUNNELLED => {
                add(&mut row.tunnelled, packets);
                add(&mut row.tunnelled_bytes, bytes);
            }
            _ => {
                add(&mut row.left, packets);
                add(&mut row.left_bytes, bytes);
            }
        }
    }
    let named = |((netns, class, ifindex, rx_queue), row)| IpPackets {
        netns,
        class,
        ifindex,
        rx_queue,
        ..row
    };
    rows.into_iter().map(named).collect()
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Decodes entries of the table that `bpf/tcp.bpf.c`, `bpf/udp.bpf.c` and `bpf/copied.bpf.c` fill
/// (`bpf/reads.h`).
///
/// If a single CPU polled a NAPI, that NAPI's data is attributed to that CPU.
pub(crate) fn consumption(
    entries: Vec<Entry>,
    polls: &[Poll],
    cgroups: &Cgroups,
    functions: &mut Functions,
) -> Vec<Consumption> {
    functions.learn(entries.iter().filter_map(work).collect());
    let mut pollers: BTreeMap<NapiId, BTreeSet<CpuId>> = BTreeMap::new();
    for poll in polls.iter().filter(|poll| poll.polls > 0) {
        pollers.entry(poll.napi).or_default().insert(poll.cpu);
    }
    let only_poller = |napi| pollers.get(&napi).filter(|cpus| cpus.len() == 1)?.first().copied();
    let mut paths = BTreeMap::new();
    let consumed = |entry| {
        let mut read = Read::of(entry)?;
        if let Some(work) = work(&read.entry) {
            let known = functions.get(work).filter(|it| !it.name.is_empty());
            read.entry.label = known.map_or_else(|| "kworker".into(), Symbol::label);
        }
        if read.code() != 0 {
            return Some(read.consumption(None, only_poller));
        }
        let path = || cgroups.path(read.cgroup, read.tgid());
        let cgroup = paths.entry((read.cgroup, read.tgid())).or_insert_with(path).clone();
        Some(read.consumption(cgroup, only_poller))
    };
    let mut consumption: Vec<Consumption> = merged(entries).filter_map(consumed).collect();
    consumption.sort_unstable();
    consumption
}

/// The function of a workqueue's work that reads.
fn work(entry: &Entry) -> Option<u64> {
    let code = field(entry.key[layout::READ_KINDS], layout::CODE_BIT);
    (code == layout::CODE_WORK).then_some(entry.key[layout::READ_CGROUP])
}

/// Decodes the rows of sockets of a group in the same table. The sums of one socket, on all CPUs,
/// become one row.
pub(crate) fn group_reads(entries: &[Entry]) -> Vec<GroupReads> {
    let mut sockets: BTreeMap<(u64, u64), GroupReads> = BTreeMap::new();
    let protocol = |it: &Entry| field(it.key[layout::READ_KINDS], layout::PROTOCOL_BIT);
    for entry in entries.iter().filter(|it| protocol(it) == layout::PROTOCOL_MEMBER) {
        let (tgid, netns) = halves(entry.key[layout::READ_TGID_NETNS]);
        let (group, port) = halves(entry.key[layout::MEMBER_GROUP_PORT]);
        let socket = (entry.key[layout::MEMBER_SOCKET], entry.key[layout::READ_TGID_NETNS]);
        let row = sockets.entry(socket).or_insert_with(|| GroupReads {
            netns,
            port: port as u16,
            tgid,
            comm: entry.label.clone(),
            sockets: 0,
            reads: 0,
        });
        row.sockets = row.sockets.max(group as u16);
        row.reads = row.reads.saturating_add(entry.sums[1]);
    }
    let mut rows: Vec<GroupReads> = sockets.into_values().collect();
    rows.sort_unstable();
    rows
}

/// `struct read` of `bpf/reads.h`, and the thread that read.
struct Read {
    entry: Entry,
    cgroup: u64,
    protocol: Protocol,
    resolved: QueueResolution,
}

impl Read {
    /// Returns `None` for values that our programs never write.
    fn of(entry: Entry) -> Option<Self> {
        let kinds = entry.key[layout::READ_KINDS];
        let protocol = match field(kinds, layout::PROTOCOL_BIT) {
            layout::PROTOCOL_TCP => Protocol::Tcp,
            layout::PROTOCOL_UDP => Protocol::Udp,
            layout::PROTOCOL_RAW => Protocol::Raw,
            layout::PROTOCOL_ICMP => Protocol::Icmp,
            layout::PROTOCOL_PACKET => Protocol::Packet,
            layout::PROTOCOL_SCTP => Protocol::Sctp,
            layout::PROTOCOL_TAP => Protocol::Tap,
            _ => return None,
        };
        let resolved = match field(kinds, layout::RESOLVED_BIT) {
            layout::RESOLVED_DIRECT => QueueResolution::Direct,
            layout::RESOLVED_FLOW_HASH => QueueResolution::FlowHash,
            layout::RESOLVED_FIVE_TUPLE => QueueResolution::FiveTuple,
            layout::RESOLVED_LOCAL => QueueResolution::Local,
            layout::RESOLVED_UNRESOLVED => QueueResolution::Unresolved,
            _ => return None,
        };
        Some(Self { cgroup: entry.key[layout::READ_CGROUP], protocol, resolved, entry })
    }

    /// Which code of the kernel reads; 0 for a softirq, and for processes.
    fn code(&self) -> usize {
        field(self.entry.key[layout::READ_KINDS], layout::CODE_BIT)
    }

    /// 0 for the kernel, its work and threads, and for processes that are alike and share a slot.
    fn tgid(&self) -> u32 {
        let alike = field(self.entry.key[layout::READ_KINDS], layout::ALIKE_BIT) & 1 == 1;
        if alike || self.code() != 0 {
            0
        } else {
            halves(self.entry.key[layout::READ_TGID_NETNS]).0
        }
    }

    fn consumption(
        self,
        cgroup: Option<String>,
        only_poller: impl Fn(NapiId) -> Option<CpuId>,
    ) -> Consumption {
        let (tgid, (_, netns)) = (self.tgid(), halves(self.entry.key[layout::READ_TGID_NETNS]));
        let (napi, queue) = halves(self.entry.key[layout::READ_NAPI_QUEUE]);
        let (protocol_cpu, poll_cpu) = halves(self.entry.key[layout::READ_CPUS]);
        let napi = (napi != 0).then_some(NapiId(napi));
        let kinds = self.entry.key[layout::READ_KINDS];
        let work = self.code() != 0;
        Consumption {
            napi,
            rx_queue: queue.checked_sub(1),
            resolved: self.resolved,
            poll_cpu: cpu(poll_cpu).or_else(|| only_poller(napi?)),
            protocol_cpu: cpu(protocol_cpu),
            consumer_cpu: self.entry.cpu,
            consumer: Consumer { tgid, comm: self.entry.label, work, cgroup, netns },
            protocol: self.protocol,
            bytes: self.entry.sums[0],
            events: self.entry.sums[1],
            first_reads: if self.protocol == Protocol::Tcp { self.entry.sums[2] } else { 0 },
            approximate: field(kinds, layout::APPROXIMATE_BIT) & 1 == 1,
            connected: match field(kinds, layout::CONNECTED_BIT) {
                layout::CONNECTED_NO => Some(false),
                layout::CONNECTED_YES => Some(true),
                _ => None,
            },
        }
    }
}

/// Decodes a CPU number; the programs write -1 for "unknown".
fn cpu(number: u32) -> Option<CpuId> {
    i32::try_from(number).ok().map(|_| CpuId(number))
}

/// The times of each CPU that was interrupted at least once. Includes reschedule IPIs only if their
/// hooks are attached.
pub(crate) fn cpu_times(times: &Mapped, counts_reschedules: bool) -> BTreeMap<CpuId, CpuTime> {
    let cpus = times.words().chunks_exact(TIME_WORDS).enumerate();
    let time = |(cpu, words): (usize, &[std::sync::atomic::AtomicU64])| {
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        let time = CpuTime {
            net_rx_ns: word(layout::TIME_NET_RX_NS),
            net_tx_ns: word(layout::TIME_NET_TX_NS),
            other_softirq_ns: word(layout::TIME_OTHER_SOFTIRQ_NS),
            hardirq_ns: word(layout::TIME_HARDIRQ_NS),
            ipi_ns: word(layout::TIME_IPI_NS),
            net_rx_runs: word(layout::TIME_NET_RX_RUNS),
            hardirqs: word(layout::TIME_HARDIRQS),
            ipis: word(layout::TIME_IPIS),
            reschedules: None,
        };
        let reschedules = Reschedules {
            ns: word(layout::TIME_RESCHEDULE_NS),
            count: word(layout::TIME_RESCHEDULES),
        };
        if time == CpuTime::default() && reschedules == Reschedules::default() {
            return None;
        }
        let reschedules = counts_reschedules.then_some(reschedules);
        Some((CpuId(cpu as u32), CpuTime { reschedules, ..time }))
    };
    cpus.filter_map(time).collect()
}

/// The events examined so far on all CPUs, and the number of wakeups.
pub(crate) fn sampled(times: &Mapped) -> (Sampling, u64) {
    let (mut sampling, mut wakeups) = (Sampling::default(), 0);
    for words in times.words().chunks_exact(TIME_WORDS) {
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        wakeups += word(layout::TIME_WAKEUPS);
        let kinds = [
            (layout::TIME_READS, &mut sampling.reads),
            (layout::TIME_SOFTIRQS, &mut sampling.softirqs),
            (layout::TIME_OTHER_POLLS, &mut sampling.other_polls),
            (layout::TIME_DROPS, &mut sampling.drops),
        ];
        for (first, all) in kinds {
            all.events += word(first + layout::SAMPLE_EVENTS);
            all.examined += word(first + layout::SAMPLE_EXAMINED);
        }
    }
    (sampling, wakeups)
}

/// The increase of monotonic sums since the last read.
pub(crate) fn since(
    now: &BTreeMap<CpuId, CpuTime>,
    before: &BTreeMap<CpuId, CpuTime>,
) -> BTreeMap<CpuId, CpuTime> {
    let growth = |(cpu, now): (&CpuId, &CpuTime)| {
        let before = before.get(cpu).copied().unwrap_or_default();
        let reschedules = |now: Reschedules| {
            let before = before.reschedules.unwrap_or_default();
            Reschedules {
                ns: now.ns.saturating_sub(before.ns),
                count: now.count.saturating_sub(before.count),
            }
        };
        let growth = CpuTime {
            net_rx_ns: now.net_rx_ns.saturating_sub(before.net_rx_ns),
            net_tx_ns: now.net_tx_ns.saturating_sub(before.net_tx_ns),
            other_softirq_ns: now.other_softirq_ns.saturating_sub(before.other_softirq_ns),
            hardirq_ns: now.hardirq_ns.saturating_sub(before.hardirq_ns),
            ipi_ns: now.ipi_ns.saturating_sub(before.ipi_ns),
            net_rx_runs: now.net_rx_runs.saturating_sub(before.net_rx_runs),
            hardirqs: now.hardirqs.saturating_sub(before.hardirqs),
            ipis: now.ipis.saturating_sub(before.ipis),
            reschedules: now.reschedules.map(reschedules),
        };
        (*cpu, growth)
    };
    now.iter().map(growth).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_words_decode(
            words in prop::collection::vec((0..3u32, any::<[u64; 5]>(), any::<[u64; 3]>()), 0..6),
        ) {
            let entry = |(cpu, key, sums): (u32, [u64; 5], [u64; 3])| Entry {
                cpu: CpuId(cpu),
                // Only a few keys are possible, so some of them are in two slots.
                key: key.map(|word| word & 0x0101_0101_0101_0101),
                label: "eth0".into(),
                sums,
            };
            let entries: Vec<Entry> = words.into_iter().map(entry).collect();
            let rows = merged(entries.clone()).count();
            let is_poll = |entry: &Entry| entry.key[layout::POLL_IRQ] == 0;
            let polled = merged(entries.clone()).filter(is_poll).count();
            prop_assert!(polls(entries.clone()).len() == polled);
            prop_assert!(scheduled(&entries, &entries).len() <= 2 * entries.len());
            prop_assert!(wakeups(entries.clone()).len() == rows);
            prop_assert!(forwarded(entries.clone()).len() == rows);
            let read = |entry| Read::of(entry).map(|read| read.consumption(None, |_| None));
            prop_assert!(group_reads(&entries).len() <= rows);
            prop_assert!(merged(entries).filter_map(read).count() <= rows);
        }
    }
}
