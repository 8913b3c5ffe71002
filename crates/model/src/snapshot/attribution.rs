//! Who polled each NAPI and who read its data: what the eBPF programs (or, without them, sock_diag)
//! counted in a window.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::machine::ids::NapiId;
use crate::snapshot::flow::Flow;
use crate::snapshot::runqueue::RunqueueLatency;
use crate::snapshot::stage_samples::StageSamples;

/// What was counted in one window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// How it was counted.
    pub source: Source,
    /// Time during which the hooks were attached.
    pub elapsed: Duration,
    /// Attached for this window only: the first event of each socket set its baseline, so bytes are
    /// a lower bound.
    pub windowed: bool,
    /// NAPI polls by instance and CPU.
    pub polls: Vec<Poll>,
    /// Bytes read, by queue, CPUs and consumer.
    pub consumption: Vec<Consumption>,
    /// Sleeping threads that receive work woke, by thread group and CPUs.
    #[serde(default)]
    pub wakeups: Vec<Wakeup>,
    /// Packets that left again, by where they came in and where they went.
    #[serde(default)]
    pub forwarded: Vec<Forwarded>,
    /// Which flows came through which rx queue; empty when it was not asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<Flow>,
    /// Packets, after GRO, of flows that found no room in that table.
    #[serde(default)]
    pub flows_missed: u64,
    /// Where receive work spends its time; `None` when it was not asked for.
    #[serde(default)]
    pub stages: Option<StageSamples>,
    /// How long threads that read sockets waited for a CPU; `None` when it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runqueue_latency: Option<RunqueueLatency>,
    /// True interrupt time per CPU; empty where it could not be measured.
    pub cpu_time: BTreeMap<CpuId, CpuTime>,
    /// Each hook: attached, or why it can't run here.
    pub hooks: Vec<Hook>,
    /// Events that found no room in a table and were not counted.
    pub lost_events: u64,
}

/// How the attribution was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Not at all; the hooks say why.
    #[default]
    None,
    /// By eBPF programs in the kernel.
    Bpf,
    /// By sock_diag byte counters and `pidfd_getfd`: TCP only, CPUs sampled.
    SockDiag,
}

/// Polls of one NAPI instance on one CPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Poll {
    /// The NAPI instance; 0 for those without an id (transmit, backlog), which `ifindex` and
    /// `netns` tell apart.
    pub napi: NapiId,
    /// Name of its device, in the network namespace of the device; empty for the backlog (RPS,
    /// veth, loopback).
    pub netdev: String,
    /// Interface index of its device, in that namespace.
    pub ifindex: u32,
    /// Inode number of that namespace (`/proc/<pid>/ns/net`), 0 when not known.
    pub netns: u32,
    /// The CPU that polled.
    pub cpu: CpuId,
    /// Times polled.
    pub polls: u64,
    /// Packets that the polls returned (LRO and hardware-GRO aggregates count as one).
    pub packets: u64,
}

/// Bytes that one consumer read, of one queue, on one CPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Consumption {
    /// The NAPI instance that the data came through; `None` when unresolved.
    pub napi: Option<NapiId>,
    /// The rx queue, as the driver recorded it in the packet; `None` when it did not (veth) or
    /// unresolved.
    pub rx_queue: Option<u32>,
    /// How napi and queue were found.
    pub resolved: Resolved,
    /// The CPU that polled the packets; `None` when only known through [`Attribution::polls`].
    pub poll_cpu: Option<CpuId>,
    /// The CPU that ran the protocol (`sk_incoming_cpu`): under RPS another one than the CPU that
    /// polled.
    pub protocol_cpu: Option<CpuId>,
    /// The CPU on which the consumer read.
    pub consumer_cpu: CpuId,
    /// The consumer.
    pub consumer: Consumer,
    /// Transport.
    pub protocol: Protocol,
    /// Bytes of payload read.
    pub bytes: u64,
    /// Reads that were counted.
    pub events: u64,
    /// The bytes are right, the queue may be that of another packet of the same socket.
    pub approximate: bool,
    /// The UDP socket has one peer: RFS goes by where such are read, and by no others. `None` for
    /// TCP, or when that was not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
}

/// How often receive work (the NET_RX softirq, or a NAPI's kthread) on one CPU woke a sleeping
/// thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Wakeup {
    /// The thread group that was woken; kernel threads are not counted.
    pub tgid: u32,
    /// The CPU that ran the receive work.
    pub waker_cpu: CpuId,
    /// The CPU on which the thread went to sleep; unless the scheduler moves it, it wakes there.
    pub sleeper_cpu: CpuId,
    /// Times.
    pub count: u64,
}

/// Packets that came in and were given to a device to be sent, without a reader on this machine
/// between.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Forwarded {
    /// The NAPI instance that they came through; `None` when that was no NIC's (a container sent
    /// them) or is not known.
    pub napi: Option<NapiId>,
    /// The rx queue that the driver recorded.
    pub rx_queue: Option<u32>,
    /// The CPU that polled them.
    pub poll_cpu: CpuId,
    /// The CPU that queued them for sending; under RPS another one than the CPU that polled.
    pub xmit_cpu: CpuId,
    /// Name of the device that they leave by, in its network namespace. A bond or VLAN and the
    /// device below it count each.
    pub egress: String,
    /// Interface index of it, in that namespace.
    pub egress_ifindex: u32,
    /// Inode number of that namespace.
    pub egress_netns: u32,
    /// The tx queue.
    pub tx_queue: u32,
    /// Packets as on the wire: the pieces that a large one is to be cut into.
    pub packets: u64,
    /// Bytes with link-layer headers.
    pub bytes: u64,
}

/// A thread group that reads sockets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Consumer {
    /// Thread group id, in the initial pid namespace.
    pub tgid: u32,
    /// Its name (`/proc/<tgid>/comm`).
    pub comm: String,
    /// Its cgroup path (v2), below `/sys/fs/cgroup`; `None` when it ended before it could be asked.
    pub cgroup: Option<String>,
    /// Inode number of its network namespace, 0 when not known.
    pub netns: u32,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// How a consumption's napi and queue were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolved {
    /// The socket or packet names them itself.
    Direct,
    /// By the packet's hash, recorded at the NIC (the way through a veth loses the napi).
    FlowHash,
    /// By the packet's addresses and ports, recorded at the NIC that gives no hash.
    FiveTuple,
    /// Computed: Toeplitz hash of the addresses and ports through the NIC's indirection table.
    Toeplitz,
    /// It came through no NIC (loopback, or between namespaces of this machine).
    Local,
    /// Not found.
    Unresolved,
}

/// True time that one CPU spent interrupted, measured at entry and exit, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// In the NET_RX softirq.
    pub net_rx_ns: u64,
    /// In the NET_TX softirq.
    pub net_tx_ns: u64,
    /// In all other softirqs.
    pub other_softirq_ns: u64,
    /// In handlers of device interrupts.
    pub hardirq_ns: u64,
    /// In call-function inter-processor interrupts.
    pub ipi_ns: u64,
    /// Runs of the NET_RX softirq.
    pub net_rx_runs: u64,
    /// Device interrupts.
    pub hardirqs: u64,
    /// Call-function inter-processor interrupts received.
    pub ipis: u64,
}

impl CpuTime {
    /// All softirq time.
    pub fn softirq_ns(&self) -> u64 {
        self.net_rx_ns.saturating_add(self.net_tx_ns).saturating_add(self.other_softirq_ns)
    }

    /// All time that tasks did not have: softirqs, interrupts, IPIs.
    pub fn interrupted_ns(&self) -> u64 {
        self.softirq_ns().saturating_add(self.hardirq_ns).saturating_add(self.ipi_ns)
    }
}

/// A hook of the kernel that the counting uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hook {
    /// What it tells (`napi polls`, `tcp bytes`, `udp bytes`, `softirq time`, ...).
    pub question: String,
    /// Where it is attached (`tp_btf/napi_poll`).
    pub hook: String,
    /// Why it is not attached; `None` when it is.
    pub refused: Option<String>,
}
