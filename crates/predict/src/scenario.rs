//! A machine, its NIC, a load and settings: what a prediction is about.

use std::borrow::Cow;

use netsilo_model::machine::cpuset::CpuSet;
use serde::Deserialize;

/// What a prediction is about, without the setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The machine under load.
    pub machine: Machine,
    /// Its NIC, and the link.
    pub nic: Nic,
    /// What the others ask of it.
    pub load: Load,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The core of each CPU; CPUs with the same core are its hardware threads.
    pub cores: Vec<u32>,
    /// Clock (GHz).
    pub ghz: f64,
    /// Age of the kernel, and with it of the CPU.
    pub kernel: Kernel,
    /// Whether a hypervisor delivers its interrupts.
    pub is_virtual: bool,
}

/// Age of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Before 4.0.
    Old,
    /// 4.0 and later.
    Recent,
}

impl Kernel {
    /// By its release, as `6.12`; `None` if this is no release.
    pub fn of(release: &str) -> Option<Self> {
        let major: u32 = release.split('.').next()?.parse().ok()?;
        Some(if major < 4 { Self::Old } else { Self::Recent })
    }
}

/// Clock of a server where none is stated (GHz).
pub const USUAL_CLOCK: f64 = 2.5;

impl Machine {
    /// Number of CPUs.
    pub fn cpu_count(&self) -> usize {
        self.cores.len()
    }
}

/// A NIC with its link.
#[derive(Debug, Clone, PartialEq)]
pub struct Nic {
    /// Rx queues, each with a tx queue on the same vector.
    pub queue_count: usize,
    /// The first queue that RSS chooses.
    pub first_rss_queue: usize,
    /// Whether the hash includes UDP ports.
    pub hashes_udp_ports: bool,
    /// Link speed (Gbit/s).
    pub gbit: f64,
    /// Longest time that the NIC holds an interrupt back (us).
    pub coalesce_us: f64,
    /// The same of the client's, which no setting changes (us).
    pub client_coalesce_us: f64,
    /// Received frames after which it does not (frames).
    pub coalesce_frames: f64,
    /// Largest packet (bytes).
    pub mtu: f64,
    /// What the bus carries (Gbit/s).
    pub bus_gbit: f64,
}

/// A load.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// Instances that each send a request and wait for its answer.
    RequestResponse(RequestResponse),
    /// Packets that are forwarded from one port to the other.
    Forward(Forward),
    /// Streams that this machine sends.
    Send(Send),
    /// A service that is described only by its shares of CPU time.
    Service(Service),
}

impl Load {
    /// What the rate of a prediction counts.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::RequestResponse(_) => "transactions/s",
            Self::Forward(_) | Self::Service(_) => "packets/s",
            Self::Send(_) => "bit/s",
        }
    }
}

/// Requests and responses.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestResponse {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Instances, each a connection with a client and a server process.
    pub instances: f64,
    /// Payload of the request, and of the response (bytes).
    pub bytes: f64,
    /// Work of the server for each request beyond answering (us).
    pub work_us: f64,
    /// CPUs that the servers may use; empty: all.
    pub cpus: CpuSet,
    /// Whether UDP servers connect their sockets, which RFS needs.
    pub connected: bool,
}

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

/// Forwarding between two ports.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// Packets that arrive at each port (packets/s).
    pub offered: f64,
    /// Whether packets arrive at both ports.
    pub two_way: bool,
    /// Size of a frame, without preamble and gap (bytes).
    pub frame_bytes: f64,
    /// What netfilter does with them.
    pub filter: Filter,
}

/// What netfilter does with forwarded packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// No rules.
    None,
    /// Rules with connection tracking.
    Conntrack,
    /// A rule in `raw` PREROUTING drops every packet.
    RawDrop,
}

/// A stream that is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Send {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Processes that send, each on a CPU of its own.
    pub senders: f64,
    /// Size of one send call (bytes).
    pub call_bytes: f64,
    /// Whether `sendfile` saves the copy.
    pub zero_copy: bool,
}

/// A service whose work per packet is known only by its shares of CPU time.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Share of all CPUs' time in user mode, without any setting.
    pub usr: f64,
    /// Share of all CPUs' time in system calls.
    pub sys: f64,
    /// Share of all CPUs' time in softirqs.
    pub softirq: f64,
}

/// Where the receive work runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Setting {
    /// CPU of each queue's interrupt; fewer than queues: taken in turn. For forwarding: the queues
    /// of the first port, then those of the second.
    pub irq: Vec<usize>,
    /// CPUs that RPS spreads packets over; empty: RPS is off.
    pub rps: Vec<usize>,
    /// Whether RFS steers flows to their readers.
    pub rfs: bool,
    /// What it changes of the scenario.
    pub changes: Changes,
}

/// What a setting changes of NIC and load; `None` is as the scenario has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    /// [`Nic::queue_count`]
    pub queue_count: Option<usize>,
    /// [`Nic::hashes_udp_ports`]
    pub hashes_udp_ports: Option<bool>,
    /// [`Nic::coalesce_us`]
    pub coalesce_us: Option<f64>,
    /// [`Nic::coalesce_frames`]
    pub coalesce_frames: Option<f64>,
    /// [`Forward::filter`]
    pub filter: Option<Filter>,
}

impl Scenario {
    /// The scenario with what `setting` changes of it.
    pub fn under(&self, setting: &Setting) -> Cow<'_, Self> {
        let changes = &setting.changes;
        if *changes == Changes::default() {
            return Cow::Borrowed(self);
        }
        let mut own = self.clone();
        let nic = &mut own.nic;
        nic.queue_count = changes.queue_count.unwrap_or(nic.queue_count);
        nic.hashes_udp_ports = changes.hashes_udp_ports.unwrap_or(nic.hashes_udp_ports);
        nic.coalesce_us = changes.coalesce_us.unwrap_or(nic.coalesce_us);
        nic.coalesce_frames = changes.coalesce_frames.unwrap_or(nic.coalesce_frames);
        if let Load::Forward(load) = &mut own.load {
            load.filter = changes.filter.unwrap_or(load.filter);
        }
        Cow::Owned(own)
    }
}
