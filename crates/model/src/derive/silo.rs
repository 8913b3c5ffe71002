//! Silos: an rx queue with its interrupt, NAPI, CPUs and consumers.
//!
//! [`crate::derive::silos`] builds them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::derive::forwarding::{ForwardShare, ForwardTotals};
use crate::derive::locality::Locality;
use crate::derive::reader_spread::ReaderSpread;
use crate::derive::thread_share::ThreadShare;
use crate::derive::wakeups::WakeupRate;
use crate::machine::cpu_owner::CpuOwner;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::{Irq, NapiId};
use crate::machine::topology::{Distance, Topology};
use crate::snapshot::attribution::{Protocol, ReaderKind};
use crate::snapshot::host::Writable;
use crate::snapshot::netdev::{Association, NapiThread, NetdevIdentity};
use crate::snapshot::subject::Subject;

/// All silos of a host, and the traffic that belongs to none of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Silos {
    /// Ordered by netdev, then queue; NAPIs with an unknown queue come last.
    pub queues: Vec<Silo>,
    /// Data received through no NIC: loopback, or between namespaces of this machine.
    pub local: OutsideTraffic,
    /// Data received through a NAPI of a netdev outside netsilo's network namespace.
    pub foreign: OutsideTraffic,
    /// Data whose queue was not found.
    pub unresolved: OutsideTraffic,
    /// That part of it which was read in the network namespace of the netdevs; what is read in
    /// others may never have passed these.
    pub unresolved_here: OutsideTraffic,
    /// All forwarded traffic.
    pub forwarded: ForwardTotals,
    /// What arrived on netdevs without a NAPI and no counted reader took; `None` if that is little,
    /// or was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_on_backlogs: Option<UnreadOnBacklogs>,
}

/// Payload that arrived on netdevs without a NAPI: the loopback, and veths without GRO.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct UnreadOnBacklogs {
    pub netdevs: Vec<String>,
    pub unread: Unread,
}

/// One rx queue, or one NAPI with an unknown queue, and all that belongs to it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Silo {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The rx queue; `None` for a NAPI of the device with an unknown queue.
    pub queue: Option<u32>,
    /// Its interrupt; `None` if unknown.
    pub irq: Option<Association<Irq>>,
    /// Action names of the interrupt; of many, the first 32.
    pub actions: Vec<String>,
    /// Other queues that share the interrupt (`rx-1`, `tx-0`); of many, the first 32 and `8 more`.
    pub shares_irq_with: Vec<String>,
    /// Requested affinity of the interrupt.
    pub requested: Option<CpuSet>,
    /// Effective affinity; it follows `requested` at the next interrupt.
    pub effective: Option<CpuSet>,
    /// Whether the interrupt can be moved; `None` if unknown.
    pub writable: Option<Writable>,
    /// The interrupt was seen to arrive elsewhere than requested all the time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignores_affinity: bool,
    /// The CPU of the interrupt: the only one requested or effective, unless it ignores that; else
    /// that on which nearly all of it arrived. `None` if it has no single CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_cpu: Option<CpuId>,
    /// Its NAPI instance.
    pub napi: Option<Association<NapiId>>,
    /// The NAPI's kthread, if threaded.
    pub kthread: Option<NapiThread>,
    /// Whether its interrupt polls nothing and only wakes a kthread: that of the queue's NAPI, or
    /// (few softirqs follow it, and such threads exist) one that polls a netdev that is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_wakes: bool,
    /// Packets per second returned by its polls; `None` if polls were not counted, or if no poll of
    /// the netdev returned a packet although it received some.
    pub packets_per_s: Option<f64>,
    /// Packets per second that its driver counted, or of a netdev with one rx queue the netdev,
    /// where polls did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_per_s: Option<f64>,
    /// Why it is not known how many packets arrived, while the netdev received some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
    /// Polls by CPU.
    pub polls: BTreeMap<CpuId, PollRate>,
    /// CPUs where a program polls it outside of softirqs (busy polling).
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub busy_polled: CpuSet,
    /// Share of the bytes by the CPU that ran the protocol; with RPS this differs from the polling
    /// CPU.
    pub protocol_cpus: BTreeMap<CpuId, f64>,
    /// Interrupts per second by CPU; `None` if unknown.
    pub interrupts_per_s: Option<BTreeMap<CpuId, f64>>,
    /// Softirq time of the polling CPU.
    pub softirq: Option<SoftirqShare>,
    /// Estimated share of each CPU's time that polling this queue takes; without the CPUs where it
    /// is busy-polled.
    ///
    /// It is the CPU's NET_RX time (%sys if threaded) in proportion to the time of the polls; to
    /// packets if that was not measured, to interrupts if polls were not counted. Where a kthread
    /// polls and its time is known, it is that time ([`Self::kthread_time`]).
    pub own_share: BTreeMap<CpuId, f64>,
    /// How long the kthread ran and waited; `None` without one, or if the kernel does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kthread_time: Option<ThreadShare>,
    /// How often the kthread is woken, by the CPU that wakes it; empty if that was not counted.
    /// Where it was not counted whether its own CPU was idle, it counts as idle.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kthread_woken_by: BTreeMap<CpuId, WakeupRate>,
    /// Bytes of payload that known readers read per second; `None` if consumers were not counted,
    /// or none is known.
    pub bytes_per_s: Option<f64>,
    /// Share of what arrived whose reader is not known, at least: 1 if packets arrived and nobody
    /// is known to read or forward them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown_share: f64,
    /// The payload that arrived and that no counted reader took, where what arrived was counted
    /// and this is more than 2 % of it; otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<Unread>,
    /// Share of the bytes whose queue is only probably this one, or that are more than arrived.
    pub approximate_share: f64,
    /// Consumers that read the queue, heaviest first.
    pub consumers: Vec<ConsumerShare>,
    /// Egress queues of packets that are forwarded instead of read, heaviest first.
    #[serde(default)]
    pub forwards: Vec<ForwardShare>,
    /// Distances from the CPU that ran the protocol to the reading CPU.
    pub locality: Locality,
    /// Share of the data that is read in one place; `None` if it is not read.
    #[serde(default)]
    pub concentration: Option<ReaderSpread>,
    /// `rps_cpus`; empty means off.
    pub rps_cpus: Option<CpuSet>,
    /// `rps_flow_cnt`; 0 means off.
    pub rps_flow_cnt: Option<u32>,
    /// `xps_cpus` of the tx queue of the same number.
    pub xps_cpus: Option<CpuSet>,
    /// The user of the queue: AF_XDP, io_uring or a lease.
    pub leased: Option<String>,
}

impl Silo {
    /// The owner of CPUs that reads more than half of this queue's data, and allows it there.
    /// `None` if packets of the queue are forwarded, or if its readers are not known.
    pub fn claimed_by<'t>(&self, topology: &'t Topology) -> Option<&'t CpuOwner> {
        let share = |owner: &&CpuOwner| -> f64 {
            let owned = |it: &&ConsumerShare| it.cgroup.as_deref().is_some_and(|it| owner.owns(it));
            self.consumers.iter().filter(owned).map(|it| it.share).sum()
        };
        let is_read = self.readers_are_known() && self.forwards.is_empty();
        let mut owners = topology.cpu_owners.iter().filter(|it| it.claims_queues && is_read);
        owners.find(|owner| share(owner) > 0.5)
    }
}

/// Payload that arrived on a queue, in bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unread {
    /// Neither read by a counted reader nor forwarded nor dropped, at least.
    pub bytes_per_s: f64,
    /// All that arrived.
    pub arrived_per_s: f64,
    /// What was read from the queue beyond what arrived, at least.
    pub beyond_per_s: f64,
}

/// Polls of one queue on one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "the names say it")]
pub struct PollRate {
    pub polls_per_s: f64,
    pub packets_per_s: f64,
    /// Time of the polls as a share of the CPU's; `None` when not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_share: Option<f64>,
}

/// Softirq time of the CPU that polls a queue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SoftirqShare {
    /// The polling CPU.
    pub cpu: CpuId,
    /// Share of its time in all softirqs.
    pub share: f64,
    /// Whether it was measured at entry and exit; otherwise sampled at clock ticks.
    pub measured: bool,
}

/// The reads of one thread group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConsumerShare {
    /// Thread group id; 0 unless this is one process.
    pub tgid: u32,
    /// Its name (`comm`); of the kernel, the function of its work, or `softirq`.
    pub comm: String,
    /// What reads.
    #[serde(default)]
    pub kind: ReaderKind,
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// Its container: `namespace/pod/container`, or identifiers where the names are not known; or
    /// its virtual machine: `virtual machine web1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Bytes of payload read per second.
    pub bytes_per_s: f64,
    /// Share of all bytes of the queue, also of those whose reader is not known.
    pub share: f64,
    /// Share of its own bytes by reading CPU.
    pub cpus: BTreeMap<CpuId, f64>,
    /// The protocols that it reads.
    pub protocols: Vec<Protocol>,
    /// Wakeups per second of its sleeping threads by the softirq or the NAPI's kthread; `None` if
    /// wakeups were not counted.
    ///
    /// These are its wakeups by the CPU that runs the queue's protocol, divided in proportion to
    /// reads if that CPU runs it for several queues.
    #[serde(default)]
    pub wakeups_per_s: Option<f64>,
    /// Wakeups per second by the CPU where the thread slept.
    #[serde(default)]
    pub wakeups_on: BTreeMap<CpuId, f64>,
    /// Those of them that found that CPU idle; `None` if that was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_wakeups_on: Option<BTreeMap<CpuId, f64>>,
}

impl ConsumerShare {
    /// Whether a name means it: that of a program, of its container or pod, its cgroup's path, or a
    /// cgroup above it.
    pub fn is_called(&self, name: &str) -> bool {
        let is_in = |path: &String| {
            let rest = path.strip_prefix(name.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if name.is_empty() {
            return false;
        }
        self.comm == name || self.container.iter().chain(&self.cgroup).any(is_in)
    }

    /// `redis (pid 812)`.
    pub fn label(&self) -> String {
        match self.kind {
            ReaderKind::Process => format!("{} (pid {})", self.comm, self.tgid),
            ReaderKind::Processes => format!("{} (processes not told apart)", self.comm),
            ReaderKind::Kernel => format!("{} (kernel)", self.comm),
        }
    }
}

/// Data that was read but belongs to no queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutsideTraffic {
    /// Bytes of payload read per second.
    pub bytes_per_s: f64,
    /// Consumers that read it, heaviest first.
    pub consumers: Vec<ConsumerShare>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

impl Silo {
    /// Whether the readers of most of its data are known, so that work may be placed by them.
    pub fn readers_are_known(&self) -> bool {
        self.unknown_share <= 0.5
    }

    /// Name in reports: `eth0 rx-3`, or `eth0 napi 8197` if the queue is unknown.
    pub fn label(&self) -> String {
        self.subject().to_string()
    }

    /// The rx queue; the NAPI instance if the queue is unknown; else the netdev.
    pub fn subject(&self) -> Subject {
        let netdev = self.netdev.name.clone();
        match (self.queue, &self.napi) {
            (Some(queue), _) => Subject::Queue(netdev, queue),
            (None, Some(napi)) => Subject::Napi(netdev, napi.to),
            (None, None) => Subject::Netdev(netdev),
        }
    }

    /// Packets per second, as its polls returned them, else as a counter shows them; `None` if
    /// nothing counted them.
    pub fn received_per_s(&self) -> Option<f64> {
        self.packets_per_s.or(self.counted_per_s)
    }

    /// Whether any packet is known to have arrived. If not, some may have arrived all the same:
    /// see [`Self::not_counted`].
    pub fn has_traffic(&self) -> bool {
        let polled = self.received_per_s().is_some_and(|rate| rate > 0.0);
        let read = self.bytes_per_s.is_some_and(|rate| rate > 0.0);
        let interrupted = self.received_per_s().is_none()
            && self.interrupts_per_s.iter().flatten().any(|(_, rate)| *rate > 0.0);
        polled || read || interrupted || !self.forwards.is_empty()
    }

    /// CPUs that polled the queue; if polls were not counted, those of [`Self::uncounted_cpus`].
    pub fn polling_cpus(&self) -> CpuSet {
        self.uncounted_cpus().or(&self.polls.keys().copied().collect())
    }

    /// Where polls were not counted, the CPU of its kthread, else those that took its interrupts.
    pub fn uncounted_cpus(&self) -> CpuSet {
        if self.packets_per_s.is_some() {
            return CpuSet::new();
        }
        if self.only_wakes {
            return self.own_share.keys().copied().collect();
        }
        let interrupts = self.interrupts_per_s.iter().flatten();
        interrupts.filter(|(_, rate)| **rate > 0.0).map(|(cpu, _)| *cpu).collect()
    }

    /// Distance of a reading CPU from the nearest CPU that ran the queue's protocol, or polled it
    /// if that is not known; `None` if no such CPU is known.
    ///
    /// Bytes are not counted per pair of CPUs, so where several CPUs run the protocol this is the
    /// least possible distance. [`Silo::locality`] has the counted shares.
    pub fn distance_to_reader(&self, reader: CpuId, topology: &Topology) -> Option<Distance> {
        let protocol: CpuSet = self.protocol_cpus.keys().copied().collect();
        let from = if protocol.is_empty() { self.polling_cpus() } else { protocol };
        from.iter().map(|cpu| topology.distance(cpu, reader)).min()
    }

    /// Bytes per second by reading CPU.
    pub fn read_on(&self) -> BTreeMap<CpuId, f64> {
        let mut cpus = BTreeMap::new();
        for consumer in &self.consumers {
            for (cpu, share) in &consumer.cpus {
                *cpus.entry(*cpu).or_default() += share * consumer.bytes_per_s;
            }
        }
        cpus
    }
}

impl Silos {
    /// Whether only interrupts were counted for a queue, while the queue of most of the data that
    /// was read, or of polls of its device, was not found. A few packets are no sign of traffic: a
    /// machine without load receives some, such as ARP.
    pub fn may_receive_nothing(&self, silo: &Silo) -> bool {
        const FEW_PACKETS_PER_S: f64 = 10.0;
        const FEW_BYTES_PER_S: f64 = 1000.0;
        let read: f64 = self.queues.iter().filter_map(|silo| silo.bytes_per_s).sum();
        let is_queueless = |it: &Silo| {
            let packets = it.packets_per_s.unwrap_or(0.0);
            it.queue.is_none() && packets >= FEW_PACKETS_PER_S && it.netdev == silo.netdev
        };
        let unknown = self.queues.iter().any(is_queueless)
            || self.unresolved.bytes_per_s > read.max(FEW_BYTES_PER_S);
        unknown && silo.received_per_s().is_none() && silo.bytes_per_s.unwrap_or(0.0) == 0.0
    }

    /// Locality of all bytes that arrived on a queue.
    pub fn locality(&self) -> Locality {
        let all: f64 = self.queues.iter().filter_map(|silo| silo.bytes_per_s).sum();
        let mut total = Locality { bytes_per_s: all, ..Locality::default() };
        for locality in
            self.queues.iter().map(|silo| &silo.locality).filter(|l| l.bytes_per_s > 0.0)
        {
            let part = locality.bytes_per_s / all;
            total.unknown += locality.unknown * part;
            for (distance, share) in &locality.shares {
                *total.shares.entry(*distance).or_default() += share * part;
            }
        }
        total
    }
}

/// The key with the greatest weight, the lowest among equals; `None` if all weights are 0.
pub fn heaviest<K: Ord + Copy>(weights: impl Iterator<Item = (K, f64)>) -> Option<K> {
    let heavier = |best: Option<(K, f64)>, (key, weight): (K, f64)| match best {
        Some((lowest, most)) if weight < most || (weight == most && lowest < key) => {
            Some((lowest, most))
        }
        _ if weight > 0.0 => Some((key, weight)),
        best => best,
    };
    weights.fold(None, heavier).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_a_program_a_container_its_pod_or_a_cgroup_above() {
        let reader = ConsumerShare {
            comm: "nginx".into(),
            container: Some("shop/web-7d4b9/nginx".into()),
            cgroup: Some("/kubepods.slice/pod1/crio-5".into()),
            ..ConsumerShare::default()
        };
        for name in ["nginx", "shop/web-7d4b9", "shop", "/kubepods.slice/", "/kubepods.slice/pod1"]
        {
            assert!(reader.is_called(name), "{name}");
        }
        for name in ["ngin", "shop/web", "web-7d4b9", "/kubepods", ""] {
            assert!(!reader.is_called(name), "{name:?}");
        }
    }
}
