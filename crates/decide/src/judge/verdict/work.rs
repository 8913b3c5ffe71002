//! A netdev's measured receive work and the loads of all CPUs; ranges for what was not measured.

use std::collections::BTreeMap;

use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::backlog::BacklogWork;
use netsilo_model::derive::receive_work::{
    Bounds, MovableShare, movable_share, pinned_readers, steerable_share,
};
use netsilo_model::derive::seen_costs::machine_costs;
use netsilo_model::derive::silo::Silo;
use netsilo_model::derive::utilization::{CpuUtilization, utilization};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::rss::model;
use netsilo_model::snapshot::attribution::{Attribution, Consumption};
use netsilo_model::snapshot::netdev::Netdev;

use crate::judge::verdict::bottleneck::{CpuLoad, Loads};

/// Share of a softirq after driver and GRO, where it was not sampled (docs/verdicts.md).
const MOVABLE: Range = Range { worst: 0.3, likely: 0.5, best: 0.85 };
/// The same for packets of at most [`SMALL_BYTES`], which GRO cannot merge.
const MOVABLE_OF_SMALL: Range = Range { worst: 0.45, likely: 0.6, best: 0.85 };
/// Mean packet size in bytes up to which packets are small.
const SMALL_BYTES: f64 = 512.0;
/// Minimum number of packets for a count of flows.
const FLOW_PACKETS: u64 = 100;

/// A value in each scenario, from the worst to the best that fits the measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub(super) worst: f64,
    pub(super) likely: f64,
    pub(super) best: f64,
}

impl Range {
    pub(super) fn exactly(value: f64) -> Self {
        Self { worst: value, likely: value, best: value }
    }

    pub(super) fn of(self, scenario: Scenario) -> f64 {
        match scenario {
            Scenario::Worst => self.worst,
            Scenario::Likely => self.likely,
            Scenario::Best => self.best,
        }
    }
}

impl From<Bounds> for Range {
    /// The more can be moved, the better.
    fn from(Bounds { least, likely, most }: Bounds) -> Self {
        Self { worst: least, likely, best: most }
    }
}

/// A scenario: the assumption about unmeasured quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scenario {
    Worst,
    Likely,
    Best,
}

/// The number of flows and the weight of the heaviest one, which cannot be spread over CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Flows {
    /// Lower bound of the number of flows.
    pub(super) least: usize,
    /// Upper bound of the number of flows; `None` when nothing bounds it.
    pub(super) most: Option<usize>,
    /// The heaviest flow's share of the packets.
    pub(super) heaviest: Range,
    /// The source of these values.
    pub(super) source: &'static str,
}

/// One netdev's receive work; shares are of one CPU's time.
#[derive(Debug, Clone)]
pub(super) struct NetdevWork<'a> {
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
    /// Share of its softirq time that another CPU could take: all after driver and GRO.
    pub(super) movable: Range,
    /// Number of samples behind `movable`; `None` when it is the documented bound.
    pub(super) samples: Option<f64>,
    /// The flows; `None` when they were not counted.
    pub(super) flows: Option<Flows>,
    /// Utilisation of the link (0 to 1) in its busier direction; `None` without a known speed.
    pub(super) link: Option<f64>,
    /// The weights of the cost model on this machine.
    pub(super) costs: Costs,
    /// Where they come from, in words.
    pub(super) costs_source: String,
    /// Whether the time of IPIs was seen, which the weights are not below then.
    ipis_seen: bool,
    /// The CPUs whose applications cannot leave: processes that read data there are pinned to it.
    pub(super) pinned: CpuSet,
}

impl<'a> NetdevWork<'a> {
    /// Collects a netdev's work; `None` when the netdev is down, receives nothing, or has no rates.
    pub(super) fn of(analysis: &'a Analysis<'a>, netdev: &'a Netdev) -> Option<Self> {
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
        let (movable, samples) =
            movable(&analysis.observation.attribution, &poll_share, are_small(analysis, netdev));
        let costs = machine_costs(analysis);
        let mut work = Self {
            loads: loads(analysis, &poll_share),
            packets_per_s: match &backlog {
                Some(backlog) => Some(backlog.packets_per_s),
                None => packets(analysis, netdev, &silos),
            },
            polls_per_s: backlog.as_ref().map_or_else(|| polls(&silos), |it| it.polls_per_s),
            has_napi: backlog.is_none(),
            movable,
            samples,
            flows: flows(analysis, netdev, &silos),
            link: analysis.link_use(netdev),
            costs_source: costs.source_in_words(),
            ipis_seen: costs.seen.is_some(),
            costs: costs.costs,
            pinned: pinned(&analysis.observation.attribution),
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

    /// The reads of data that arrived on the netdev, by consumer.
    fn read(&self) -> impl Iterator<Item = &'a Consumption> {
        let napis: Vec<_> =
            self.silos.iter().filter_map(|silo| silo.napi.as_ref().map(|edge| edge.to)).collect();
        let rows = self.analysis.observation.attribution.consumption.iter();
        rows.filter(move |row| row.bytes > 0 && row.napi.is_some_and(|napi| napis.contains(&napi)))
    }

    /// The share of the bytes that RFS can steer: those of connected sockets. `None` when no reads
    /// were observed.
    pub(super) fn steerable(&self) -> Option<Range> {
        steerable_share(self.read()).map(Range::from)
    }

    /// The share of the bytes read on each CPU.
    pub(super) fn readers(&self) -> BTreeMap<CpuId, f64> {
        let mut cpus: BTreeMap<CpuId, f64> = BTreeMap::new();
        for (cpu, bytes) in self.silos.iter().flat_map(|silo| silo.read_on()) {
            *cpus.entry(cpu).or_default() += bytes;
        }
        let all: f64 = cpus.values().sum();
        cpus.values_mut().for_each(|bytes| *bytes /= all.max(f64::MIN_POSITIVE));
        cpus
    }

    /// Wakeups per second of readers on other CPUs than the one that runs the protocol.
    pub(super) fn wakeups_elsewhere(&self) -> Option<f64> {
        let mut sum = None;
        for silo in &self.silos {
            for consumer in
                silo.consumers.iter().filter(|consumer| consumer.wakeups_per_s.is_some())
            {
                let away = consumer
                    .wakeups_on
                    .iter()
                    .filter(|(cpu, _)| !silo.protocol_cpus.contains_key(cpu));
                *sum.get_or_insert(0.0) += away.map(|(_, rate)| rate).sum::<f64>();
            }
        }
        sum
    }

    /// Share of a CPU's time for cache line transfers from protocol to reader, by the cost model.
    pub(super) fn distance_cost(&self) -> Option<f64> {
        let packets = self.packets_per_s?;
        let bytes: f64 = self.silos.iter().map(|silo| silo.locality.bytes_per_s).sum();
        let lines: f64 = self
            .silos
            .iter()
            .flat_map(|silo| {
                let of_all = silo.locality.bytes_per_s / bytes.max(f64::MIN_POSITIVE);
                silo.locality
                    .shares
                    .iter()
                    .map(move |(distance, share)| (of_all * share, *distance))
            })
            .map(|(share, distance)| share * self.costs.line_ns.at(distance))
            .sum();
        (bytes > 0.0).then_some(packets * self.costs.lines_per_packet * lines / 1e9)
    }

    /// The uncertainty of an interrupt's cost, as a factor: exactly 1 when measured or configured,
    /// wide for the default weights.
    pub(super) fn interrupt_cost(&self) -> Range {
        match (&self.costs.source, self.is_guest()) {
            // What eBPF does not see of an IPI only adds to its time.
            (CostSource::Default, _) if self.ipis_seen => {
                Range { worst: 2.0, likely: 1.0, best: 1.0 }
            }
            (CostSource::Default, Some(true)) => {
                Range { worst: 2.0, likely: 1.0, best: 1.0 / Costs::VIRTUAL_IPI_FACTOR }
            }
            (CostSource::Default, Some(false)) => Range { worst: 2.0, likely: 1.0, best: 0.5 },
            (CostSource::Default, None) => {
                Range { worst: Costs::VIRTUAL_IPI_FACTOR, likely: 1.0, best: 0.5 }
            }
            _ => Range::exactly(1.0),
        }
    }
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

/// CPUs to which readers are pinned that may run nowhere else.
fn pinned(attribution: &Attribution) -> CpuSet {
    pinned_readers(attribution).iter().filter_map(CpuSet::single).collect()
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

/// Whether the mean packet is small; false when bytes were not counted.
fn are_small(analysis: &Analysis<'_>, netdev: &Netdev) -> bool {
    let rate = |name: &str| analysis.rates.netdevs.get(&netdev.name)?.get(name).copied();
    rate("rx_packets")
        .zip(rate("rx_bytes"))
        .is_some_and(|(packets, bytes)| bytes > 0.0 && bytes <= packets * SMALL_BYTES)
}

/// The share of the softirq that another CPU could take, and its number of samples: from the stage
/// samples of the polling CPUs, else the documented bound.
fn movable(
    attribution: &Attribution,
    poll_share: &BTreeMap<CpuId, f64>,
    small: bool,
) -> (Range, Option<f64>) {
    match movable_share(attribution, poll_share.keys()) {
        Some(MovableShare { share, samples }) => (share.into(), Some(samples)),
        None => (if small { MOVABLE_OF_SMALL } else { MOVABLE }, None),
    }
}

/// The flows as counted on arrival, else bounds from the readers.
fn flows(analysis: &Analysis<'_>, netdev: &Netdev, silos: &[&Silo]) -> Option<Flows> {
    let packets: Vec<u64> = model::flows_on(analysis.observation, netdev)
        .map(|flow| flow.packets)
        .filter(|it| *it > 0)
        .collect();
    let all = packets.iter().copied().fold(0, u64::saturating_add);
    let missed = analysis.observation.attribution.flows_missed;
    match packets.iter().max() {
        Some(most) if all >= FLOW_PACKETS => Some(Flows {
            least: packets.len(),
            most: (missed == 0).then_some(packets.len()),
            heaviest: Range::exactly(*most as f64 / (all as f64 + missed as f64)),
            source: "eBPF (flows that arrived)",
        }),
        _ => readers(silos),
    }
}

/// Bounds from the readers: each reads at least one flow, and no flow exceeds its reader's bytes.
fn readers(silos: &[&Silo]) -> Option<Flows> {
    let mut read: BTreeMap<u32, f64> = BTreeMap::new();
    for consumer in silos.iter().flat_map(|silo| &silo.consumers) {
        *read.entry(consumer.tgid).or_default() += consumer.bytes_per_s;
    }
    let all: f64 = read.values().sum();
    let most = read.values().copied().fold(0.0, f64::max) / all.max(f64::MIN_POSITIVE);
    let heaviest = Range { worst: most, likely: most / 2.0, best: 0.0 };
    (read.len() > 1).then_some(Flows {
        least: read.len(),
        most: None,
        heaviest,
        source: "readers, each with at least one flow",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::snapshot::stage_samples::{ReceiveStage, StageSamples};
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
        then(&NetdevWork::of(&analysis, &observation.after.netdevs[0]).unwrap())
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

    #[test]
    fn driver_gro_and_completions_stay_on_the_polling_cpu() {
        use ReceiveStage::{DriverGro, LocalDelivery, Other, TxCompletion};
        let movable = |stages: &[(ReceiveStage, u64)]| {
            let mut observation = scene(false).observation();
            let cpus = [(CpuId(0), stages.iter().copied().collect())].into();
            let samples = StageSamples { per_s: 97, cpus, ..StageSamples::default() };
            observation.attribution.stages = Some(samples);
            with_work(&observation, |work| (work.movable.likely, work.samples))
        };
        let known = [(DriverGro, 300), (TxCompletion, 500), (LocalDelivery, 200)];
        assert_eq!(movable(&known), (0.2, Some(1000.0)));
        let unknown = [(DriverGro, 300), (TxCompletion, 400), (LocalDelivery, 200), (Other, 100)];
        assert_eq!(movable(&unknown), (200.0 / 900.0, Some(1000.0)), "unknown: like the rest");
    }
}
