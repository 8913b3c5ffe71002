//! How much of what a queue receives has no known reader.
//!
//! Not every way to read has a hook (rings of packet sockets, XDP, sockmap, a program whose queue
//! was not found). The shares of the known readers would read as shares of everything.

use std::collections::BTreeMap;

use crate::derive::rates::Rates;
use crate::derive::silo::{Silo, Unread, UnreadOnBacklogs};
use crate::snapshot::attribution::{
    Attribution, AttributionSource, Consumption, Protocol, QueueResolution,
};
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;

/// The most bytes of headers in front of a payload: Ethernet, VLAN, IPv6, TCP with options.
const MOST_HEADERS: f64 = 120.0;

/// A smaller share without a reader may be due to reads before and after the window, and headers of
/// tunnels.
const LEAST: f64 = 0.2;

/// The same where the payload that arrived was counted in the same window.
const LEAST_OF_COUNTED: f64 = 0.02;

/// Least payload (bytes per second) whose share is computed.
const WORTH_COUNTING: f64 = 10_000.0;

/// Share of a netdev's packets that one queue must have for the netdev's counters to count as its.
const ALONE: f64 = 0.95;

/// A first read of a socket may be so much larger than the mean read.
const FIRST_READ: f64 = 4.0;

/// Sets the share of each queue's data whose reader is not known; the readers share the rest.
/// Returns what arrived on netdevs without a NAPI and nobody known took.
pub(super) fn add_unknown(
    queues: &mut [Silo],
    observation: &Observation,
    rates: &Rates,
) -> Option<UnreadOnBacklogs> {
    let attribution = &observation.attribution;
    if attribution.source == AttributionSource::None || attribution.elapsed.is_zero() {
        return None;
    }
    let arrivals = Arrivals::new(observation);
    // A window misses the first read of each socket, and lost events were reads too.
    let is_whole = !attribution.windowed && attribution.lost_events == 0;
    let mut packets: BTreeMap<String, f64> = BTreeMap::new();
    for silo in queues.iter() {
        *packets.entry(silo.netdev.name.clone()).or_default() += silo.packets_per_s.unwrap_or(0.0);
    }
    let is_alone = |silo: &Silo| {
        let all = packets.get(&silo.netdev.name).copied().unwrap_or(0.0);
        silo.packets_per_s.is_some_and(|it| it > 0.0 && it >= ALONE * all)
    };
    let unread = |silo: &Silo| arrivals.as_ref()?.unread(silo, is_alone(silo));
    let mut counted: Vec<Option<Unread>> = queues.iter().map(unread).collect();
    // What was read from one queue beyond what arrived there may be what is missing in another.
    let beyond: f64 = counted.iter().flatten().map(|it| it.beyond_per_s).sum();
    counted.iter_mut().flatten().for_each(|it| it.bytes_per_s = (it.bytes_per_s - beyond).max(0.0));
    for (silo, counted) in queues.iter_mut().zip(counted) {
        if !silo.has_traffic() {
            continue;
        }
        let is_alone = is_alone(silo);
        silo.unread = counted.filter(Unread::is_much);
        if silo.consumers.is_empty() && silo.forwards.is_empty() {
            (silo.unknown_share, silo.bytes_per_s) = (1.0, None);
            continue;
        }
        let unknown = || share_without_reader(silo, rates.netdevs.get(&silo.netdev.name)?);
        let unknown = match counted {
            Some(_) => silo.unread.map(|it| it.share()),
            None => (is_whole && is_alone).then(unknown).flatten(),
        };
        if let Some(beyond) = counted.and_then(|it| it.share_beyond()) {
            silo.approximate_share = silo.approximate_share.max(beyond);
        }
        let Some(unknown) = unknown else { continue };
        silo.unknown_share = unknown;
        silo.consumers.iter_mut().for_each(|consumer| consumer.share *= 1.0 - unknown);
    }
    arrivals?.unread_on_backlogs(queues).filter(|it| it.unread.is_much())
}

/// The least share of a queue's payload that nobody known took, by its netdev's counters; `None` if
/// they count too little, or not more than what is known.
fn share_without_reader(silo: &Silo, counters: &BTreeMap<String, f64>) -> Option<f64> {
    let (bytes, packets) = (counters.get("rx_bytes")?, counters.get("rx_packets")?);
    let received = bytes - packets * MOST_HEADERS;
    let forwarded: f64 = silo.forwards.iter().map(|to| to.bytes_per_s).sum();
    let known = silo.bytes_per_s.unwrap_or(0.0) + forwarded;
    let share = 1.0 - known / received;
    (received >= WORTH_COUNTING && share >= LEAST).then_some(share)
}

impl Unread {
    fn is_much(&self) -> bool {
        self.bytes_per_s >= WORTH_COUNTING && self.share() >= LEAST_OF_COUNTED
    }

    /// The share of what arrived.
    fn share(&self) -> f64 {
        self.bytes_per_s / self.arrived_per_s
    }

    /// The share of what was read that exceeds what arrived; `None` if that is little.
    fn share_beyond(&self) -> Option<f64> {
        let beyond = self.beyond_per_s / (self.arrived_per_s + self.beyond_per_s);
        (self.beyond_per_s >= WORTH_COUNTING && beyond >= LEAST_OF_COUNTED).then_some(beyond)
    }
}

/// The payload that arrived, by netdev and rx queue, and all that may have become of it.
struct Arrivals<'a> {
    attribution: &'a Attribution,
    after: &'a Snapshot,
    /// Bytes per second that may be of any netdev: dropped (by a VLAN or bridge on top of it, too)
    /// or consumed by a tunnel.
    of_any: f64,
    /// Bytes per second that were read and whose queue was not found: in another namespace only if
    /// packets leave this one.
    unresolved: f64,
    /// The same that taps took. What leaves through a tun or tap is also in what left.
    unresolved_by_taps: f64,
    /// Bytes per second of reads that were not counted, at most: the first of each TCP socket.
    uncounted: f64,
}

impl<'a> Arrivals<'a> {
    /// `None` if not all of it was counted.
    fn new(observation: &'a Observation) -> Option<Self> {
        let attribution = &observation.attribution;
        let netns = observation.after.machine.netns;
        let here = || attribution.ip_packets.iter().filter(|it| it.netns == netns);
        let left = here().any(|it| it.left > 0);
        let forwards = attribution.counts("forwarded packets");
        let is_whole = attribution.counts_ip_packets()
            && attribution.counts_drops()
            && attribution.counts("tcp bytes")
            && attribution.counts("udp bytes")
            && attribution.lost_events == 0
            && (forwards || !left);
        if !is_whole {
            return None;
        }
        let unresolved = attribution.consumption.iter().filter(|it| {
            let may_be_here = left || it.consumer.netns == netns;
            may_be_here && it.resolved == QueueResolution::Unresolved
        });
        let by_taps = unresolved.clone().filter(|it| it.protocol == Protocol::Tap);
        let by_taps: u64 = by_taps.map(|it| it.bytes).sum();
        let unresolved = unresolved.filter(|it| it.protocol.is_counted_on_entry());
        let unresolved: u64 = unresolved.map(|it| it.bytes).sum();
        let tunnelled: u64 = here().map(|it| it.tunnelled_bytes).sum();
        let dropped = attribution.drops.iter().filter(|it| !it.is_sent());
        let dropped = dropped.filter(|it| it.netns == netns || it.netns == 0);
        let dropped: u64 = dropped.map(|it| it.bytes).sum();
        let sum = |of: &dyn Fn(&Consumption) -> u64| {
            attribution.consumption.iter().map(of).sum::<u64>() as f64
        };
        let (bytes, events) = (sum(&|it| it.bytes), sum(&|it| it.events));
        let first_reads = sum(&|it| it.first_reads);
        let mean = if events > first_reads { bytes / (events - first_reads) } else { f64::MAX };
        let uncounted = if first_reads > 0.0 { first_reads * mean * FIRST_READ } else { 0.0 };
        let seconds = attribution.elapsed.as_secs_f64();
        Some(Self {
            attribution,
            after: &observation.after,
            of_any: (dropped as f64 + tunnelled as f64 * TUNNEL_HEADERS) / seconds,
            unresolved: unresolved as f64 / seconds,
            unresolved_by_taps: by_taps as f64 / seconds,
            uncounted: uncounted / seconds,
        })
    }

    /// `None` if it is not known how much arrived on the queue.
    fn unread(&self, silo: &Silo, is_alone: bool) -> Option<Unread> {
        let seconds = self.attribution.elapsed.as_secs_f64();
        let netdev = self.after.netdevs.iter().find(|it| silo.netdev.is(it))?;
        let (netns, ifindex) = (self.after.machine.netns, netdev.ifindex);
        let rows = self.attribution.ip_packets.iter();
        let rows = rows.filter(|it| (it.netns, it.ifindex) == (netns, ifindex));
        let mine = |queue: Option<u32>| is_alone || (queue.is_some() && queue == silo.queue);
        let arrived: u64 = rows.filter(|it| mine(it.rx_queue)).map(|it| it.entered_bytes).sum();
        if arrived == 0 {
            return None;
        }
        let napi = silo.napi.as_ref().map(|it| it.to);
        let others = self.attribution.consumption.iter().filter(|it| it.napi == napi);
        let others = others.filter(|it| !it.protocol.is_counted_on_entry());
        let per_s = |bytes: u64| bytes as f64 / seconds;
        // A tap takes whole packets, like a netdev that sends them on.
        let taps = others.clone().filter(|it| it.protocol == Protocol::Tap);
        let taps = per_s(taps.map(|it| it.bytes).sum());
        let others = per_s(others.map(|it| it.bytes).sum());
        let read = (silo.bytes_per_s.unwrap_or(0.0) - others).max(0.0);
        let forwarded: f64 = silo.forwards.iter().map(|to| to.bytes_per_s).sum();
        Some(self.rest(
            per_s(arrived),
            read,
            forwarded + taps + self.unresolved + self.unresolved_by_taps,
        ))
    }

    /// What sockets of this machine send each other, too, has no queue: it is judged as a whole.
    fn unread_on_backlogs(&self, queues: &[Silo]) -> Option<UnreadOnBacklogs> {
        let seconds = self.attribution.elapsed.as_secs_f64();
        let netns = self.after.machine.netns;
        let per_s = |bytes: u64| bytes as f64 / seconds;
        let polled =
            |netdev: &Netdev| queues.iter().any(|it| it.netdev.is(netdev) && it.has_traffic());
        let netdevs = self.after.netdevs.iter().filter(|it| !polled(it));
        let mut names = BTreeMap::from([(LOOPBACK, "lo".to_owned())]);
        names.extend(netdevs.map(|it| (it.ifindex, it.name.clone())));
        let here = || self.attribution.ip_packets.iter().filter(|it| it.netns == netns);
        names.retain(|ifindex, _| here().any(|it| it.ifindex == *ifindex && it.entered_bytes > 0));
        let arrived = here().filter(|it| names.contains_key(&it.ifindex));
        let arrived = per_s(arrived.map(|it| it.entered_bytes).sum());
        let left = per_s(here().map(|it| it.left_bytes).sum());
        let local = self
            .attribution
            .consumption
            .iter()
            .filter(|it| it.consumer.netns == netns && it.resolved == QueueResolution::Local)
            .filter(|it| it.protocol.is_counted_on_entry());
        let read = per_s(local.map(|it| it.bytes).sum()) + self.unresolved;
        (arrived > 0.0).then(|| UnreadOnBacklogs {
            netdevs: names.into_values().collect(),
            unread: self.rest(arrived, read, left),
        })
    }

    /// What is left of these bytes per second.
    fn rest(&self, arrived_per_s: f64, read: f64, forwarded: f64) -> Unread {
        let reads = self.attribution.sampling.reads;
        let share = (read / arrived_per_s).clamp(0.01, 1.0);
        let error = if reads.is_complete() { 0.0 } else { read * reads.error(share) };
        let gap = arrived_per_s - read - forwarded - self.of_any - self.uncounted - error;
        Unread {
            bytes_per_s: gap.max(0.0),
            arrived_per_s,
            beyond_per_s: (read - arrived_per_s - error).max(0.0),
        }
    }
}

/// The interface index of the loopback in each network namespace.
const LOOPBACK: u32 = 1;

/// The bytes of outer packets for each byte that comes out of a tunnel, at most.
const TUNNEL_HEADERS: f64 = 1.3;

#[cfg(test)]
mod tests;
