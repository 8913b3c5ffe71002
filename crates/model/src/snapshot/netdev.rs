//! Network devices with their queues, NAPIs, and the associations between queue, interrupt and
//! NAPI.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::{Irq, NapiId};
use crate::machine::topology::NodeId;

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
    /// Driver (`virtio_net`); for virtual devices the kind from ethtool or `uevent`
    /// (`veth`, `bridge`), or `macvtap` and `ipvtap`; `None` if neither names one.
    pub driver: Option<String>,
    /// Bus address (`0000:00:04.0`).
    pub bus: Option<String>,
    /// Hardware address.
    pub mac: Option<String>,
    /// NUMA node of the device; `None` for -1. For virtio: the node of the parent PCI device.
    pub node: Option<NodeId>,
    /// `device/iommu_group/type`: `identity`, `DMA` (an entry is invalid as soon as it is removed),
    /// `DMA-FQ` (some milliseconds later); `None` without an IOMMU, and before Linux 5.11.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_domain: Option<String>,
    /// Link speed in Mbit/s; `None` if unknown.
    pub speed_mbps: Option<u32>,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// Carrier; `None` if the device is down.
    pub carrier: Option<bool>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The bond, bridge or team of which it is a port.
    pub master: Option<String>,
    /// Receive queues, by index.
    pub rx_queues: Vec<RxQueue>,
    /// Transmit queues, by index.
    pub tx_queues: Vec<TxQueue>,
    /// All interrupts of the device (`device/msi_irqs`; for virtio, of the parent device),
    /// including configuration vectors.
    pub irqs: Vec<Irq>,
    /// NAPI instances, from netdev netlink or from kthreads.
    pub napis: Vec<Napi>,
    /// `/sys/class/net/<dev>/threaded`: 0, 1 or 2 (busy poll); `None` if the kernel does not have
    /// this file.
    pub threaded: Option<u32>,
    /// `/sys/class/net/<dev>/napi_defer_hard_irqs`: number of empty polls before the interrupt is
    /// enabled again. 0 means at once.
    #[serde(default)]
    pub napi_defer_hard_irqs: Option<u32>,
    /// `/sys/class/net/<dev>/gro_flush_timeout`, in nanoseconds. 0 means that GRO flushes at the
    /// end of each poll.
    #[serde(default)]
    pub gro_flush_timeout: Option<u64>,
    /// `/sys/class/net/<dev>/tun_flags` of a tun or tap: `IFF_*` of `linux/if_tun.h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tun_flags: Option<u32>,
    /// `/sys/class/net/<dev>/statistics/*`.
    pub statistics: BTreeMap<String, u64>,
    /// Settings and statistics from ethtool.
    pub ethtool: Option<crate::snapshot::ethtool::Ethtool>,
    /// Where an XDP program is attached; it may take packets before the stack sees them. `None`
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
    pub irq: Option<Association<Irq>>,
    /// Other interrupts that another source names as the one that announces its packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub irq_conflicts: Vec<Association<Irq>>,
    /// The NAPI instance that polls it.
    pub napi: Option<Association<NapiId>>,
    /// `rps_cpus`: empty means that RPS is off.
    pub rps_cpus: Option<CpuSet>,
    /// `rps_flow_cnt`: 0 means that RFS is off.
    pub rps_flow_cnt: Option<u32>,
    /// Holder of the queue (AF_XDP, io_uring or a lease). netsilo must not change a queue that has
    /// a holder.
    #[serde(default)]
    pub leased: Option<String>,
    /// The CPU to which the queue's VMBus channel is bound (netvsc queues have no interrupts).
    #[serde(default)]
    pub vmbus_cpu: Option<CpuId>,
}

/// A transmit queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxQueue {
    /// Index, as in `queues/tx-<index>`.
    pub index: u32,
    /// The interrupt that announces its completions.
    pub irq: Option<Association<Irq>>,
    /// The NAPI instance that polls its completions.
    pub napi: Option<Association<NapiId>>,
    /// `xps_cpus`; `None` if the device has no XPS (one queue).
    pub xps_cpus: Option<CpuSet>,
    /// `xps_rxqs`, as a set of rx queue numbers.
    pub xps_rxqs: Option<CpuSet>,
}

/// A NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Napi {
    /// Id. 0 for an instance without one (virtio's transmit NAPIs).
    pub id: NapiId,
    /// Interrupt, if the driver reports it.
    pub irq: Option<Irq>,
    /// Kthread, when threaded.
    pub thread: Option<NapiThread>,
}

/// The kthread of a threaded NAPI, `napi/<dev>-<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NapiThread {
    /// Process id.
    pub pid: u32,
    /// Name. The kernel cuts it to 15 bytes.
    pub comm: String,
    /// Start time in clock ticks after boot. Together with the pid it identifies the process.
    pub start_time: u64,
    /// The CPUs on which it may run.
    pub cpus: CpuSet,
}

/// A link between two objects, with source and confidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Association<T> {
    /// The linked object.
    pub to: T,
    /// The source of the link.
    pub source: AssociationSource,
    /// How reliable the link is.
    pub confidence: Confidence,
}

/// The source of an edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AssociationSource {
    /// netdev generic netlink (`queue-get`, `napi-get`).
    NetdevGenl,
    /// The action's name in `/proc/interrupts`, and the driver pattern that it matched.
    ActionName(String),
    /// `/sys/bus/vmbus/devices/*/channels`.
    VmbusChannel,
    /// The device has only one interrupt that can serve queues.
    OnlyIrq,
    /// The order of the interrupts that have this name (a driver's pattern).
    VectorOrder(String),
    /// The action has the name of the platform device, as in this pattern.
    DeviceName(String),
    /// The action has the driver's name, and there are as many as netdevs of the driver.
    DriverName,
    /// The interrupt of this device above it (a USB host controller), which other devices share.
    Ancestor(String),
    /// Observed by eBPF: this NAPI polled packets of this queue.
    Observed,
    /// The driver adds a NAPI for each queue, in their order.
    InOrder,
}

impl AssociationSource {
    /// Why the object belongs to the queue, in words.
    pub fn in_words(&self) -> String {
        match self {
            Self::NetdevGenl => "the kernel reports it".into(),
            Self::ActionName(pattern) => format!("its name is of the form {pattern}"),
            Self::VmbusChannel => "its VMBus channel".into(),
            Self::OnlyIrq => "the device has no other for packets".into(),
            Self::VectorOrder(pattern) => {
                format!("its position among the device's interrupts with the name {pattern}")
            }
            Self::DeviceName(pattern) if pattern == "{device}" => {
                "it has the name of the device".into()
            }
            Self::DeviceName(pattern) => format!("it has the name of the device, as {pattern}"),
            Self::DriverName => "it has the name of the driver".into(),
            Self::Ancestor(device) => {
                format!("the interrupt of {device}, which other devices share")
            }
            Self::Observed => "eBPF saw it schedule the queue's NAPI".into(),
            Self::InOrder => "the order in which the driver adds them".into(),
        }
    }
}

impl<T> Association<T> {
    /// The object, unless it is only guessed. Nothing is changed by a guess.
    pub fn known(&self) -> Option<&T> {
        (self.confidence > Confidence::Guess).then_some(&self.to)
    }
}

/// How reliable an edge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The name matches, but the driver does not guarantee that its number is the queue.
    Guess,
    /// The driver's documented name, on a device that owns the interrupt.
    Named,
    /// The kernel reports it, or it was observed.
    Certain,
}

/// Where the device paths begin that a report did not record: only the last part is known.
pub const UNRECORDED: &str = "/devices/unrecorded/";

/// The attributes that identify a network device.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetdevIdentity {
    /// Interface name.
    pub name: String,
    /// Device path below `/sys`; `None` for virtual devices.
    pub device_path: Option<String>,
    /// Interface index of a virtual device. A later device with the same name has another index,
    /// because the kernel numbers netdevs upwards (`net/core/dev.c:dev_index_reserve`). `None` for
    /// devices with a path, and if it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<u32>,
}

impl NetdevIdentity {
    /// The identity of this netdev.
    pub fn from_netdev(netdev: &Netdev) -> Self {
        let (name, device_path) = (netdev.name.clone(), netdev.device_path.clone());
        let ifindex = device_path.is_none().then_some(netdev.ifindex);
        Self { name, device_path, ifindex }
    }

    /// Whether this is the netdev: the same name on the same device.
    pub fn is(&self, netdev: &Netdev) -> bool {
        self.ifindex.is_none_or(|ifindex| ifindex == netdev.ifindex)
            && self.name == netdev.name
            && self.device_path == self.path_in_its_place(netdev.device_path.clone())
    }

    /// A device path as this identity would have it: if only the last part of its own is known
    /// ([`UNRECORDED`]), its own if the other one has this part too.
    pub fn path_in_its_place(&self, path: Option<String>) -> Option<String> {
        let own = self.device_path.as_ref().filter(|own| own.starts_with(UNRECORDED));
        let last = own.and_then(|own| own.rsplit('/').next());
        let has_it = |path: &String| path.split('/').any(|part| Some(part) == last);
        if path.as_ref().is_some_and(has_it) { own.cloned() } else { path }
    }
}
