//! Forwarding: packets arrive at one port and leave by the other.

use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::forward::cycles;
use crate::parameters::Values;
use crate::scenario::{Filter, Forward, Scenario, Setting};
use crate::shares::irq_cpu;
use crate::simulate::events::{SECOND, Time, time};
use crate::simulate::latency::latencies;
use crate::simulate::link::Link;
use crate::simulate::vector::Packet;

/// Frames that wait for a port at most (`txqueuelen`).
const TX_QUEUE: Time = 1000;

/// Smallest Ethernet frame, and what a frame needs beside itself: preamble, start delimiter, gap
/// (bytes).
const LEAST_FRAME: f64 = 64.0;
const FRAMING: f64 = 20.0;

/// What becomes of a packet at the end of its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It has left by this port at this time.
    Sent(usize, Time),
    /// A rule dropped it.
    Dropped,
    /// The other port's queue is full.
    Lost,
}

/// Two ports.
pub(crate) struct Ports {
    pub(crate) latencies: Histogram<u64>,
    /// What each port sends.
    links: [Link; 2],
    /// Mean time between two packets at each port (ps); `None`: none arrive.
    gaps: [Option<f64>; 2],
    /// Poll of a packet, and its way to the other port (ps).
    poll: f64,
    way: f64,
    /// Completion of a sent packet, by port (ps).
    pub(crate) completion: [f64; 2],
    /// Time of a packet on the link.
    frame: Time,
    drops: bool,
    /// CPUs that RPS spreads packets over.
    rps: Vec<usize>,
}

impl Ports {
    pub(crate) fn new(
        scenario: &Scenario,
        load: &Forward,
        setting: &Setting,
        values: &Values,
    ) -> Self {
        let cycle = values.ns_per_cycle(&scenario.machine) * 1e-9 * SECOND;
        let (receive, complete) = cycles(load, values);
        let far = if irq_cpu(setting, 0) == irq_cpu(setting, 1) { 0.0 } else { values.lines };
        let bytes = load.frame_bytes.max(LEAST_FRAME) + FRAMING;
        let gap = SECOND / load.offered;
        Self {
            latencies: latencies(),
            links: [Link::default(), Link::default()],
            gaps: [Some(gap), load.two_way.then_some(gap)],
            poll: values.poll * cycle,
            way: (receive - values.poll) * cycle,
            completion: [(complete + far) * cycle; 2],
            frame: time(bytes * 8.0 / (scenario.nic.gbit * 1e9)),
            drops: load.filter == Filter::RawDrop,
            rps: setting.rps.clone(),
        }
    }

    /// Returns when the next packet arrives at a port: a Poisson process.
    pub(crate) fn next(&self, port: u32, now: Time, rng: &mut Rng) -> Option<Time> {
        let gap = self.gaps[port as usize]?;
        Some(now + (-(1.0 - rng.f64()).ln() * gap) as Time)
    }

    /// The driver's poll of a packet (ps).
    pub(crate) fn poll(&self) -> f64 {
        self.poll
    }

    /// A packet's way to the other port (ps).
    pub(crate) fn way(&self) -> f64 {
        self.way
    }

    /// Whether RPS is on.
    pub(crate) fn is_steered(&self) -> bool {
        !self.rps.is_empty()
    }

    /// The CPU that RPS chooses for a packet; the packets are of many flows.
    pub(crate) fn steer(&self, rng: &mut Rng) -> Option<usize> {
        if self.rps.is_empty() { None } else { Some(self.rps[rng.usize(..self.rps.len())]) }
    }

    /// Sends a packet by the other port.
    pub(crate) fn send(&mut self, packet: Packet, now: Time) -> End {
        let port = 1 - packet.flow as usize;
        if self.drops {
            return End::Dropped;
        }
        if self.links[port].backlog(now) > TX_QUEUE * self.frame {
            return End::Lost;
        }
        let left = self.links[port].send(now, 1, self.frame);
        self.latencies.saturating_record((left - packet.at) / 1000);
        End::Sent(port, left)
    }
}
