//! A [`Snapshot`]: everything that was read of a host at one moment, and nothing that was concluded
//! from it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::counts::Counts;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::Irq;
use crate::machine::topology::{NodeId, Topology};
use crate::snapshot::netdev::Netdev;
use crate::snapshot::sockets::LosingSocket;
use crate::snapshot::thread_time::ThreadTime;

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
