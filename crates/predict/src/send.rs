//! Streams that this machine sends: the sender's CPU, the bus or the link.

use crate::parameters::Values;
use crate::prediction::{Bottleneck, CpuTime, Prediction};
use crate::scenario::{Protocol, Scenario, Send};

/// Headers of a segment: IPv4, and TCP with timestamps or UDP (bytes).
const TCP_HEADERS: f64 = 20.0 + 32.0;
const UDP_HEADERS: f64 = 20.0 + 8.0;

/// Ethernet header, checksum, preamble and gap (bytes).
const FRAMING: f64 = 38.0;

/// Returns what `load` gets: its rate is payload (bit/s).
pub fn predict(scenario: &Scenario, load: &Send, values: &Values) -> Prediction {
    let headers = match load.protocol {
        Protocol::Tcp => TCP_HEADERS,
        Protocol::Udp => UDP_HEADERS,
    };
    // A TCP segment holds bytes of several calls; a UDP datagram is one call, in fragments.
    let room = scenario.nic.mtu - headers;
    let payload = match load.protocol {
        Protocol::Tcp => room,
        Protocol::Udp => load.call_bytes / (load.call_bytes / room).ceil(),
    };
    let copy = if load.zero_copy { 0.0 } else { values.send_copy };
    let cycles =
        values.send_call / load.call_bytes + values.send_packet / payload + values.send_byte + copy;
    let seconds = cycles * values.ns_per_cycle(&scenario.machine) * 1e-9;
    let cpus = scenario.machine.cpu_count();
    let senders = load.senders.min(cpus as f64);
    let (rate, bottleneck) = [
        (senders * 8.0 / seconds, Bottleneck::Cpus),
        (scenario.nic.bus_gbit * 1e9, Bottleneck::Bus),
        (scenario.nic.gbit * 1e9 * payload / (payload + headers + FRAMING), Bottleneck::Link),
    ]
    .into_iter()
    .min_by(|a, b| a.0.total_cmp(&b.0))
    .unwrap_or((0.0, Bottleneck::Load));
    let sys = rate / 8.0 * seconds / cpus as f64;
    Prediction {
        rate,
        latency_us: None,
        cpus: vec![CpuTime { sys, ..CpuTime::default() }; cpus],
        ipis: None,
        interrupts: None,
        bottleneck,
    }
}
