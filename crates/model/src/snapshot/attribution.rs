//! Which CPU polled each NAPI, and which consumer read its data. The eBPF programs count this over
//! a window; without them, sock_diag is used.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::NapiId;
pub use crate::snapshot::consumer::{Consumer, Protocol, ReaderKind};
use crate::snapshot::count::{count, optional_count};
use crate::snapshot::drops::{self, DroppedPackets};
use crate::snapshot::flow::Flow;
use crate::snapshot::ip_packets::{self, IpPackets};
use crate::snapshot::packet_sockets::{self, PacketSocket};
use crate::snapshot::queue_users::QueueUser;
use crate::snapshot::runqueue::RunqueueLatency;
use crate::snapshot::scheduled::Scheduled;
use crate::snapshot::stage_samples::StageSamples;

/// [`Hook::quantity`] of the hook that counts reads of sockets other than TCP's and UDP's.
pub const OTHER_SOCKETS: &str = "mptcp, raw and packet bytes";

/// The counts of one window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// The method of counting.
    pub source: AttributionSource,
    /// Time during which the hooks were attached.
    pub elapsed: Duration,
    /// Whether the hooks were attached only for this window. Then the first event of each socket
    /// only sets its baseline, so bytes are a lower bound.
    pub windowed: bool,
    /// NAPI polls by instance and CPU.
    pub polls: Vec<Poll>,
    /// Which interrupts scheduled which NAPI instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduled: Vec<Scheduled>,
    /// Bytes read, by queue, CPUs and consumer.
    pub consumption: Vec<Consumption>,
    /// Datagrams that were read from each socket of a `SO_REUSEPORT` group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group_reads: Vec<GroupReads>,
    /// Names of consumers' containers (`namespace/pod/container`) by identifier, if the kubelet
    /// logs them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, String>,
    /// The CPUs to which processes that read data are pinned, by thread group. Processes that may
    /// run on all CPUs are not listed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned: BTreeMap<u32, CpuSet>,
    /// Processes that hold or may hold rx queues past the kernel's stack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue_users: Vec<QueueUser>,
    /// Wakeups of sleeping threads by receive work, by thread group and CPUs.
    #[serde(default)]
    pub wakeups: Vec<Wakeup>,
    /// Forwarded packets, by ingress queue and egress device.
    #[serde(default)]
    pub forwarded: Vec<Forwarded>,
    /// Packets that the kernel dropped, in all network namespaces. Empty if not requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drops: Vec<DroppedPackets>,
    /// IP packets that entered and left each network namespace. Empty if not requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_packets: Vec<IpPackets>,
    /// What each tx queue of a NIC got, forwarded packets included. Counted with `ip_packets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<Sent>,
    /// Packet sockets of all network namespaces. Empty if not requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packet_sockets: Vec<PacketSocket>,
    /// Time during which they were counted: with pauses, longer than `elapsed`. Not saved.
    #[serde(skip)]
    pub drops_elapsed: Duration,
    /// Flows with the rx queue of each. Empty if not requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<Flow>,
    /// Packets (after GRO) of flows that did not fit into the flow table.
    #[serde(default)]
    #[serde(deserialize_with = "count")]
    pub flows_missed: u64,
    /// Where receive work spends its time; `None` if not requested.
    #[serde(default)]
    pub stages: Option<StageSamples>,
    /// How long threads that read sockets waited for a CPU; `None` if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runqueue_latency: Option<RunqueueLatency>,
    /// Measured interrupt time per CPU. Empty if it could not be measured.
    pub cpu_time: BTreeMap<CpuId, CpuTime>,
    /// Each hook: attached, or the reason why it is not.
    pub hooks: Vec<Hook>,
    /// Events lost: a table was full, or they interrupted the program that counts them.
    #[serde(deserialize_with = "count")]
    pub lost_events: u64,
    /// How many events of each kind were examined.
    #[serde(default)]
    pub sampling: Sampling,
    /// CPU time of the eBPF programs; `None` if not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CountingCost>,
}

/// How many events of each kind were examined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sampling {
    /// Reads of sockets: [`Attribution::consumption`].
    pub reads: Examined,
    /// Softirqs, with the polls and wakeups in them: [`Attribution::cpu_time`],
    /// [`Attribution::polls`], [`Attribution::wakeups`].
    pub softirqs: Examined,
    /// Polls outside of softirqs, and the wakeups by and of the kthreads that poll.
    pub other_polls: Examined,
    /// Dropped packets: [`Attribution::drops`].
    #[serde(default)]
    pub drops: Examined,
}

impl Sampling {
    /// The events added since an earlier state.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.since(earlier.reads),
            softirqs: self.softirqs.since(earlier.softirqs),
            other_polls: self.other_polls.since(earlier.other_polls),
            drops: self.drops.since(earlier.drops),
        }
    }

    fn add(&mut self, more: Self) {
        self.reads.add(more.reads);
        self.softirqs.add(more.softirqs);
        self.other_polls.add(more.other_polls);
        self.drops.add(more.drops);
    }
}

/// Events of one kind, and how many of them were examined.
///
/// A CPU examines all events while they are rare. If they are frequent, it examines one in 32.5 on
/// average, at random. Each examined event stands for all events since the previous examined one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Examined {
    /// Number of events for which the examined ones stand.
    #[serde(deserialize_with = "count")]
    pub events: u64,
    /// Examined events.
    #[serde(deserialize_with = "count")]
    pub examined: u64,
}

impl Examined {
    /// Whether each event was examined.
    pub fn is_complete(self) -> bool {
        self.examined >= self.events
    }

    /// The relative error of a count with this share of the events: half of its 95 % interval.
    pub fn error(self, share: f64) -> f64 {
        // weights are uniform from 1 to 64 (`SKIP_MOST` of sys/src/bpf/sample.h)
        const MEAN: f64 = 32.5;
        const MEAN_SQUARE: f64 = 65.0 * 129.0 / 6.0;
        let sampled = self.events.saturating_sub(self.examined) as f64 / (MEAN - 1.0);
        let deviation = (sampled * MEAN_SQUARE * share * (1.0 - share)).sqrt();
        1.96 * deviation / (self.events as f64 * share)
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            events: self.events.saturating_sub(earlier.events),
            examined: self.examined.saturating_sub(earlier.examined),
        }
    }

    /// Adds the events of another window.
    pub fn add(&mut self, more: Self) {
        self.events += more.events;
        self.examined += more.examined;
    }
}

/// CPU time of the eBPF programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountingCost {
    /// All CPUs together, in nanoseconds.
    #[serde(deserialize_with = "count")]
    pub ns: u64,
    /// Whether the kernel measured it (`kernel.bpf_stats_enabled`). Otherwise it is estimated from
    /// the events.
    pub measured: bool,
}

impl Attribution {
    /// Whether dropped packets were counted during the whole window.
    pub fn counts_drops(&self) -> bool {
        self.counts_whole(drops::QUANTITY)
    }

    /// Whether what packet sockets took and lost was counted during the whole window.
    pub fn counts_packet_sockets(&self) -> bool {
        self.counts_whole(packet_sockets::QUANTITY)
    }

    /// Whether IP packets that enter and leave namespaces, and what tx queues got, were counted
    /// during the whole window.
    pub fn counts_ip_packets(&self) -> bool {
        self.counts_whole(ip_packets::QUANTITY)
    }

    /// Whether a hook of this quantity is attached. Of several, the first that the kernel allows is
    /// used.
    pub fn counts(&self, quantity: &str) -> bool {
        self.hooks.iter().any(|hook| hook.quantity == quantity && hook.refused.is_none())
    }

    fn counts_whole(&self, quantity: &str) -> bool {
        let mut hooks = self.hooks.iter().filter(|hook| hook.quantity == quantity).peekable();
        !self.windowed && hooks.peek().is_some() && hooks.all(|hook| hook.refused.is_none())
    }

    /// Adds the counts of the window that follows directly. Rows of both windows stay separate:
    /// sums over rows are right, but a row may occur twice. Stages are left out.
    pub fn append(&mut self, next: Self) {
        self.elapsed += next.elapsed;
        self.polls.extend(next.polls);
        self.scheduled.extend(next.scheduled);
        self.consumption.extend(next.consumption);
        self.wakeups.extend(next.wakeups);
        self.forwarded.extend(next.forwarded);
        self.drops.extend(next.drops);
        self.ip_packets.extend(next.ip_packets);
        self.sent.extend(next.sent);
        self.packet_sockets.extend(next.packet_sockets);
        self.drops_elapsed += next.drops_elapsed;
        self.flows.extend(next.flows);
        // without the identity of sockets, counts of two windows cannot be added
        self.group_reads = next.group_reads;
        self.pinned.extend(next.pinned);
        self.queue_users = next.queue_users;
        self.flows_missed += next.flows_missed;
        self.lost_events += next.lost_events;
        self.sampling.add(next.sampling);
        self.cost = self.cost.zip(next.cost).map(|(all, next)| CountingCost {
            ns: all.ns + next.ns,
            measured: all.measured && next.measured,
        });
        self.stages = None;
        for (cpu, time) in next.cpu_time {
            self.cpu_time.entry(cpu).and_modify(|all| all.add(time)).or_insert(time);
        }
        if let (Some(all), Some(next)) = (&mut self.runqueue_latency, next.runqueue_latency) {
            all.append(next);
        }
    }
}

/// The method of counting an attribution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttributionSource {
    /// Not counted; `hooks` has the reasons.
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
    /// The NAPI instance. 0 for instances without an id (transmit, backlog); `ifindex` and `netns`
    /// distinguish those.
    pub napi: NapiId,
    /// Name of its device, in the device's network namespace. Empty for the backlog (RPS, veth,
    /// loopback).
    pub netdev: String,
    /// Interface index of its device, in that namespace.
    pub ifindex: u32,
    /// Inode number of that namespace (`/proc/<pid>/ns/net`); 0 if unknown.
    pub netns: u32,
    /// The CPU that polled.
    pub cpu: CpuId,
    /// Number of polls.
    #[serde(deserialize_with = "count")]
    pub polls: u64,
    /// Packets that the polls returned (an LRO or hardware-GRO aggregate counts as one).
    #[serde(deserialize_with = "count")]
    pub packets: u64,
    /// Time of the polls in NET_RX, without interrupts, in nanoseconds; `None` if not measured (no
    /// softirq hooks, kthreads, busy polling).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "optional_count")]
    pub ns: Option<u64>,
}

/// Bytes of one queue that one consumer read on one CPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Consumption {
    /// The NAPI instance that received the data; `None` if it was not found.
    pub napi: Option<NapiId>,
    /// The rx queue that the driver recorded in the packet; `None` if the driver recorded none
    /// (veth), or if it was not found.
    pub rx_queue: Option<u32>,
    /// How NAPI instance and queue were found.
    pub resolved: QueueResolution,
    /// The CPU that polled the packets; `None` if only [`Attribution::polls`] has it.
    pub poll_cpu: Option<CpuId>,
    /// The CPU that ran the protocol (`sk_incoming_cpu`). With RPS it differs from the polling CPU.
    pub protocol_cpu: Option<CpuId>,
    /// The CPU on which the consumer called read.
    pub consumer_cpu: CpuId,
    /// The consumer.
    pub consumer: Consumer,
    /// Transport.
    pub protocol: Protocol,
    /// Bytes of payload read.
    #[serde(deserialize_with = "count")]
    pub bytes: u64,
    /// Number of reads.
    #[serde(deserialize_with = "count")]
    pub events: u64,
    /// Those of them whose bytes are not known: the first read of each TCP socket that was open
    /// before the programs were attached.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[serde(deserialize_with = "count")]
    pub first_reads: u64,
    /// The byte count is exact, but the queue may belong to another packet of the same socket.
    pub approximate: bool,
    /// Whether the UDP socket is connected, because RFS steers only connected sockets. `None` for
    /// others, or if not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Datagrams that a process read from one socket of a group that shares an address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupReads {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Local port.
    pub port: u16,
    /// The thread group that read.
    pub tgid: u32,
    /// Its name.
    pub comm: String,
    /// Number of sockets in the group.
    pub sockets: u16,
    /// Number of reads.
    #[serde(deserialize_with = "count")]
    pub reads: u64,
}

/// How often receive work (the NET_RX softirq or a NAPI kthread) on one CPU woke a sleeping thread.
/// If the thread is a NAPI kthread, wakeups by any other work count too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Wakeup {
    /// The woken thread group. Of kernel threads, only those that poll a NAPI are counted.
    pub tgid: u32,
    /// The CPU that ran the receive work or other waker.
    pub waker_cpu: CpuId,
    /// The CPU on which the thread went to sleep. It wakes there, unless the scheduler moves it.
    pub sleeper_cpu: CpuId,
    /// Number of wakeups.
    #[serde(deserialize_with = "count")]
    pub count: u64,
    /// How many of these wakeups found that CPU idle: it ran its idle task, perhaps interrupted by
    /// a softirq. `None` if that was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "optional_count")]
    pub idle: Option<u64>,
}

/// Packets received and queued for sending on a device, not read by a local socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Forwarded {
    /// The NAPI instance that received them; `None` if no NIC received them (a container sent
    /// them), or if it is unknown.
    pub napi: Option<NapiId>,
    /// The rx queue that the driver recorded.
    pub rx_queue: Option<u32>,
    /// The CPU that polled them.
    pub poll_cpu: CpuId,
    /// The CPU that queued them for sending. With RPS it differs from the polling CPU.
    pub xmit_cpu: CpuId,
    /// Name of the egress device, in its network namespace. A bond or VLAN and the device below it
    /// both count the packet.
    pub egress: String,
    /// Interface index of the egress device, in that namespace.
    pub egress_ifindex: u32,
    /// Inode number of that namespace.
    pub egress_netns: u32,
    /// The tx queue.
    pub tx_queue: u32,
    /// Packets on the wire. A large packet counts as its segments.
    #[serde(deserialize_with = "count")]
    pub packets: u64,
    /// Bytes with link-layer headers.
    #[serde(deserialize_with = "count")]
    pub bytes: u64,
}

/// Packets that one CPU queued for sending on a tx queue of a NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sent {
    /// Inode number of the NIC's network namespace.
    pub netns: u32,
    /// Its interface index there.
    pub ifindex: u32,
    /// The tx queue.
    pub tx_queue: u32,
    /// The CPU.
    pub cpu: CpuId,
    /// Packets on the wire. A large packet counts as its segments. What a full queue then drops is
    /// included.
    #[serde(deserialize_with = "count")]
    pub packets: u64,
}

/// How the NAPI instance and queue of a consumption were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueResolution {
    /// The socket or packet contains them.
    Direct,
    /// By the packet's hash, recorded at the NIC (a veth clears the NAPI id) or where the NAPI of a
    /// virtual device polled it.
    FlowHash,
    /// By the packet's addresses and ports, recorded in the same place if the packet has no hash.
    FiveTuple,
    /// Computed: the Toeplitz hash of the addresses and ports, looked up in the NIC's indirection
    /// table.
    Toeplitz,
    /// No NIC received it (loopback, or between namespaces of this machine).
    Local,
    /// Not found.
    Unresolved,
}

/// Time that one CPU spent in interrupts, measured at entry and exit, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuTime {
    /// In the NET_RX softirq.
    #[serde(deserialize_with = "count")]
    pub net_rx_ns: u64,
    /// In the NET_TX softirq.
    #[serde(deserialize_with = "count")]
    pub net_tx_ns: u64,
    /// In all other softirqs.
    #[serde(deserialize_with = "count")]
    pub other_softirq_ns: u64,
    /// In handlers of device interrupts.
    #[serde(deserialize_with = "count")]
    pub hardirq_ns: u64,
    /// In call-function inter-processor interrupts.
    #[serde(deserialize_with = "count")]
    pub ipi_ns: u64,
    /// Runs of the NET_RX softirq.
    #[serde(deserialize_with = "count")]
    pub net_rx_runs: u64,
    /// Device interrupts.
    #[serde(deserialize_with = "count")]
    pub hardirqs: u64,
    /// Call-function inter-processor interrupts received.
    #[serde(deserialize_with = "count")]
    pub ipis: u64,
    /// Reschedule inter-processor interrupts received; `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reschedules: Option<Reschedules>,
}

/// The inter-processor interrupts with which one CPU makes another one switch to a thread that it
/// has woken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reschedules {
    /// Time in their handlers, in nanoseconds. The switch to the thread comes after it.
    #[serde(deserialize_with = "count")]
    pub ns: u64,
    /// Number of these interrupts.
    #[serde(deserialize_with = "count")]
    pub count: u64,
}

impl CpuTime {
    /// All softirq time.
    pub fn softirq_ns(&self) -> u64 {
        self.net_rx_ns.saturating_add(self.net_tx_ns).saturating_add(self.other_softirq_ns)
    }

    fn add(&mut self, more: Self) {
        self.net_rx_ns += more.net_rx_ns;
        self.net_tx_ns += more.net_tx_ns;
        self.other_softirq_ns += more.other_softirq_ns;
        self.hardirq_ns += more.hardirq_ns;
        self.ipi_ns += more.ipi_ns;
        self.net_rx_runs += more.net_rx_runs;
        self.hardirqs += more.hardirqs;
        self.ipis += more.ipis;
        // a sum that covers only a part of the time would be too small
        self.reschedules = self
            .reschedules
            .zip(more.reschedules)
            .map(|(all, more)| Reschedules { ns: all.ns + more.ns, count: all.count + more.count });
    }

    /// All time taken from tasks: softirqs, interrupts, IPIs.
    pub fn interrupted_ns(&self) -> u64 {
        let reschedules = self.reschedules.map_or(0, |all| all.ns);
        let interrupts = self.hardirq_ns.saturating_add(self.ipi_ns).saturating_add(reschedules);
        self.softirq_ns().saturating_add(interrupts)
    }
}

/// A kernel hook used for counting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hook {
    /// The quantity that it measures (`napi polls`, `tcp bytes`, `udp bytes`, `softirq time`, ...).
    #[serde(rename = "question")]
    pub quantity: String,
    /// The attach point (`tp_btf/napi_poll`).
    pub hook: String,
    /// Why it is not attached; `None` if it is.
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples a stream as `bpf/sample.h` does without a quota. Each event belongs to the row with
    /// this probability. Returns the estimate's relative error, and what was examined.
    fn sampled(seed: u64, events: u64, share: f64) -> (f64, Examined) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 11
        };
        let (mut left, mut weight, mut all) = (0, 1, Examined::default());
        let (mut truth, mut estimate) = (0, 0);
        for _ in 0..events {
            let belongs = (random() as f64 / (1_u64 << 53) as f64) < share;
            truth += u64::from(belongs);
            if left > 0 {
                left -= 1;
                continue;
            }
            estimate += weight * u64::from(belongs);
            all.add(Examined { events: weight, examined: 1 });
            left = random() & 63;
            weight = left + 1;
        }
        (estimate as f64 / truth as f64 - 1.0, all)
    }

    #[test]
    fn nineteen_of_twenty_estimates_lie_within_the_stated_error() {
        for share in [0.1, 0.5] {
            let within = (1..=400).filter(|seed| {
                let (error, all) = sampled(*seed, 20_000, share);
                error.abs() <= all.error(share)
            });
            let within = within.count();
            assert!((365..=395).contains(&within), "{share}: {within} of 400");
        }
    }

    #[test]
    fn the_mean_of_many_estimates_is_the_truth() {
        let errors: Vec<f64> = (1..=400).map(|seed| sampled(seed, 20_000, 0.5).0).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        assert!(mean.abs() < 0.01, "{mean}");
    }

    #[test]
    fn what_is_examined_completely_has_no_error() {
        let all = Examined { events: 1000, examined: 1000 };
        assert!(all.is_complete() && all.error(0.1) == 0.0);
    }
}
