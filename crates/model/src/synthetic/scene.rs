//! Synthetic hosts in a few lines, for tests, golden cases and simulation: a machine, its netdevs,
//! and the readers of its queues.
//!
//! [`Scene::settings`] returns the snapshot of its settings. [`Scene::observe`] returns an
//! observation of the host under the settings of a given snapshot: the load stays the same, and
//! packets are polled on the CPUs where the interrupts then go.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::{Irq, NapiId};
use crate::machine::reading::Reading;
use crate::machine::topology::{NodeId, Topology};
use crate::snapshot::attribution::{
    Attribution, AttributionSource, Consumer, Consumption, CpuTime, Forwarded, Poll, Protocol,
    QueueResolution, Wakeup,
};
use crate::snapshot::ethtool::{Channels, Ethtool, Limit};
use crate::snapshot::flow::{Flow, assign_numbers};
use crate::snapshot::host::{
    CpuCounters, CpuStat, IrqState, KnobOwner, Snapshot, Softnet, Writable,
};
use crate::snapshot::netdev::{
    Association, AssociationSource, Confidence, Napi, NapiThread, Netdev, RxQueue, TxQueue,
};
use crate::snapshot::observation::Observation;
use crate::synthetic::arrivals::{SceneFlow, SceneRss};
use crate::synthetic::grid::Grid;

/// Seconds that a scene is observed.
const SECONDS: u64 = 10;
/// Clock ticks in [`SECONDS`] (USER_HZ is 100).
const TICKS: f64 = 1000.0;
/// First NAPI id; the kernel's ids begin above the number of CPUs.
const FIRST_NAPI: u32 = 8193;
/// The network namespace of all netdevs.
const NETNS: u32 = 4_026_531_840;

/// A synthetic host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scene {
    /// The machine.
    pub grid: Grid,
    /// The machine, if it is not regular; it replaces `grid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// CPUs that are offline.
    pub offline: CpuSet,
    /// `isolcpus=`.
    pub isolated: CpuSet,
    /// `nohz_full=`.
    pub nohz_full: CpuSet,
    /// CPUs that belong to one container alone.
    pub exclusive: CpuSet,
    /// Other load of CPUs.
    pub busy: Vec<CpuLoad>,
    /// Network devices.
    pub netdevs: Vec<SceneNetdev>,
    /// Other programs that write the same knobs.
    pub writers: Vec<KnobOwner>,
    /// `rps_sock_flow_entries`.
    pub rps_sock_flow_entries: Option<u32>,
    /// `rps_default_mask`.
    pub rps_default_mask: Option<CpuSet>,
    /// eBPF counted nothing: only `/proc` is known.
    pub without_bpf: bool,
    /// Whether it is a virtual machine; `None` if unknown.
    pub virtual_machine: Option<bool>,
}

/// Load of some CPUs besides receiving.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuLoad {
    /// These CPUs.
    pub cpus: CpuSet,
    /// Share of their time in user space.
    pub usr: f64,
}

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SceneNetdev {
    /// Interface name.
    pub name: String,
    /// Driver.
    pub driver: String,
    /// NUMA node of the device.
    pub node: Option<u32>,
    /// Without hardware: no device path.
    pub software: bool,
    /// The bond, bridge or team of which it is a port.
    pub master: Option<String>,
    /// Administratively down.
    pub down: bool,
    /// Its NAPIs are polled by kthreads.
    pub threaded: bool,
    /// An interrupt without a queue.
    pub config_irq: Option<u32>,
    /// Only observation tells which NAPI belongs to which queue.
    pub napis_unknown: bool,
    /// rx queues, each with the tx queue of the same number.
    pub queues: Vec<SceneQueue>,
    /// Its RSS settings; `None` means that ethtool reported nothing.
    pub rss: Option<SceneRss>,
    /// Flows that arrive while the scene is observed.
    pub flows: Vec<SceneFlow>,
    /// Most queues that it can have (`ethtool -l`); `None` if the driver does not report it.
    pub most_queues: Option<u32>,
    /// Link speed in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// Counters of `/sys/class/net/<dev>/statistics`, per second.
    pub per_s: BTreeMap<String, u64>,
}

/// An rx queue with the tx queue of the same number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SceneQueue {
    /// Its interrupt.
    pub irq: Option<u32>,
    /// `smp_affinity` of the interrupt; the lowest CPU is effective.
    pub cpus: CpuSet,
    /// The interrupt of its tx queue, if the tx queue has its own.
    pub tx_irq: Option<u32>,
    /// `smp_affinity` of `tx_irq`.
    pub tx_cpus: CpuSet,
    /// Whether the interrupt can be moved.
    pub writable: Writable,
    /// `affinity_hint` of the interrupt.
    pub hint: Option<CpuSet>,
    /// CPUs where its kthread may run, if threaded.
    pub kthread_cpus: CpuSet,
    /// `rps_cpus`.
    pub rps_cpus: Option<CpuSet>,
    /// `rps_flow_cnt`.
    pub rps_flow_cnt: Option<u32>,
    /// `xps_cpus`.
    pub xps_cpus: Option<CpuSet>,
    /// The user of the queue (AF_XDP, io_uring or a lease).
    pub leased: Option<String>,
    /// Packets that arrive per second.
    pub packets_per_s: u64,
    /// Packets that each poll returns; 0 stands for 4.
    pub packets_per_poll: u64,
    /// Share of a CPU that polling the queue takes.
    pub load: f64,
    /// Whether the time of its polls is measured, too.
    pub poll_time: bool,
    /// Share of a CPU that its packets take after RPS handed them on, on all receiving CPUs
    /// together.
    pub handed_load: f64,
    /// The readers of the queue.
    pub readers: Vec<Reader>,
    /// Wakeups of its readers per second, in proportion to the bytes they read.
    pub wakeups_per_s: u64,
    /// Where its packets are forwarded.
    pub forwards: Vec<SceneForward>,
}

/// Packets of a queue that are forwarded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SceneForward {
    /// Name of the egress netdev.
    pub to: String,
    /// Tx queue of the egress netdev; without effect where its XPS decides.
    pub queue: u32,
    /// Packets per second.
    pub packets_per_s: u64,
    /// Bytes per second.
    pub bytes_per_s: u64,
}

/// A reader of a queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reader {
    /// Its name.
    pub comm: String,
    /// The CPU where it runs.
    pub cpu: CpuId,
    /// Bytes per second.
    pub bytes_per_s: u64,
    /// It reads datagrams through an unconnected socket.
    #[serde(default)]
    pub unconnected: bool,
}

impl Scene {
    /// Returns the settings, with all counters 0.
    pub fn settings(&self) -> Snapshot {
        let topology = self.topology();
        let mut snapshot = Snapshot { writers: self.writers.clone(), ..Snapshot::default() };
        snapshot.machine.hostname = "scene".into();
        snapshot.machine.netns = NETNS;
        snapshot.machine.virtual_machine = self.virtual_machine;
        snapshot.default_smp_affinity = Some(topology.possible.clone());
        snapshot.net.rps_sock_flow_entries = self.rps_sock_flow_entries;
        snapshot.net.rps_default_mask = self.rps_default_mask.clone();
        let mut napi = FIRST_NAPI;
        for (at, netdev) in self.netdevs.iter().enumerate() {
            snapshot.netdevs.push(netdev.netdev(at as u32 + 2, napi, &topology));
            netdev.interrupts(&mut snapshot.irqs);
            napi += netdev.queues.len() as u32;
        }
        snapshot.topology = topology.into();
        snapshot
    }

    /// Observes the scene under the settings of a snapshot of the same scene.
    pub fn observe(&self, settings: &Snapshot) -> Observation {
        let at = |seconds| Snapshot { at: Duration::from_secs(seconds), ..settings.clone() };
        let (mut before, mut after) = (at(100), at(100 + SECONDS));
        let attribution = self.attribution(settings);
        for cpu in settings.topology.online.iter() {
            let net_rx = attribution
                .cpu_time
                .get(&cpu)
                .map_or(0.0, |time| time.net_rx_ns as f64 / 1e9 / SECONDS as f64);
            let runs = attribution.cpu_time.get(&cpu).map_or(0, |time| time.net_rx_runs);
            let counters = |stat, runs: u64, handed: u64| CpuCounters {
                stat,
                softirqs: [("NET_RX", runs), ("NET_TX", 0)].into(),
                softnet: Some(Softnet {
                    processed: runs as u32,
                    received_rps: handed as u32,
                    ..Softnet::default()
                }),
            };
            before.cpus.insert(cpu, counters(CpuStat::default(), 0, 0));
            after.cpus.insert(
                cpu,
                counters(self.ticks(cpu, net_rx, settings), runs, handed_to(&attribution, cpu)),
            );
        }
        for (netdev, scene) in after.netdevs.iter_mut().zip(&self.netdevs) {
            netdev
                .statistics
                .iter_mut()
                .for_each(|(name, count)| *count += scene.per_s[name] * SECONDS);
        }
        for poll in &attribution.polls {
            let irq = self
                .queues()
                .find(|(napi, ..)| *napi == poll.napi)
                .and_then(|(_, _, _, queue)| queue.irq);
            if let Some(state) = irq.and_then(|irq| after.irqs.get_mut(&Irq(irq))) {
                *state.counts.entry(poll.cpu).or_default() += poll.polls;
            }
        }
        let attribution = if self.without_bpf { Attribution::default() } else { attribution };
        Observation { before, after, attribution }
    }

    /// Returns the CPU that polls a netdev's queue under these settings.
    pub fn polled_on(&self, settings: &Snapshot, netdev: usize, queue: usize) -> Option<CpuId> {
        let (napi, at, index, _) =
            self.queues().find(|(_, at, i, _)| (*at, *i as usize) == (netdev, queue))?;
        polled_on(settings, at, index, napi)
    }

    /// Observes the scene under its own settings.
    pub fn observation(&self) -> Observation {
        self.observe(&self.settings())
    }

    fn topology(&self) -> Topology {
        let mut topology = self.topology.clone().unwrap_or_else(|| self.grid.topology());
        topology.online = topology.online.minus(&self.offline);
        topology.isolated = topology.isolated.or(&self.isolated);
        topology.nohz_full = topology.nohz_full.or(&self.nohz_full);
        topology.exclusive = topology.exclusive.or(&self.exclusive);
        topology
    }

    /// All queues, as NAPI, netdev position, queue number and queue.
    fn queues(&self) -> impl Iterator<Item = (NapiId, usize, u32, &SceneQueue)> {
        let queues = self.netdevs.iter().enumerate();
        let queues = queues.flat_map(|(at, dev)| {
            dev.queues.iter().enumerate().map(move |(i, queue)| (at, i as u32, queue))
        });
        queues.enumerate().map(|(n, (at, i, queue))| (NapiId(FIRST_NAPI + n as u32), at, i, queue))
    }

    fn ticks(&self, cpu: CpuId, net_rx: f64, settings: &Snapshot) -> CpuStat {
        let usr: f64 =
            self.busy.iter().filter(|busy| busy.cpus.contains(cpu)).map(|busy| busy.usr).sum();
        let threads = self.queues().filter(|(_, at, ..)| self.netdevs[*at].threaded);
        let on_it =
            threads.filter(|(napi, at, i, _)| polled_on(settings, *at, *i, *napi) == Some(cpu));
        let sys: f64 = on_it.map(|(_, _, _, queue)| queue.load).sum();
        let ticks = |share: f64| (share * TICKS).round() as u64;
        let (softirq, sys) = (ticks(net_rx), ticks(sys));
        let user = ticks(usr).min((TICKS as u64).saturating_sub(softirq + sys));
        let idle = (TICKS as u64).saturating_sub(softirq + sys + user);
        CpuStat { user, system: sys, softirq, idle, ..CpuStat::default() }
    }

    fn attribution(&self, settings: &Snapshot) -> Attribution {
        let elapsed = Duration::from_secs(SECONDS);
        let mut attribution =
            Attribution { source: AttributionSource::Bpf, elapsed, ..Attribution::default() };
        attribution.cpu_time =
            settings.topology.online.iter().map(|cpu| (cpu, CpuTime::default())).collect();
        for (napi, at, index, queue) in self.queues().filter(|(.., queue)| queue.packets_per_s > 0)
        {
            let Some(cpu) = polled_on(settings, at, index, napi) else { continue };
            let (netdev, packets) = (&self.netdevs[at], queue.packets_per_s * SECONDS);
            let polls = packets.div_ceil(if queue.packets_per_poll == 0 {
                4
            } else {
                queue.packets_per_poll
            });
            let ifindex = at as u32 + 2;
            attribution.polls.push(Poll {
                napi,
                netdev: netdev.name.clone(),
                ifindex,
                netns: NETNS,
                cpu,
                polls,
                packets,
                ns: (queue.poll_time && !netdev.threaded)
                    .then_some((queue.load * 1e9) as u64 * SECONDS),
            });
            if !netdev.threaded {
                let time = attribution.cpu_time.entry(cpu).or_default();
                time.net_rx_ns += (queue.load * 1e9) as u64 * SECONDS;
                time.net_rx_runs += polls;
            }
            self.hand_on(settings, at, index, polls, &mut attribution);
            let protocol = rps_of(settings, at, index).and_then(CpuSet::lowest).unwrap_or(cpu);
            attribution.consumption.extend(queue.readers.iter().map(|reader| Consumption {
                // Each wakeup leads to a read.
                events: queue.wakeups_of(reader).max(1),
                ..reader.consumption(napi, index, cpu, protocol)
            }));
            attribution.wakeups.extend(queue.wakeups(protocol));
            attribution.forwarded.extend(queue.forwards.iter().map(|forward| {
                let egress = self.netdevs.iter().position(|dev| dev.name == forward.to);
                let by_xps = egress.and_then(|at| xps_queue(settings, at, protocol));
                Forwarded {
                    napi: Some(napi),
                    rx_queue: Some(index),
                    poll_cpu: cpu,
                    xmit_cpu: protocol,
                    egress: forward.to.clone(),
                    egress_ifindex: egress.map_or(0, |at| at as u32 + 2),
                    egress_netns: NETNS,
                    tx_queue: by_xps.unwrap_or(forward.queue),
                    packets: forward.packets_per_s * SECONDS,
                    bytes: forward.bytes_per_s * SECONDS,
                }
            }));
        }
        for (at, netdev) in self.netdevs.iter().enumerate() {
            let table = settings.netdevs.get(at).and_then(|dev| dev.ethtool.as_ref()?.rss.value());
            let table = table.map_or(&[][..], |rss| &rss.indirection);
            let from = Flow {
                netdev: netdev.name.clone(),
                ifindex: at as u32 + 2,
                netns: NETNS,
                ..Flow::default()
            };
            attribution.flows.extend(netdev.flows.iter().flat_map(|flow| flow.flows(&from, table)));
        }
        assign_numbers(&mut attribution.flows);
        attribution
    }
}

impl Scene {
    /// Adds the packets that RPS hands on, evenly: one backlog poll for each poll of the queue.
    fn hand_on(
        &self,
        settings: &Snapshot,
        at: usize,
        index: u32,
        polls: u64,
        attribution: &mut Attribution,
    ) {
        let queue = &self.netdevs[at].queues[index as usize];
        let Some(cpus) =
            rps_of(settings, at, index).filter(|cpus| !cpus.is_empty() && queue.handed_load > 0.0)
        else {
            return;
        };
        let each = cpus.len() as u64;
        for cpu in cpus.iter() {
            attribution.polls.push(Poll {
                napi: NapiId(0),
                netdev: String::new(),
                ifindex: 0,
                netns: 0,
                cpu,
                polls: polls / each,
                packets: queue.packets_per_s * SECONDS / each,
                ns: queue
                    .poll_time
                    .then_some((queue.handed_load / each as f64 * 1e9) as u64 * SECONDS),
            });
            let time = attribution.cpu_time.entry(cpu).or_default();
            time.net_rx_ns += (queue.handed_load / each as f64 * 1e9) as u64 * SECONDS;
            time.net_rx_runs += polls / each;
        }
    }
}

/// Returns the CPU of a queue's interrupt, or of its kthread, by the settings.
fn polled_on(settings: &Snapshot, at: usize, index: u32, napi: NapiId) -> Option<CpuId> {
    let netdev = settings.netdevs.get(at)?;
    let thread = netdev.napis.iter().find(|n| n.id == napi).and_then(|n| n.thread.as_ref());
    let irq = || {
        let state = settings
            .irqs
            .get(&netdev.rx_queues.iter().find(|rx| rx.index == index)?.irq.as_ref()?.to)?;
        state.requested.as_ref()?.and(&settings.topology.online).lowest()
    };
    thread.map_or_else(irq, |thread| thread.cpus.lowest())
}

/// Number of interrupts of a CPU to process its backlog.
fn handed_to(attribution: &Attribution, cpu: CpuId) -> u64 {
    attribution
        .polls
        .iter()
        .filter(|poll| poll.cpu == cpu && poll.napi.0 == 0)
        .map(|poll| poll.polls)
        .sum()
}

fn rps_of(settings: &Snapshot, at: usize, index: u32) -> Option<&CpuSet> {
    settings.netdevs.get(at)?.rx_queues.iter().find(|rx| rx.index == index)?.rps_cpus.as_ref()
}

impl SceneNetdev {
    fn netdev(&self, ifindex: u32, first_napi: u32, topology: &Topology) -> Netdev {
        let named = || AssociationSource::ActionName(self.driver.clone());
        let edge =
            |irq: u32| Association { to: Irq(irq), source: named(), confidence: Confidence::Named };
        let napi = |i: usize| NapiId(first_napi + i as u32);
        let known = |i: usize| Association {
            to: napi(i),
            source: AssociationSource::NetdevGenl,
            confidence: Confidence::Certain,
        };
        let thread = |i: usize, queue: &SceneQueue| NapiThread {
            pid: 900 + napi(i).0 - FIRST_NAPI,
            comm: format!("napi/{}-{}", self.name, napi(i)),
            start_time: 100,
            cpus: if queue.kthread_cpus.is_empty() {
                topology.online.clone()
            } else {
                queue.kthread_cpus.clone()
            },
        };
        let rx = |(i, queue): (usize, &SceneQueue)| RxQueue {
            index: i as u32,
            irq: queue.irq.map(edge),
            napi: (!self.napis_unknown).then(|| known(i)),
            rps_cpus: queue.rps_cpus.clone(),
            rps_flow_cnt: queue.rps_flow_cnt,
            leased: queue.leased.clone(),
            ..RxQueue::default()
        };
        let tx = |(i, queue): (usize, &SceneQueue)| TxQueue {
            index: i as u32,
            irq: queue.tx_irq.or(queue.irq).map(edge),
            xps_cpus: queue.xps_cpus.clone(),
            ..TxQueue::default()
        };
        let napis = self.queues.iter().enumerate().map(|(i, queue)| Napi {
            id: napi(i),
            irq: None,
            thread: self.threaded.then(|| thread(i, queue)),
        });
        Netdev {
            name: self.name.clone(),
            ifindex,
            device_path: (!self.software)
                .then(|| format!("/devices/pci0000:00/0000:00:{ifindex:02x}.0")),
            master: self.master.clone(),
            driver: Some(self.driver.clone()),
            node: self.node.map(NodeId),
            up: !self.down,
            carrier: Some(!self.down),
            mtu: 1500,
            rx_queues: self.queues.iter().enumerate().map(rx).collect(),
            tx_queues: self.queues.iter().enumerate().map(tx).collect(),
            irqs: self.irqs(),
            napis: if self.napis_unknown && !self.threaded { Vec::new() } else { napis.collect() },
            threaded: Some(self.threaded.into()),
            speed_mbps: self.speed_mbps,
            statistics: self.per_s.keys().map(|name| (name.clone(), 0)).collect(),
            ethtool: self.ethtool(),
            ..Netdev::default()
        }
    }

    /// Returns ethtool's report, if the scene defines any of it.
    fn ethtool(&self) -> Option<Ethtool> {
        let queues = self.queues.len() as u32;
        let rss = self.rss.as_ref().map(|rss| rss.ethtool(&self.driver, queues));
        let Some(max) = self.most_queues else { return rss };
        let combined = Some(Limit { current: queues, max });
        let channels = Reading::Value(Channels { rx: None, tx: None, other: None, combined });
        Some(Ethtool {
            channels,
            ..rss.unwrap_or_else(|| Ethtool::unavailable("a scene does not say"))
        })
    }

    fn irqs(&self) -> Vec<Irq> {
        let mut irqs: Vec<Irq> = self.config_irq.into_iter().map(Irq).collect();
        irqs.extend(
            self.queues.iter().flat_map(|queue| [queue.irq, queue.tx_irq]).flatten().map(Irq),
        );
        irqs.sort_unstable();
        irqs.dedup();
        irqs
    }

    fn interrupts(&self, irqs: &mut BTreeMap<Irq, IrqState>) {
        let mut add = |irq: Option<u32>, action: String, cpus: &CpuSet, writable: &Writable| {
            let Some(irq) = irq else { return };
            let state = irqs.entry(Irq(irq)).or_default();
            state.chip = "PCI-MSIX 0-edge".into();
            state.requested = Some(cpus.clone());
            state.effective = cpus.lowest().map(CpuSet::from_cpu);
            state.writable = writable.clone();
            state.node = self.node.map(NodeId);
            if !state.actions.contains(&action) {
                state.actions.push(action);
            }
        };
        add(
            self.config_irq,
            format!("{}-config", self.name),
            &CpuSet::from_cpu(CpuId(0)),
            &Writable::Yes,
        );
        for (i, queue) in self.queues.iter().enumerate() {
            let split = queue.tx_irq.is_some();
            let action = format!("{}-{}-{i}", self.name, if split { "rx" } else { "TxRx" });
            add(queue.irq, action, &queue.cpus, &queue.writable);
            add(queue.tx_irq, format!("{}-tx-{i}", self.name), &queue.tx_cpus, &queue.writable);
        }
        for queue in &self.queues {
            if let Some(state) = queue.irq.and_then(|irq| irqs.get_mut(&Irq(irq))) {
                state.hint = queue.hint.clone();
            }
        }
    }
}

impl SceneQueue {
    /// Number of wakeups of a reader while the scene is observed.
    fn wakeups_of(&self, reader: &Reader) -> u64 {
        let all: u64 = self.readers.iter().map(|reader| reader.bytes_per_s).sum();
        (self.wakeups_per_s * SECONDS * reader.bytes_per_s).checked_div(all).unwrap_or(0)
    }

    fn wakeups(&self, waker_cpu: CpuId) -> impl Iterator<Item = Wakeup> {
        let woken = self.readers.iter().filter(|reader| self.wakeups_of(reader) > 0);
        woken.map(move |reader| Wakeup {
            tgid: reader.tgid(),
            waker_cpu,
            sleeper_cpu: reader.cpu,
            count: self.wakeups_of(reader),
            idle: None,
        })
    }
}

impl Reader {
    fn tgid(&self) -> u32 {
        self.comm.bytes().fold(1000, |sum: u32, byte| sum + u32::from(byte))
    }

    fn consumption(&self, napi: NapiId, queue: u32, polled: CpuId, protocol: CpuId) -> Consumption {
        Consumption {
            napi: Some(napi),
            rx_queue: Some(queue),
            resolved: QueueResolution::Direct,
            poll_cpu: Some(polled),
            protocol_cpu: Some(protocol),
            consumer_cpu: self.cpu,
            consumer: Consumer {
                tgid: self.tgid(),
                comm: self.comm.clone(),
                cgroup: None,
                netns: NETNS,
            },
            protocol: if self.unconnected { Protocol::Udp } else { Protocol::Tcp },
            bytes: self.bytes_per_s * SECONDS,
            events: 1,
            approximate: false,
            connected: self.unconnected.then_some(false),
        }
    }
}

/// The first tx queue through which a CPU sends, by `xps_cpus`.
fn xps_queue(settings: &Snapshot, at: usize, cpu: CpuId) -> Option<u32> {
    let sends = |tx: &&TxQueue| tx.xps_cpus.as_ref().is_some_and(|cpus| cpus.contains(cpu));
    Some(settings.netdevs.get(at)?.tx_queues.iter().find(sends)?.index)
}
