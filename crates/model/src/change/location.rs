//! Where a knob is: the few ways in which the `sys` crate reads and writes settings.

use std::collections::BTreeSet;

use crate::change::rule::FlowRule;
use crate::machine::cpuset::CpuSet;
use crate::machine::ids::Irq;
use crate::snapshot::ethtool::FlowType;
use crate::snapshot::netdev::NetdevIdentity;

/// Where a knob is, with what identifies its owner after a renumbering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location<'a> {
    /// `/proc/irq/<irq>/smp_affinity`, while the interrupt has these action names.
    Irq {
        /// The interrupt.
        irq: Irq,
        /// Its action names, joined by commas.
        action: &'a str,
        /// The device of the interrupt, if known.
        netdev: Option<&'a NetdevIdentity>,
    },
    /// A file, by its absolute path.
    File(String),
    /// A file below `/sys/class/net/<netdev>/`.
    Netdev {
        /// The device.
        netdev: &'a NetdevIdentity,
        /// The path of the file below the device's folder.
        file: String,
    },
    /// A setting that only ethtool's ioctl can access.
    Ethtool {
        /// The device.
        netdev: &'a NetdevIdentity,
        /// The setting.
        setting: EthtoolSetting,
    },
    /// The CPUs of a thread (`sched_setaffinity`).
    Thread {
        /// The thread's id.
        id: u32,
        /// The name of a kernel thread, which never changes. `None` for a program's thread, because
        /// it may rename itself.
        comm: Option<&'a str>,
        /// Clock ticks from boot to the start of the thread.
        start_time: u64,
    },
    /// `cpuset.cpus` of the cgroup with this path below `/sys/fs/cgroup`.
    Cgroup(&'a str),
    /// Whether the irqbalance of this process id and start time leaves these interrupts alone.
    Irqbalance {
        /// Its process id.
        pid: u32,
        /// Clock ticks from boot to its start.
        start_time: u64,
        /// The interrupts.
        irqs: &'a BTreeSet<Irq>,
    },
    /// netsilo does not write this knob, for this reason.
    Refused(&'static str),
}

impl<'a> Location<'a> {
    /// The device of the knob, if it has one.
    pub fn netdev(&self) -> Option<&'a NetdevIdentity> {
        match self {
            Self::Irq { netdev, .. } => *netdev,
            Self::Netdev { netdev, .. } | Self::Ethtool { netdev, .. } => Some(netdev),
            Self::File(_)
            | Self::Thread { .. }
            | Self::Cgroup(_)
            | Self::Irqbalance { .. }
            | Self::Refused(_) => None,
        }
    }
}

/// A setting of a netdev that only ethtool's ioctl can access, with an example of its text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum EthtoolSetting {
    /// `combined=8 other=1`.
    Channels,
    /// The maximum of each count that the driver accepts. It is never written.
    MostChannels,
    /// `rx=256 tx=256`.
    Rings,
    /// The maximum of each count that the driver accepts. It is never written.
    MostRings,
    /// `rx-usecs=3`.
    Coalesce,
    /// One number of [`EthtoolSetting::Coalesce`], by its name there. A write keeps the others.
    CoalesceNumber(&'static str),
    /// An offload by the kernel's name: `on`, `off`, `off [requested on]`.
    Offload(String),
    /// What RSS hashes: `sdfn`, or `none`.
    FlowHash(FlowType),
    /// An RSS table: the queue of each bucket. `default` is written for the driver's own table.
    RssTable(u32),
    /// The RSS key in hexadecimal.
    RssKey,
    /// `toeplitz symmetric-xor`.
    RssHash,
    /// An RSS context over exactly these queues: `off`, or `on` and its number.
    RssContext(CpuSet),
    /// A flow steering rule: `off`, or `on` and its location.
    Rule(FlowRule),
}
