//! Synthetic hosts in a few lines, for tests, golden cases and simulation: a machine, its netdevs,
//! and the readers of its queues.
//!
//! [`Scene::settings`] returns the snapshot of its settings. [`Scene::observe`] returns an
//! observation of the host under the settings of a given snapshot: the load stays the same, and
//! packets are polled on the CPUs to which the interrupts then go.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::cpu_owner::CpuOwner;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::{Irq, NapiId};
use crate::machine::topology::Topology;
use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::{CpuCounters, CpuStat, KnobOwner, Snapshot, Softnet, Writable};
use crate::snapshot::net_thread::NetThread;
use crate::snapshot::observation::Observation;
use crate::snapshot::thread_time::ThreadTime;
use crate::synthetic::arrivals::{SceneFlow, SceneRss};
use crate::synthetic::grid::Grid;

mod settings;
mod traffic;

/// Number of seconds for which a scene is observed.
pub(crate) const SECONDS: u64 = 10;
/// Clock ticks in [`SECONDS`] (USER_HZ is 100).
const TICKS: f64 = 1000.0;
/// `cpu_capacity` of a Cortex-A55 next to an A76, which has 1024.
const LITTLE: u32 = 446;
/// First NAPI id. The kernel's ids begin above the number of CPUs.
const FIRST_NAPI: u32 = 8193;
/// The network namespace of all netdevs.
pub(crate) const NETNS: u32 = 4_026_531_840;

/// A synthetic host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scene {
    /// The machine.
    pub grid: Grid,
    /// The machine, if it is not regular. It replaces `grid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// CPUs that are offline.
    pub offline: CpuSet,
    /// `isolcpus=`.
    pub isolated: CpuSet,
    /// Isolated cpuset partitions.
    pub isolated_partitions: CpuSet,
    /// `nohz_full=`.
    pub nohz_full: CpuSet,
    /// CPUs like a Cortex-A55, if the others are like an A76.
    pub little: CpuSet,
    /// Containers that have CPUs for themselves.
    pub cpu_owners: Vec<CpuOwner>,
    /// Free interrupt vectors of CPUs; empty if unknown.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub free_vectors: BTreeMap<CpuId, usize>,
    /// Other load of CPUs.
    pub busy: Vec<CpuLoad>,
    /// Network devices.
    pub netdevs: Vec<SceneNetdev>,
    /// Kernel threads that work for no queue of these netdevs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<SceneThread>,
    /// Other programs that write the same knobs.
    pub knob_owners: Vec<KnobOwner>,
    /// `rps_sock_flow_entries`.
    pub rps_sock_flow_entries: Option<u32>,
    /// `rps_default_mask`.
    pub rps_default_mask: Option<CpuSet>,
    /// eBPF counted nothing, so only `/proc` is known.
    pub without_bpf: bool,
    /// The kernel shows no effective affinity (before 4.13).
    pub without_effective: bool,
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

/// A kernel thread that receives or sends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SceneThread {
    /// Its name.
    pub comm: String,
    /// CPUs where it may run. It runs on the lowest one.
    pub cpus: CpuSet,
    /// Share of a CPU that it takes.
    pub load: f64,
    /// The kernel keeps no time of it.
    pub without_time: bool,
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
    /// Only observation shows which NAPI belongs to which queue.
    pub napis_unknown: bool,
    /// rx queues, each with the tx queue of the same number.
    pub queues: Vec<SceneQueue>,
    /// Its RSS settings; `None` means that ethtool reported nothing.
    pub rss: Option<SceneRss>,
    /// Flows that arrive while the scene is observed.
    pub flows: Vec<SceneFlow>,
    /// Maximum number of queues (`ethtool -l`); `None` if the driver does not report it.
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
    /// `smp_affinity` of the interrupt. The lowest CPU is effective.
    pub cpus: CpuSet,
    /// The interrupt of its tx queue, if the tx queue has its own.
    pub tx_irq: Option<u32>,
    /// `smp_affinity` of `tx_irq`.
    pub tx_cpus: CpuSet,
    /// Whether the interrupt can be moved.
    pub writable: Writable,
    /// The CPU where its interrupts arrive, and its packets are polled, whatever the settings say.
    pub arrives_on: Option<CpuId>,
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
    /// Packets that each poll returns. 0 stands for 4.
    pub packets_per_poll: u64,
    /// Share of a CPU that polling the queue takes, of the fastest one if they differ.
    pub load: f64,
    /// Share of the time in which its kthread waits for a CPU; `None`: the kernel does not report
    /// how long it runs and waits.
    pub kthread_waited: Option<f64>,
    /// Whether the time of its polls is measured too.
    pub poll_time: bool,
    /// Share of a CPU used by its packets after RPS has steered them, on all receiving CPUs
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
    /// Tx queue of the egress netdev. It has no effect if XPS of that netdev chooses the queue.
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
    /// Its cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

impl Scene {
    /// Returns the settings, with all counters 0.
    pub fn settings(&self) -> Snapshot {
        let topology = self.topology();
        let mut snapshot =
            Snapshot { knob_owners: self.knob_owners.clone(), ..Snapshot::default() };
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
        if self.without_effective {
            snapshot.irqs.values_mut().for_each(|state| state.effective = None);
        }
        snapshot.net_threads = self.net_threads();
        snapshot.topology = topology.into();
        snapshot.free_vectors = self.free_vectors.clone();
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
                    processed: Some(runs as u32),
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
            let queue = self.queues().find(|(napi, ..)| *napi == poll.napi);
            let Some((_, at, _, queue)) = queue else { continue };
            let Some(state) = queue.irq.and_then(|irq| after.irqs.get_mut(&Irq(irq))) else {
                continue;
            };
            // The interrupt of a threaded NAPI only wakes the kthread.
            let requested = state.requested.as_ref().filter(|_| self.netdevs[at].threaded);
            let requested = requested.and_then(|it| it.and(&settings.topology.online).lowest());
            let cpu = queue.arrives_on.or(requested).unwrap_or(poll.cpu);
            *state.counts.entry(cpu).or_default() += poll.polls;
        }
        for (napi, netdev, _, queue) in self.queues() {
            let Some(waited) = queue.kthread_waited else { continue };
            let known = settings.netdevs[netdev].napis.iter().find(|known| known.id == napi);
            let Some(thread) = known.and_then(|known| known.thread.as_ref()) else { continue };
            let (comm, start_time) = (thread.comm.clone(), thread.start_time);
            let cpus = Some(thread.cpus.clone());
            let ran_on = thread.cpus.lowest();
            let thread_of_napi =
                NetThread { comm, start_time, cpus, ran_on, time: None, bound: false };
            ran_and_waited(
                [&mut before, &mut after],
                thread.pid,
                thread_of_napi,
                [queue.load, waited],
            );
        }
        for (pid, thread) in self.thread_pids().filter(|(_, thread)| !thread.without_time) {
            let Some(now) = settings.net_threads.get(&pid).cloned() else { continue };
            ran_and_waited([&mut before, &mut after], pid, now, [thread.load, 0.0]);
        }
        let attribution = if self.without_bpf { Attribution::default() } else { attribution };
        Observation { before, after, attribution }
    }

    /// Returns the CPU that polls a netdev's queue under these settings.
    pub fn polled_on(&self, settings: &Snapshot, netdev: usize, queue: usize) -> Option<CpuId> {
        let (napi, at, index, _) =
            self.queues().find(|(_, at, i, _)| (*at, *i as usize) == (netdev, queue))?;
        self.cpu_of(settings, at, index, napi)
    }

    /// The same by NAPI.
    fn cpu_of(&self, settings: &Snapshot, at: usize, index: u32, napi: NapiId) -> Option<CpuId> {
        let fixed = self.netdevs[at].queues[index as usize].arrives_on;
        fixed.or_else(|| polled_on(settings, at, index, napi))
    }

    /// Observes the scene under its own settings.
    pub fn observation(&self) -> Observation {
        self.observe(&self.settings())
    }

    /// The pids of its threads.
    fn thread_pids(&self) -> impl Iterator<Item = (u32, &SceneThread)> {
        (700..).zip(&self.threads)
    }

    fn net_threads(&self) -> BTreeMap<u32, NetThread> {
        let thread = |(pid, thread): (u32, &SceneThread)| {
            let thread = NetThread {
                comm: thread.comm.clone(),
                start_time: 100,
                cpus: Some(thread.cpus.clone()),
                ran_on: thread.cpus.lowest(),
                ..NetThread::default()
            };
            (pid, thread)
        };
        self.thread_pids().map(thread).collect()
    }

    fn topology(&self) -> Topology {
        let mut topology = self.topology.clone().unwrap_or_else(|| self.grid.topology());
        topology.online = topology.online.minus(&self.offline);
        topology.isolated = topology.isolated.or(&self.isolated);
        topology.isolated_partitions = topology.isolated_partitions.or(&self.isolated_partitions);
        topology.nohz_full = topology.nohz_full.or(&self.nohz_full);
        topology.cpu_owners.extend(self.cpu_owners.iter().cloned());
        for (cpu, known) in topology.cpus.iter_mut().filter(|_| !self.little.is_empty()) {
            known.capacity = Some(if self.little.contains(*cpu) { LITTLE } else { 1024 });
        }
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
            threads.filter(|(napi, at, i, _)| self.cpu_of(settings, *at, *i, *napi) == Some(cpu));
        let sys = on_it.map(|(_, _, _, queue)| queue.load).sum::<f64>();
        let sys = sys * settings.topology.slowdown(cpu);
        let runs_here =
            |pid: &u32| settings.net_threads.get(pid).and_then(|it| it.cpus.as_ref()?.lowest());
        let others = self.thread_pids().filter(|(pid, _)| runs_here(pid) == Some(cpu));
        let sys = sys + others.map(|(_, thread)| thread.load).sum::<f64>();
        let ticks = |share: f64| (share * TICKS).round() as u64;
        let (softirq, sys) = (ticks(net_rx), ticks(sys));
        let user = ticks(usr).min((TICKS as u64).saturating_sub(softirq + sys));
        let idle = (TICKS as u64).saturating_sub(softirq + sys + user);
        CpuStat { user, system: sys, softirq, idle, ..CpuStat::default() }
    }
}

/// Returns the CPU of a queue's interrupt, or of its kthread, according to the settings.
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

/// Adds a thread to the two snapshots of an observation, in which it ran and waited for these
/// shares of the time.
fn ran_and_waited(
    [before, after]: [&mut Snapshot; 2],
    pid: u32,
    thread: NetThread,
    [ran, waited]: [f64; 2],
) {
    let ns = |share: f64| (share * 1e9) as u64 * SECONDS;
    let at = |time: ThreadTime| NetThread { time: Some(time), ..thread.clone() };
    before.net_threads.insert(pid, at(ThreadTime::default()));
    let time = ThreadTime { run_ns: ns(ran), wait_ns: ns(waited), runs: 1 };
    after.net_threads.insert(pid, at(time));
}

/// Number of interrupts that made a CPU process its backlog.
fn handed_to(attribution: &Attribution, cpu: CpuId) -> u64 {
    attribution
        .polls
        .iter()
        .filter(|poll| poll.cpu == cpu && poll.napi.0 == 0)
        .map(|poll| poll.polls)
        .sum()
}
