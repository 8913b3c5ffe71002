//! A [`Snapshot`]: everything read from a host at one moment, without conclusions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::attribution::Attribution;
use crate::counts::Counts;
use crate::cpuset::{CpuId, CpuSet};
use crate::proc_task::ThreadTime;
use crate::sockets::LosingSocket;
use crate::topology::{NodeId, Topology};

/// An interrupt number, as in `/proc/irq/<n>`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Irq(pub u32);

impl fmt::Display for Irq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a NAPI instance (`napi_struct.napi_id`), unique on a running machine.
///
/// Ids up to the number of CPUs are not NAPI instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NapiId(pub u32);

impl fmt::Display for NapiId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Everything read from a host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The machine and its boot.
    pub machine: Machine,
    /// Time since boot when the counters were read (CLOCK_BOOTTIME).
    pub at: Duration,
    /// CPUs, caches and nodes; snapshots share it until a CPU goes online or offline.
    pub topology: Arc<Topology>,
    /// Device interrupts: all, or only those of netdevs when `other_vectors` is not empty.
    pub irqs: BTreeMap<Irq, IrqState>,
    /// Number of interrupts left out of `irqs`, by their single effective CPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_vectors: BTreeMap<CpuId, usize>,
    /// Rows of the architecture in `/proc/interrupts` (`CAL`, `RES`, ...), counts per CPU; empty
    /// for a row whose counts were not read.
    pub arch_interrupts: BTreeMap<String, BTreeMap<CpuId, u64>>,
    /// `/proc/irq/default_smp_affinity`.
    pub default_smp_affinity: Option<CpuSet>,
    /// Counters per online CPU.
    pub cpus: BTreeMap<CpuId, CpuCounters>,
    /// Network devices of netsilo's own network namespace.
    pub netdevs: Vec<Netdev>,
    /// Settings of the network stack as a whole.
    pub net: NetSettings,
    /// Other programs that write the same knobs and run now.
    pub writers: Vec<Writer>,
    /// Protocol counters of netsilo's own network namespace since its creation, with the names of
    /// `nstat`; empty when not read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub protocols: BTreeMap<String, u64>,
    /// Sockets of that namespace that have dropped something; `None` when not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losing_sockets: Option<Vec<LosingSocket>>,
    /// Run and wait time of each `ksoftirqd/<cpu>` since boot; empty when not read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ksoftirqd: BTreeMap<CpuId, ThreadTime>,
    /// Reads that failed, with the reason.
    pub gaps: Vec<Gap>,
    /// Links, queueing disciplines, limits, connections, power; only a full read fills it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<crate::audit::Audit>,
}

/// The identity of a machine and its boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub hostname: String,
    /// Kernel release (`uname -r`).
    pub release: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Kernel command line, for `isolcpus`, `nohz_full`, `threadirqs`.
    pub cmdline: String,
    /// Inode number of the network namespace of the netdevs, 0 when unknown.
    #[serde(default)]
    pub netns: u32,
    /// Whether the machine is a guest of a hypervisor; `None` when unknown.
    #[serde(default)]
    pub virtual_machine: Option<bool>,
}

/// A read that failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gap {
    /// The file, ioctl or netlink request.
    pub what: String,
    /// The reason, with the errno's name if there is one.
    pub why: String,
}

/// A device interrupt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqState {
    /// Names registered by the drivers that share the interrupt (`virtio0-input.0`), in order.
    pub actions: Vec<String>,
    /// Interrupt controller and hardware number as printed (`PCI-MSIX-0000:00:04.0 1-edge`).
    pub chip: String,
    /// Interrupts taken, by CPU; zeros are left out.
    pub counts: BTreeMap<CpuId, u64>,
    /// `smp_affinity`: the requested CPUs.
    pub requested: Option<CpuSet>,
    /// `effective_affinity`: the CPUs in force (usually one); on x86 it changes only with the next
    /// interrupt.
    pub effective: Option<CpuSet>,
    /// `affinity_hint`: the driver's suggestion; `None` when empty.
    pub hint: Option<CpuSet>,
    /// `node`: the NUMA node of the device; `None` for -1.
    pub node: Option<NodeId>,
    /// Whether user space can write the affinity.
    pub writable: Writable,
}

/// Whether a knob can be written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writable {
    /// User space can write it.
    #[default]
    Yes,
    /// The kernel manages it and refuses writes (`IRQD_AFFINITY_MANAGED`).
    Managed,
    /// The interrupt controller cannot set the affinity (`IRQD_NO_BALANCING`, or no
    /// `irq_set_affinity`), or the interrupt is per-CPU.
    Unsupported,
}

/// Counters of one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuCounters {
    /// `/proc/stat`, in USER_HZ ticks (1/100 s).
    pub stat: CpuStat,
    /// `/proc/softirqs`: softirqs raised, by vector name.
    pub softirqs: Counts,
    /// `/proc/net/softnet_stat`.
    pub softnet: Option<Softnet>,
}

/// One CPU's line of `/proc/stat`, in USER_HZ ticks (1/100 s).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names of the kernel")]
pub struct CpuStat {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub idle: u64,
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
    /// Also counted in `user`.
    pub guest: u64,
    /// Also counted in `nice`.
    pub guest_nice: u64,
}

/// One CPU's line of `/proc/net/softnet_stat` (`net/core/net-procfs.c:softnet_seq_show`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Softnet {
    /// Packets taken by a NAPI poll or from the backlog.
    pub processed: u32,
    /// Packets dropped because the backlog was full.
    pub dropped: u32,
    /// Times that `net_rx_action` stopped with work left (budget or time exhausted); not a drop.
    pub time_squeeze: u32,
    /// Times that another CPU woke this CPU to process RPS packets.
    pub received_rps: u32,
    /// Times that a flow exceeded its limit (`flow_limit_count`).
    pub flow_limit_count: u32,
    /// Packets in the backlog now (`input_queue` + `process_queue`); `None` before 5.10.
    pub backlog_len: Option<u32>,
    /// Its part in `input_queue`; `None` before 6.2 (15 columns).
    pub input_qlen: Option<u32>,
    /// Its part in `process_queue`; `None` before 6.2.
    pub process_qlen: Option<u32>,
}

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Netdev {
    /// Interface name.
    pub name: String,
    /// Interface index, unique in its network namespace.
    pub ifindex: u32,
    /// Device path below `/sys` (`/devices/pci0000:00/0000:00:04.0/virtio1`), stable across
    /// reboots; `None` for virtual devices.
    pub device_path: Option<String>,
    /// Driver (`virtio_net`); for virtual devices the kind from rtnetlink or ethtool (`veth`,
    /// `bridge`); `None` if neither names one.
    pub driver: Option<String>,
    /// Bus address (`0000:00:04.0`).
    pub bus: Option<String>,
    /// Hardware address.
    pub mac: Option<String>,
    /// NUMA node of the device; `None` for -1. For virtio: the node of the parent PCI device.
    pub node: Option<NodeId>,
    /// Link speed in Mbit/s; `None` when unknown.
    pub speed_mbps: Option<u32>,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// Carrier; `None` when the device is down.
    pub carrier: Option<bool>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The bond, bridge or team of which it is a port.
    pub master: Option<String>,
    /// Receive queues, by index.
    pub rx_queues: Vec<RxQueue>,
    /// Transmit queues, by index.
    pub tx_queues: Vec<TxQueue>,
    /// All interrupts of the device (`device/msi_irqs`, of the parent device for virtio), including
    /// configuration vectors.
    pub irqs: Vec<Irq>,
    /// NAPI instances, from netdev netlink or from kthreads.
    pub napis: Vec<Napi>,
    /// `/sys/class/net/<dev>/threaded`: 0, 1 or 2 (busy poll); `None` when the kernel has no such
    /// file.
    pub threaded: Option<u32>,
    /// `/sys/class/net/<dev>/napi_defer_hard_irqs`: empty polls before the interrupt is enabled
    /// again; 0 means at once.
    #[serde(default)]
    pub napi_defer_hard_irqs: Option<u32>,
    /// `/sys/class/net/<dev>/gro_flush_timeout`, in nanoseconds; 0 means that GRO flushes at the
    /// end of each poll.
    #[serde(default)]
    pub gro_flush_timeout: Option<u64>,
    /// `/sys/class/net/<dev>/statistics/*`.
    pub statistics: BTreeMap<String, u64>,
    /// Settings and statistics from ethtool.
    pub ethtool: Option<crate::ethtool::Ethtool>,
    /// Where an XDP program is attached, which may take packets before the stack sees them; `None`
    /// without a known program.
    #[serde(default)]
    pub xdp: Option<Xdp>,
}

/// Where an XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Xdp {
    /// In the driver's poll.
    Driver,
    /// In the stack, after the driver.
    Generic,
    /// In the device.
    Hardware,
    /// In several of these places.
    Several,
}

/// A receive queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxQueue {
    /// Index, as in `queues/rx-<index>`.
    pub index: u32,
    /// The interrupt that announces its packets.
    pub irq: Option<Edge<Irq>>,
    /// The NAPI instance that polls it.
    pub napi: Option<Edge<NapiId>>,
    /// `rps_cpus`: empty means that RPS is off.
    pub rps_cpus: Option<CpuSet>,
    /// `rps_flow_cnt`: 0 means that RFS is off.
    pub rps_flow_cnt: Option<u32>,
    /// Holder of the queue (AF_XDP, io_uring or a lease); netsilo must not change such a queue.
    #[serde(default)]
    pub leased: Option<String>,
    /// The CPU to which the queue's VMBus channel is bound (netvsc has no interrupts of its own).
    #[serde(default)]
    pub vmbus_cpu: Option<CpuId>,
}

/// A transmit queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxQueue {
    /// Index, as in `queues/tx-<index>`.
    pub index: u32,
    /// The interrupt that announces its completions.
    pub irq: Option<Edge<Irq>>,
    /// The NAPI instance that polls its completions.
    pub napi: Option<Edge<NapiId>>,
    /// `xps_cpus`; `None` where the device has no XPS (one queue).
    pub xps_cpus: Option<CpuSet>,
    /// `xps_rxqs`, as a set of rx queue numbers.
    pub xps_rxqs: Option<CpuSet>,
}

/// A NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Napi {
    /// Id; 0 for an instance without one (virtio's transmit NAPIs).
    pub id: NapiId,
    /// Interrupt, if the driver reports it.
    pub irq: Option<Irq>,
    /// Kthread, when threaded.
    pub thread: Option<NapiThread>,
}

/// The kthread of a threaded NAPI, `napi/<dev>-<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiThread {
    /// Process id.
    pub pid: u32,
    /// Name; the kernel cuts it to 15 bytes.
    pub comm: String,
    /// Start time in clock ticks after boot; identifies the process together with the pid.
    pub start_time: u64,
    /// The CPUs on which it may run.
    pub cpus: CpuSet,
}

/// A link between two objects, with source and confidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge<T> {
    /// The linked object.
    pub to: T,
    /// The source of the link.
    pub source: EdgeSource,
    /// How reliable the link is.
    pub confidence: Confidence,
}

/// The source of an edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeSource {
    /// netdev generic netlink (`queue-get`, `napi-get`).
    NetdevGenl,
    /// The action's name in `/proc/interrupts`, and the driver pattern that it matched.
    ActionName(String),
    /// `/sys/bus/vmbus/devices/*/channels`.
    VmbusChannel,
    /// The device has one interrupt only.
    OnlyIrq,
    /// Observed by eBPF: this NAPI polled packets of this queue.
    Observed,
}

/// How reliable an edge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The name matches, but the driver does not guarantee that its number is the queue.
    Guess,
    /// The driver's documented name, on a device that owns the interrupt.
    Named,
    /// Reported by the kernel or observed.
    Certain,
}

/// Settings of the network stack as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSettings {
    /// `net.core.rps_sock_flow_entries`: 0 means that RFS is off.
    pub rps_sock_flow_entries: Option<u32>,
    /// `net.core.rps_default_mask` (6.6 and later).
    pub rps_default_mask: Option<CpuSet>,
    /// Other sysctls that the audit reads (`net.core.netdev_budget`, ...), by name, as printed.
    pub sysctls: BTreeMap<String, String>,
}

/// Another program that writes the same knobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Writer {
    /// Name (`irqbalance`).
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// The knobs that it may write.
    pub writes: Vec<WriterKnob>,
}

/// A kind of knob that another program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriterKnob {
    /// `/proc/irq/*/smp_affinity`.
    IrqAffinity,
    /// `rps_cpus` and RFS.
    Rps,
    /// `xps_cpus`.
    Xps,
    /// Any of these once, at boot or when a device or container appears; reported, but no conflict
    /// now.
    LaterDevices,
    /// `net.core` and `net.ipv4` sysctls that the audit reads (budgets, backlog, socket buffers).
    Sysctls,
}

/// Two snapshots and the eBPF measurements between them: the input of all analysis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The first snapshot.
    pub before: Snapshot,
    /// The second, later one; decisions use its settings.
    pub after: Snapshot,
    /// NAPI polls and consumers measured between the two snapshots.
    pub attribution: Attribution,
}
