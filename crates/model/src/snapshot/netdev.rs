//! FILEDOC

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

/// What a network device is recognised by.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetdevIdentity {
    /// Interface name.
    pub name: String,
    /// Device path below `/sys`; `None` for virtual devices.
    pub device_path: Option<String>,
}

impl NetdevIdentity {
    /// What this netdev is recognised by.
    pub fn of(netdev: &Netdev) -> Self {
        Self { name: netdev.name.clone(), device_path: netdev.device_path.clone() }
    }

    /// Whether this is it: the same name on the same device.
    pub fn is(&self, netdev: &Netdev) -> bool {
        self.name == netdev.name && self.device_path == netdev.device_path
    }
}
