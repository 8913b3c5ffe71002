//! A [`Snapshot`]: everything read from a host at one moment, without conclusions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::counts::Counts;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::Irq;
use crate::machine::topology::{NodeId, Topology};
use crate::snapshot::namespaces::Namespaces;
use crate::snapshot::net_thread::NetThread;
use crate::snapshot::netdevs::Netdevs;
use crate::snapshot::netfilter::Netfilter;
use crate::snapshot::socket_readers::SocketReaders;
use crate::snapshot::sockets::LosingSocket;
use crate::snapshot::tap_holders::TapHolder;

/// Everything read from a host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The machine and its boot.
    pub machine: HostIdentity,
    /// Time since boot when the counters were read (CLOCK_BOOTTIME).
    pub at: Duration,
    /// CPUs, caches and nodes. Snapshots share this value until a CPU goes online or offline.
    pub topology: Arc<Topology>,
    /// Device interrupts: all, or only those of netdevs if `other_vectors` is not empty.
    pub irqs: BTreeMap<Irq, IrqState>,
    /// Number of interrupts that are left out of `irqs`, by their single effective CPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_vectors: BTreeMap<CpuId, usize>,
    /// Free interrupt vectors of each CPU, if debugfs shows them (x86).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub free_vectors: BTreeMap<CpuId, usize>,
    /// Rows of the architecture in `/proc/interrupts` (`CAL`, `RES`, ...), with counts per CPU. A
    /// row whose counts were not read is empty.
    pub arch_interrupts: BTreeMap<String, BTreeMap<CpuId, u64>>,
    /// The text of each of these rows (`Function call interrupts`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arch_names: BTreeMap<String, String>,
    /// `/proc/irq/default_smp_affinity`.
    pub default_smp_affinity: Option<CpuSet>,
    /// Counters per online CPU.
    pub cpus: BTreeMap<CpuId, CpuCounters>,
    /// Network devices of netsilo's own network namespace.
    pub netdevs: Netdevs,
    /// Settings of the network stack as a whole.
    pub net: NetSettings,
    /// Other programs that are running and write the same knobs.
    pub knob_owners: Vec<KnobOwner>,
    /// Protocol counters of netsilo's own network namespace since its creation, with the names of
    /// `nstat`. Empty if not read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub protocols: BTreeMap<String, u64>,
    /// Sockets of that namespace that have dropped something; `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losing_sockets: Option<Vec<LosingSocket>>,
    /// What connection tracking and the NFQUEUEs of that namespace count; `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netfilter: Option<Netfilter>,
    /// Processes that hold sockets of any network namespace; `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_readers: Option<SocketReaders>,
    /// Processes that hold taps, by thread group: of any network namespace if the kernel has
    /// vhost-net or this namespace has a tap, else none is looked for. `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap_holders: Option<BTreeMap<u32, TapHolder>>,
    /// The other network namespaces; `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Namespaces>,
    /// Kernel threads that do the work of receiving or sending, by pid. Empty if not read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub net_threads: BTreeMap<u32, NetThread>,
    /// Reads that failed, with the reason.
    pub gaps: Vec<Gap>,
    /// Links, queueing disciplines, limits, connections, power. Only a full read fills it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<crate::snapshot::audit::Audit>,
}

/// Names of the words of [`boot_parameters`].
const BOOT_PARAMETERS: &[&str] = &[
    "acpi_irq",
    "idle",
    "intel_idle",
    "irqaffinity",
    "isolcpus",
    "kthread_cpus",
    "maxcpus",
    "mitigations",
    "nohz",
    "nohz_full",
    "nosmt",
    "nr_cpus",
    "pci",
    "possible_cpus",
    "preempt",
    "processor.max_cstate",
    "rcu_nocbs",
    "skew_tick",
    "threadirqs",
    "tsc",
];

/// The words of a kernel command line that decide where work runs and what it costs. A bundle has
/// no others.
pub fn boot_parameters(cmdline: &str) -> impl Iterator<Item = &str> {
    let is_kept = |word: &&str| BOOT_PARAMETERS.contains(&word.split('=').next().unwrap_or(word));
    cmdline.split_ascii_whitespace().filter(is_kept)
}

/// The identity of a machine and its boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// Host name.
    pub hostname: String,
    /// Kernel release (`uname -r`).
    pub release: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Kernel command line, for `isolcpus`, `nohz_full`, `threadirqs`.
    pub cmdline: String,
    /// Inode number of the network namespace of the netdevs; 0 if unknown.
    #[serde(default)]
    pub netns: u32,
    /// The machine's architecture (`uname -m`); `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Whether the machine is a guest of a hypervisor; `None` if unknown.
    #[serde(default)]
    pub virtual_machine: Option<bool>,
}

impl Snapshot {
    /// Whether it is a later one of the same boot, so that there are rates between the two.
    pub fn follows(&self, before: &Self) -> bool {
        self.machine.boot_id == before.machine.boot_id && self.at > before.at
    }

    /// Whether the machine is an x86, whose CPUs have a limited number of interrupt vectors.
    ///
    /// If the architecture was not recorded, its interrupt controllers show it. `LOC` does not,
    /// because powerpc has it too.
    pub fn is_x86(&self) -> bool {
        let is_x86_chip = |chip: &str| {
            ["IO-APIC", "XT-PIC", "IR-PCI-MSI", "DMAR-MSI"].iter().any(|it| chip.contains(it))
        };
        match &self.machine.architecture {
            Some(name) => name == "x86_64" || (name.starts_with('i') && name.ends_with("86")),
            None => {
                self.arch_interrupts.contains_key("CAL")
                    || self.irqs.values().any(|irq| is_x86_chip(&irq.chip))
            }
        }
    }

    /// The inter-processor interrupts of a kind, by CPU; `None` if they were not counted.
    ///
    /// Label and number of the row depend on architecture and kernel (`CAL`, `IPI1`), the text does
    /// not.
    pub fn ipis(&self, kind: Ipi) -> Option<BTreeMap<CpuId, u64>> {
        let (label, text) = match kind {
            Ipi::FunctionCall => ("CAL", "function call interrupts"),
            Ipi::Reschedule => ("RES", "rescheduling interrupts"),
        };
        let is_of = |row: &&String| match self.arch_names.get(*row) {
            Some(name) => name.to_ascii_lowercase().contains(text),
            None => *row == label,
        };
        let rows = self.arch_interrupts.keys().filter(is_of);
        let mut counted = rows.map(|row| &self.arch_interrupts[row]).filter(|it| !it.is_empty());
        let mut sum = counted.next()?.clone();
        for (cpu, count) in counted.flatten() {
            let all: &mut u64 = sum.entry(*cpu).or_default();
            *all = all.saturating_add(*count);
        }
        Some(sum)
    }

    /// Whether the network namespace of the netdevs is the machine's first one, the only one that
    /// shows the table of RFS. Also true if the kernel has no RPS.
    pub fn is_of_first_netns(&self) -> bool {
        let mut queues = self.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
        self.net.rps_sock_flow_entries.is_some() || !queues.any(|queue| queue.rps_cpus.is_some())
    }
}

/// [`Gap::what`] where a report of another collector has no RPS and XPS masks.
pub const STEERING_MASKS: &str = "RPS and XPS masks";
/// [`Gap::what`] where it has no settings of NAPIs.
pub const NAPI_SETTINGS: &str = "threaded NAPI and its deferral";

/// [`Gap::what`] where one report is all that there is: its rates are averages since boot.
pub const PRESENT_RATES: &str = "present rates";

impl Snapshot {
    /// Whether the rates are averages since boot, which show neither how full a CPU is now nor how
    /// full it was when packets were lost.
    pub fn is_since_boot(&self) -> bool {
        self.gaps.iter().any(|gap| gap.what == PRESENT_RATES)
    }

    /// Whether another collector did not record this, so that absent does not mean that the kernel
    /// lacks it.
    pub fn was_not_recorded(&self, what: &str) -> bool {
        self.gaps.iter().any(|gap| gap.what == what && gap.why.starts_with("not recorded"))
    }
}

impl HostIdentity {
    /// Whether a network namespace is that of the netdevs. Also true if either is not known.
    pub fn is_own_netns(&self, netns: u32) -> bool {
        self.netns == 0 || netns == 0 || self.netns == netns
    }
}

/// A kind of inter-processor interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipi {
    /// Runs a function on another CPU, as RPS does.
    FunctionCall,
    /// Wakes the scheduler of another CPU.
    Reschedule,
}

/// A read that failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Number of interrupts by CPU. Zeros are left out.
    pub counts: BTreeMap<CpuId, u64>,
    /// `smp_affinity`: the requested CPUs.
    pub requested: Option<CpuSet>,
    /// `effective_affinity`: the CPUs in effect (usually one). On x86 it changes only with the next
    /// interrupt.
    pub effective: Option<CpuSet>,
    /// `affinity_hint`: the driver's suggestion; `None` if empty.
    pub hint: Option<CpuSet>,
    /// `node`: the NUMA node of the device; `None` for -1.
    pub node: Option<NodeId>,
    /// Whether user space can write the affinity.
    pub writable: Writable,
}

impl IrqState {
    /// The action names in words. Of many, it names some and counts the others.
    pub fn devices(&self) -> String {
        const NAMED: usize = 4;
        match self.actions.split_at_checked(NAMED) {
            Some((named, others)) if !others.is_empty() => {
                format!("{} and {} more", named.join(", "), others.len())
            }
            _ => self.actions.join(", "),
        }
    }
}

/// Whether a knob can be written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Packets taken by a NAPI poll or from the backlog; `None` if it is not known how often the
    /// counter wrapped around.
    pub processed: Option<u32>,
    /// Packets dropped because the backlog was full.
    pub dropped: u32,
    /// How often `net_rx_action` stopped with work left (budget or time exhausted). This is not a
    /// drop.
    pub time_squeeze: u32,
    /// How often another CPU woke this CPU to process RPS packets.
    pub received_rps: u32,
    /// How often a flow exceeded its limit (`flow_limit_count`).
    pub flow_limit_count: u32,
    /// Packets in the backlog now (`input_queue` + `process_queue`); `None` before 5.10.
    pub backlog_len: Option<u32>,
    /// The part of the backlog in `input_queue`; `None` before 6.2 (15 columns).
    pub input_qlen: Option<u32>,
    /// The part of the backlog in `process_queue`; `None` before 6.2.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KnobOwner {
    /// Name (`irqbalance`).
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// The knobs that it may write.
    pub writes: Vec<OwnedKnob>,
    /// The interrupts that it leaves alone, and can be told to leave alone. `None` if it is not
    /// irqbalance, or did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bans: Option<IrqBans>,
}

impl KnobOwner {
    /// Whether it is known to leave this interrupt alone.
    pub fn leaves_alone(&self, irq: Irq) -> bool {
        self.bans.as_ref().is_some_and(|bans| bans.irqs.contains(&irq))
    }
}

/// The list of interrupts that irqbalance leaves alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IrqBans {
    /// When irqbalance started, in clock ticks after boot.
    pub start_time: u64,
    /// The interrupts, those of its option `--banirq` too.
    pub irqs: BTreeSet<Irq>,
    /// The longest message that it reads whole, in bytes.
    pub most_bytes: usize,
}

/// A kind of knob that another program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OwnedKnob {
    /// `/proc/irq/*/smp_affinity`.
    IrqAffinity,
    /// `rps_cpus` and RFS.
    Rps,
    /// `xps_cpus`.
    Xps,
    /// Any of these once, at boot or when a device or container appears. This is reported, but is
    /// not a conflict now.
    LaterDevices,
    /// `net.core` and `net.ipv4` sysctls that the audit reads (budgets, backlog, socket buffers).
    Sysctls,
}
