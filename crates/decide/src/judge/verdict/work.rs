//! A netdev's measured receive work and the loads of all CPUs.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::backlog::BacklogWork;
use netsilo_model::derive::receive_work::{Bounds, steerable_share};
use netsilo_model::derive::silo::Silo;
use netsilo_model::derive::utilization::{CpuUtilization, utilization};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::attribution::Consumption;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_predict::live::flows::Flows;

use crate::judge::verdict::look::Look;

/// One CPU's load, as shares of the time that the hypervisor does not steal.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CpuLoad {
    /// All time but idle, iowait and nice (low-priority work yields).
    pub(super) busy: f64,
    /// The part that the scheduler cannot move: interrupts, softirqs and NAPI kthreads.
    pub(super) bound: f64,
}

/// The loads of all usable CPUs.
pub(super) type Loads = BTreeMap<CpuId, CpuLoad>;

/// One netdev's receive work; shares are of one CPU's time.
#[derive(Debug, Clone)]
pub(super) struct NetdevWork<'a> {
    pub(super) look: &'a Look<'a>,
    pub(super) analysis: &'a Analysis<'a>,
    pub(super) netdev: &'a Netdev,
    /// Its queues, and its NAPIs without a known queue.
    pub(super) silos: Vec<&'a Silo>,
    /// Loads of the usable CPUs (online, not set apart) and of those that poll the netdev.
    pub(super) loads: Loads,
    /// Share of each CPU's time that is spent on polling the netdev.
    pub(super) poll_share: BTreeMap<CpuId, f64>,
    /// Packets received per second.
    pub(super) packets_per_s: Option<f64>,
    /// Polls per second.
    pub(super) polls_per_s: f64,
    /// Whether NAPI polls it; else the senders' backlogs have its packets.
    pub(super) has_napi: bool,
    /// The flows; `None` when they were not counted.
    pub(super) flows: Option<Flows>,
}

impl<'a> NetdevWork<'a> {
    /// Collects a netdev's work; `None` when the netdev is down, receives nothing, or has no rates.
    pub(super) fn of(look: &'a Look<'a>, netdev: &'a Netdev) -> Option<Self> {
        let analysis = look.analysis;
        let silos: Vec<&Silo> =
            analysis.silos.queues.iter().filter(|silo| silo.netdev.is(netdev)).collect();
        let backlog = BacklogWork::of(analysis, netdev, &silos);
        if analysis.rates.elapsed.is_zero()
            || !netdev.up
            || (backlog.is_none() && !silos.iter().any(|silo| silo.has_traffic()))
        {
            return None;
        }
        let mut poll_share: BTreeMap<CpuId, f64> = BTreeMap::new();
        match &backlog {
            Some(backlog) => poll_share.clone_from(&backlog.share),
            None => {
                for (cpu, share) in silos.iter().flat_map(|silo| &silo.own_share) {
                    *poll_share.entry(*cpu).or_default() += share;
                }
            }
        }
        let mut work = Self {
            loads: loads(analysis, &poll_share),
            packets_per_s: match &backlog {
                Some(backlog) => Some(backlog.packets_per_s),
                None => packets(analysis, netdev, &silos),
            },
            polls_per_s: backlog.as_ref().map_or_else(|| polls(&silos), |it| it.polls_per_s),
            has_napi: backlog.is_none(),
            flows: Flows::of(analysis, netdev, &silos),
            look,
            analysis,
            netdev,
            silos,
            poll_share,
        };
        work.poll_share.retain(|cpu, _| work.loads.contains_key(cpu));
        Some(work)
    }

    /// The CPU that spends most time on polling the netdev.
    pub(super) fn main_poller(&self) -> Option<CpuId> {
        netsilo_model::derive::silo::heaviest(
            self.poll_share.iter().map(|(cpu, share)| (*cpu, *share)),
        )
    }

    /// The time of all CPUs spent on polling the netdev.
    pub(super) fn total_poll_share(&self) -> f64 {
        self.poll_share.values().sum()
    }

    /// Whether the machine is virtual; `None` when not known.
    pub(super) fn is_guest(&self) -> Option<bool> {
        self.analysis.observation.after.machine.virtual_machine
    }

    /// The idle share of a CPU's time; 0 for a CPU without a load.
    pub(super) fn idle(&self, cpu: CpuId) -> f64 {
        self.loads.get(&cpu).map_or(0.0, |load| (1.0 - load.busy).clamp(0.0, 1.0))
    }

    /// The summed busy shares of the other hardware threads of a CPU's core, which slow it down.
    pub(super) fn sibling_busy(&self, cpu: CpuId) -> f64 {
        let siblings =
            self.analysis.observation.after.topology.core_of(cpu).minus(&CpuSet::from_cpu(cpu));
        siblings
            .iter()
            .filter_map(|other| self.loads.get(&other))
            .map(|load| load.busy.min(1.0))
            .sum()
    }

    /// The mean idle share of these CPUs.
    pub(super) fn mean_idle(&self, cpus: &CpuSet) -> f64 {
        let idle: Vec<f64> = cpus
            .iter()
            .filter(|cpu| self.loads.contains_key(cpu))
            .map(|cpu| self.idle(cpu))
            .collect();
        idle.iter().sum::<f64>() / idle.len().max(1) as f64
    }

    /// All CPUs with a load.
    pub(super) fn cpus(&self) -> CpuSet {
        self.loads.keys().copied().collect()
    }

    /// The share of the bytes that RFS can steer: those of connected sockets. `None` when no reads
    /// were observed.
    pub(super) fn steerable(&self) -> Option<Bounds> {
        steerable_share(reads(self.analysis, &self.silos))
    }

    /// The CPUs that read what arrives.
    pub(super) fn readers(&self) -> CpuSet {
        let read = self.silos.iter().flat_map(|silo| silo.read_on());
        read.map(|(cpu, _)| cpu).filter(|cpu| self.loads.contains_key(cpu)).collect()
    }
}

/// The reads of data that arrived on queues.
pub(super) fn reads<'a>(
    analysis: &'a Analysis<'_>,
    silos: &[&Silo],
) -> impl Iterator<Item = &'a Consumption> {
    let napis: Vec<_> =
        silos.iter().filter_map(|silo| silo.napi.as_ref().map(|edge| edge.to)).collect();
    let rows = analysis.observation.attribution.consumption.iter();
    rows.filter(move |row| row.bytes > 0 && row.napi.is_some_and(|napi| napis.contains(&napi)))
}

/// The loads of the CPUs that are online and not set apart, and of those that poll.
fn loads(analysis: &Analysis<'_>, poll_share: &BTreeMap<CpuId, f64>) -> Loads {
    let topology = &analysis.observation.after.topology;
    let counts =
        topology.online.minus(&topology.reserved()).or(&poll_share.keys().copied().collect());
    let work = utilization(analysis).into_iter().filter(|(cpu, _)| counts.contains(*cpu));
    let load = |work: CpuUtilization| CpuLoad {
        busy: (work.busy() / work.room()).min(1.0),
        bound: (work.bound() / work.room()).min(1.0),
    };
    work.map(|(cpu, work)| (cpu, load(work))).collect()
}

fn packets(analysis: &Analysis<'_>, netdev: &Netdev, silos: &[&Silo]) -> Option<f64> {
    let polled: Option<f64> = silos.iter().map(|silo| silo.packets_per_s).sum();
    polled
        .filter(|rate| *rate > 0.0)
        .or_else(|| analysis.rates.netdevs.get(&netdev.name)?.get("rx_packets").copied())
}

/// Polls per second as counted, else interrupts per second: each interrupt starts one poll.
fn polls(silos: &[&Silo]) -> f64 {
    let polls = silos.iter().flat_map(|silo| silo.polls.values()).map(|rate| rate.polls_per_s);
    let polls: f64 = polls.sum();
    let interrupts = silos.iter().filter_map(|silo| silo.interrupts_per_s.as_ref());
    if polls > 0.0 { polls } else { interrupts.flat_map(BTreeMap::values).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

    /// Two queues, on CPU 0 with 30% of its time and on CPU 1 with 40%.
    fn scene(threaded: bool) -> Scene {
        let queue = |cpu: u32, load: f64| SceneQueue {
            irq: Some(30 + cpu),
            cpus: CpuSet::from_cpu(CpuId(cpu)),
            kthread_cpus: CpuSet::from_cpu(CpuId(cpu)),
            packets_per_s: 10_000,
            load,
            readers: vec![Reader { bytes_per_s: 1000, ..Reader::default() }],
            ..SceneQueue::default()
        };
        let netdev = SceneNetdev {
            name: "eth0".into(),
            threaded,
            queues: vec![queue(0, 0.3), queue(1, 0.4)],
            per_s: [("rx_packets".to_owned(), 70_000)].into(),
            ..SceneNetdev::default()
        };
        let grid = Grid { l2s: 4, ..Grid::default() };
        Scene { grid, netdevs: vec![netdev], ..Scene::default() }
    }

    fn with_work<T>(observation: &Observation, then: impl FnOnce(&NetdevWork<'_>) -> T) -> T {
        let costs = Costs::default();
        let analysis = Analysis::new(observation, &costs);
        then(&NetdevWork::of(&Look::new(&analysis), &observation.after.netdevs[0]).unwrap())
    }

    #[test]
    fn time_of_kthreads_is_bound_to_their_cpus_as_that_of_softirqs_is() {
        let bound = |observation: &Observation| {
            with_work(observation, |work| [0, 1, 2].map(|cpu| work.loads[&CpuId(cpu)].bound))
        };
        assert_eq!(bound(&scene(false).observation()), [0.3, 0.4, 0.0]);
        let mut observation = scene(true).observation();
        assert_eq!(bound(&observation), [0.3, 0.4, 0.0]);
        // since Linux 6.17, one NAPI of a netdev can be threaded and another not
        observation.after.netdevs[0].napis[1].thread = None;
        let of_scene = scene(false).observation();
        let cpu = CpuId(1);
        observation.after.cpus.insert(cpu, of_scene.after.cpus[&cpu].clone());
        observation.attribution.cpu_time.insert(cpu, of_scene.attribution.cpu_time[&cpu]);
        assert_eq!(bound(&observation), [0.3, 0.4, 0.0], "no time is counted twice");
    }

    #[test]
    fn packets_that_no_poll_of_the_netdev_returned_are_counted_by_the_netdev() {
        let mut observation = scene(false).observation();
        assert_eq!(with_work(&observation, |work| work.packets_per_s), Some(20_000.0));
        observation.attribution.polls.clear();
        assert_eq!(with_work(&observation, |work| work.packets_per_s), Some(70_000.0));
    }

    #[test]
    fn an_interrupt_counts_as_a_poll_where_polls_were_not_counted() {
        let polls = |without_bpf: bool, interrupts: u64| {
            let mut observation = Scene { without_bpf, ..scene(false) }.observation();
            for irq in observation.after.irqs.values_mut() {
                irq.counts = [(CpuId(0), interrupts)].into();
            }
            for irq in observation.before.irqs.values_mut() {
                irq.counts = [(CpuId(0), 0)].into();
            }
            with_work(&observation, |work| work.polls_per_s)
        };
        assert_eq!(polls(false, 70), 5000.0, "10000 packets of each queue, four a poll");
        assert_eq!(polls(true, 70), 14.0);
    }
}
