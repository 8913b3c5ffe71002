//! A [`Snapshot`]: everything that was read of a host at one moment, and nothing that was concluded
//! from it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::snapshot::attribution::Attribution;
use crate::machine::counts::Counts;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::parse::schedstat::ThreadTime;
use crate::snapshot::sockets::LosingSocket;
use crate::machine::topology::{NodeId, Topology};

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

/// A NAPI instance's id (`napi_struct.napi_id`), unique on a machine at one time; ids up to the
/// number of CPUs are not NAPIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NapiId(pub u32);

impl fmt::Display for NapiId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What was read of a host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Which machine and boot.
    pub machine: Machine,
    /// Time since boot when the counters were read (CLOCK_BOOTTIME).
    pub at: Duration,
    /// CPUs and what they share; snapshots of one machine share it, until CPUs come or go.
    pub topology: Arc<Topology>,
    /// Device interrupts: all, or those of netdevs only where it says so in `other_vectors`.
    pub irqs: BTreeMap<Irq, IrqState>,
    /// How many interrupts were left out of `irqs`, by the one CPU that each is in force on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_vectors: BTreeMap<CpuId, usize>,
    /// The architecture's own rows of `/proc/interrupts` (`CAL`, `RES`, ...), counts per CPU; a row
    /// whose counts were not read is empty.
    pub arch_interrupts: BTreeMap<String, BTreeMap<CpuId, u64>>,
    /// `/proc/irq/default_smp_affinity`.
    pub default_smp_affinity: Option<CpuSet>,
    /// Counters per online CPU.
    pub cpus: BTreeMap<CpuId, CpuCounters>,
    /// Network devices of netsilo's own network namespace.
    pub netdevs: Vec<Netdev>,
    /// Settings of the network stack as a whole.
    pub net: NetSettings,
    /// Other programs that write the same knobs, running now.
    pub writers: Vec<Writer>,
    /// Counters of the protocols in netsilo's own network namespace since it exists, by `nstat`'s
    /// names; empty when not read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub protocols: BTreeMap<String, u64>,
    /// Sockets of that namespace that have lost something; `None` when not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losing_sockets: Option<Vec<LosingSocket>>,
    /// `ksoftirqd/<cpu>`: how long it ran and waited since boot; empty when not read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ksoftirqd: BTreeMap<CpuId, ThreadTime>,
    /// What could not be read, and why.
    pub gaps: Vec<Gap>,
    /// Links, queueing disciplines, limits, connections, power; only a whole look reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<crate::snapshot::audit::Audit>,
}

/// Which machine and boot this is.
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
    /// Inode number of the network namespace that the netdevs were read in, 0 when not known.
    #[serde(default)]
    pub netns: u32,
    /// Whether a hypervisor stands before its CPUs; `None` where that does not show.
    #[serde(default)]
    pub virtual_machine: Option<bool>,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gap {
    /// The file, ioctl or netlink request.
    pub what: String,
    /// The reason, with the errno's name where there is one.
    pub why: String,
}

/// A device interrupt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqState {
    /// Names given by the drivers that share it (`virtio0-input.0`), in order.
    pub actions: Vec<String>,
    /// Interrupt controller and hardware number as printed (`PCI-MSIX-0000:00:04.0 1-edge`).
    pub chip: String,
    /// Interrupts taken, by CPU; zeros are left out.
    pub counts: BTreeMap<CpuId, u64>,
    /// `smp_affinity`: the CPUs asked for.
    pub requested: Option<CpuSet>,
    /// `effective_affinity`: the CPUs in force (usually one); it lags until the next interrupt on
    /// x86.
    pub effective: Option<CpuSet>,
    /// `affinity_hint`: what the driver suggests; `None` when empty.
    pub hint: Option<CpuSet>,
    /// `node`: the node of the device; `None` for -1.
    pub node: Option<NodeId>,
    /// Whether the affinity can be written from user space.
    pub writable: Writable,
}

/// Whether a knob can be written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writable {
    /// Nothing speaks against it.
    #[default]
    Yes,
    /// The kernel placed it and refuses writes (`IRQD_AFFINITY_MANAGED`).
    Managed,
    /// The interrupt controller cannot direct it (`IRQD_NO_BALANCING`, or no `irq_set_affinity`),
    /// or it is per-CPU.
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
#[expect(missing_docs, reason = "the kernel's own words")]
pub struct CpuStat {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub idle: u64,
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
    /// Part of `user` too.
    pub guest: u64,
    /// Part of `nice` too.
    pub guest_nice: u64,
}

/// One CPU's line of `/proc/net/softnet_stat` (`net/core/net-procfs.c:softnet_seq_show`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Softnet {
    /// Packets taken from a poll or the backlog.
    pub processed: u32,
    /// Packets dropped because the backlog was full.
    pub dropped: u32,
    /// Times that `net_rx_action` stopped with work left (budget or time used up); not a drop.
    pub time_squeeze: u32,
    /// Times that this CPU was woken by another one to process RPS packets.
    pub received_rps: u32,
    /// Times that a flow was over its limit (`flow_limit_count`).
    pub flow_limit_count: u32,
    /// Packets waiting in the backlog now (`input_queue` + `process_queue`); `None` on kernels
    /// before 5.10.
    pub backlog_len: Option<u32>,
    /// The part of them on the input queue; `None` before 6.2 (15 columns).
    pub input_qlen: Option<u32>,
    /// The part of them being processed; `None` before 6.2.
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
    /// Driver (`virtio_net`); for virtual devices what rtnetlink or ethtool calls it (`veth`,
    /// `bridge`), if anything does.
    pub driver: Option<String>,
    /// Bus address (`0000:00:04.0`).
    pub bus: Option<String>,
    /// Hardware address.
    pub mac: Option<String>,
    /// NUMA node of the device; `None` for -1. For virtio it is that of the parent PCI device.
    pub node: Option<NodeId>,
    /// Link speed in Mbit/s; `None` when unknown.
    pub speed_mbps: Option<u32>,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// Carrier; `None` when the device is down.
    pub carrier: Option<bool>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The bond, bridge or team that it is a port of.
    pub master: Option<String>,
    /// Receive queues, by index.
    pub rx_queues: Vec<RxQueue>,
    /// Transmit queues, by index.
    pub tx_queues: Vec<TxQueue>,
    /// All interrupts of the device (`device/msi_irqs`, parent device for virtio), configuration
    /// vectors too.
    pub irqs: Vec<Irq>,
    /// NAPI instances known from netdev netlink or from kthreads.
    pub napis: Vec<Napi>,
    /// `/sys/class/net/<dev>/threaded`: 0, 1 or 2 (busy poll); `None` where the kernel has no such
    /// file.
    pub threaded: Option<u32>,
    /// `/sys/class/net/<dev>/napi_defer_hard_irqs`: empty polls after which the interrupt is armed
    /// again; 0 is at once.
    #[serde(default)]
    pub napi_defer_hard_irqs: Option<u32>,
    /// `/sys/class/net/<dev>/gro_flush_timeout`, in nanoseconds; 0 means that GRO holds nothing
    /// from one poll to the next.
    #[serde(default)]
    pub gro_flush_timeout: Option<u64>,
    /// `/sys/class/net/<dev>/statistics/*`.
    pub statistics: BTreeMap<String, u64>,
    /// What ethtool says of it.
    pub ethtool: Option<crate::snapshot::ethtool::Ethtool>,
    /// An XDP program is attached, which may take packets before anybody else sees them; `None`
    /// when there is none known.
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
    /// Held by AF_XDP, io_uring or a lease: hands off.
    #[serde(default)]
    pub leased: Option<String>,
    /// netvsc has no interrupts of its own: the CPU to which the queue's VMBus channel is bound.
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
    /// Its id; 0 for an instance that has none (virtio's transmit NAPIs).
    pub id: NapiId,
    /// Its interrupt, where the driver tells.
    pub irq: Option<Irq>,
    /// Its kthread, when threaded.
    pub thread: Option<NapiThread>,
}

/// The kthread of a threaded NAPI, `napi/<dev>-<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiThread {
    /// Process id.
    pub pid: u32,
    /// Its name; the kernel cuts it to 15 bytes.
    pub comm: String,
    /// Clock ticks after boot at which it started: with the pid, its identity.
    pub start_time: u64,
    /// The CPUs that it may run on.
    pub cpus: CpuSet,
}

/// A fact about what belongs to what, with where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge<T> {
    /// The other end.
    pub to: T,
    /// Who says so.
    pub source: EdgeSource,
    /// How far it can be trusted.
    pub confidence: Confidence,
}

/// Where an edge comes from.
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
    /// Seen by eBPF: packets of this queue were polled by this NAPI.
    Observed,
}

/// How far an edge can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The name fits, but the driver does not promise the number in it is the queue.
    Guess,
    /// A driver's documented naming, on a device that the interrupt belongs to.
    Named,
    /// The kernel says so, or it was seen.
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
    /// What it is (`irqbalance`).
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// What it may write.
    pub writes: Vec<WriterKnob>,
}

/// What another program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriterKnob {
    /// `/proc/irq/*/smp_affinity`.
    IrqAffinity,
    /// `rps_cpus` and RFS.
    Rps,
    /// `xps_cpus`.
    Xps,
    /// Any of these once, at boot or when a device or container appears: named, but nothing to
    /// yield to now.
    LaterDevices,
    /// `net.core` and `net.ipv4` sysctls that the audit reads (budgets, backlog, socket buffers).
    Sysctls,
}

/// Two snapshots and what eBPF saw between them: the input of everything that is concluded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The first snapshot.
    pub before: Snapshot,
    /// The second, later one; decisions are made on its settings.
    pub after: Snapshot,
    /// Who polled, who consumed, between the two.
    pub attribution: Attribution,
}
