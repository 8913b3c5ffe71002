//! The work of one request with its answer, from the parameters. Both forms of the model use it.

use crate::parameters::Values;
use crate::scenario::{Protocol, RequestResponse, Scenario, Setting};

/// Preamble, start delimiter, checksum and gap of an Ethernet frame (bytes).
pub(crate) const FRAMING: f64 = 24.0;

/// Smallest frame without its checksum (bytes).
pub(crate) const LEAST_FRAME: f64 = 60.0;

/// Frames up to this are copied into a small buffer by the driver (bytes): `RX_COPY_THRESH` of
/// bnx2, other drivers have up to 256.
const COPIED: f64 = 128.0;

/// The work of one transaction (cycles).
pub(crate) struct Transaction<'a> {
    load: &'a RequestResponse,
    values: &'a Values,
    /// Packets in each direction.
    pub(crate) packets: f64,
    /// Whether a packet is too large for the driver to copy it.
    is_large: bool,
    /// Time of one packet on the link (s).
    pub(crate) frame_time: f64,
    /// Whether RFS brings packets to their readers.
    pub(crate) steers: bool,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(
        scenario: &Scenario,
        load: &'a RequestResponse,
        setting: &Setting,
        values: &'a Values,
    ) -> Self {
        let headers = match load.protocol {
            Protocol::Tcp => 14.0 + 20.0 + 32.0,
            Protocol::Udp => 14.0 + 20.0 + 8.0,
        };
        let packets = (load.bytes / (scenario.nic.mtu + 14.0 - headers)).ceil().max(1.0);
        let frame = (load.bytes / packets + headers).max(LEAST_FRAME) + FRAMING;
        let knows_flows = load.protocol == Protocol::Tcp || load.connected;
        Self {
            load,
            values,
            packets,
            is_large: frame - FRAMING > COPIED,
            frame_time: frame * 8.0 / (scenario.nic.gbit * 1e9),
            steers: setting.rfs && !setting.rps.is_empty() && knows_flows,
        }
    }

    /// The driver's poll, all packets.
    pub(crate) fn poll(&self) -> f64 {
        let buffer = if self.is_large { self.values.new_buffer } else { 0.0 };
        self.packets * (self.values.poll + buffer) + self.values.poll_byte * self.load.bytes
    }

    /// The protocol's input, one packet.
    pub(crate) fn input(&self) -> f64 {
        match self.load.protocol {
            Protocol::Tcp => self.values.tcp,
            Protocol::Udp => self.values.udp,
        }
    }

    /// The completion of one packet of an answer.
    pub(crate) fn completion(&self) -> f64 {
        match self.load.protocol {
            Protocol::Tcp => self.values.completion,
            Protocol::Udp => self.values.completion_udp,
        }
    }

    /// The reader without [`Self::lines`].
    pub(crate) fn reader(&self) -> f64 {
        let call = match self.load.protocol {
            Protocol::Tcp => self.values.syscall_tcp,
            Protocol::Udp => self.values.syscall_udp,
        };
        call + self.values.user + 2.0 * self.load.bytes * self.values.copy_byte
    }

    /// More for the reader, and as much for the protocol, if they run on different cores.
    pub(crate) fn lines(&self) -> f64 {
        self.packets * self.values.lines
    }

    /// The client: it does what the server does.
    pub(crate) fn client(&self) -> f64 {
        let softirq =
            self.poll() + self.packets * (self.input() + self.completion()) + self.values.wakeup;
        let lines = if self.steers { 0.0 } else { self.lines() };
        self.values.client * (softirq + self.reader() + lines)
    }
}

/// How much slower a CPU is while another hardware thread of its core is busy (0 is not at all).
pub(crate) fn contention(values: &Values) -> f64 {
    (2.0 / values.smt - 1.0).max(0.0)
}

/// The same for the client, whose machine is like the server's.
pub(crate) fn client_contention(values: &Values, siblings: &[Vec<usize>]) -> f64 {
    let has_threads = siblings.iter().any(|others| !others.is_empty());
    if has_threads { contention(values) } else { 0.0 }
}
