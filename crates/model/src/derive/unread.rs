//! How much of what a queue receives has no known reader.
//!
//! Not every way to read has a hook (packet and raw sockets, XDP, a program whose queue was not
//! found). The shares of the known readers would read as shares of everything.

use std::collections::BTreeMap;

use crate::derive::rates::Rates;
use crate::derive::silo::Silo;
use crate::snapshot::attribution::{Attribution, AttributionSource};

/// The most bytes of headers in front of a payload: Ethernet, VLAN, IPv6, TCP with options.
const MOST_HEADERS: f64 = 120.0;

/// A smaller share without a reader may be due to reads before and after the window, and headers of
/// tunnels.
const LEAST: f64 = 0.2;

/// Least payload (bytes per second) whose share is computed.
const WORTH_COUNTING: f64 = 10_000.0;

/// Share of a netdev's packets that one queue must have for the netdev's counters to count as its.
const ALONE: f64 = 0.95;

/// Sets the share of each queue's data whose reader is not known; the readers share the rest.
pub(super) fn add_unknown(queues: &mut [Silo], attribution: &Attribution, rates: &Rates) {
    if attribution.source == AttributionSource::None || attribution.elapsed.is_zero() {
        return;
    }
    // A window misses the first read of each socket, and lost events were reads too.
    let is_whole = !attribution.windowed && attribution.lost_events == 0;
    let mut packets: BTreeMap<String, f64> = BTreeMap::new();
    for silo in queues.iter() {
        *packets.entry(silo.netdev.name.clone()).or_default() += silo.packets_per_s.unwrap_or(0.0);
    }
    for silo in queues {
        if !silo.has_traffic() {
            continue;
        }
        if silo.consumers.is_empty() && silo.forwards.is_empty() {
            (silo.unknown_share, silo.bytes_per_s) = (1.0, None);
            continue;
        }
        let all = packets.get(&silo.netdev.name).copied().unwrap_or(0.0);
        let is_alone = silo.packets_per_s.is_some_and(|it| it > 0.0 && it >= ALONE * all);
        let unknown = || share_without_reader(silo, rates.netdevs.get(&silo.netdev.name)?);
        let Some(unknown) = (is_whole && is_alone).then(unknown).flatten() else { continue };
        silo.unknown_share = unknown;
        silo.consumers.iter_mut().for_each(|consumer| consumer.share *= 1.0 - unknown);
    }
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
