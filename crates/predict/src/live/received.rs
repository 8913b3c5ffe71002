//! [`Received`]: what one netdev receives, as a part of the machine's work.

use std::collections::BTreeMap;

use netsilo_model::derive::receive_work::Bounds;
use netsilo_model::derive::silo::{Silo, heaviest};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::netdev::Netdev;

use crate::flows::Flows;
use crate::live::work::{Queue, Work};

/// The queues of one netdev that receive packets.
#[derive(Debug, Clone)]
pub struct Received<'a> {
    queues: Vec<&'a Queue<'a>>,
}

impl<'a> Received<'a> {
    /// `None` if the netdev receives nothing.
    pub fn new(work: &'a Work<'a>, netdev: &Netdev) -> Option<Self> {
        Self::of_ports(work, &[netdev])
    }

    /// What several netdevs receive together.
    pub fn of_ports(work: &'a Work<'a>, ports: &[&Netdev]) -> Option<Self> {
        let is_of = |queue: &&Queue<'_>| ports.iter().any(|port| queue.silo.netdev.is(port));
        let queues: Vec<_> = work.queues.iter().filter(is_of).collect();
        (!queues.is_empty()).then_some(Self { queues })
    }

    /// The silos of its queues; one for all if the packets are on the backlogs of the CPUs that
    /// send them.
    pub fn silos(&self) -> impl Iterator<Item = &'a Silo> {
        self.queues.iter().map(|queue| &*queue.silo)
    }

    /// Whether NAPI polls it; else the backlogs of the senders have its packets.
    pub fn has_napi(&self) -> bool {
        self.queues.iter().all(|queue| !queue.is_backlog)
    }

    /// Whether only the CPUs' softirqs show where it is polled, for all queues together.
    pub fn is_unmapped(&self) -> bool {
        self.silos().any(|it| it.irq.is_none() && it.kthread.is_none() && it.polls.is_empty())
    }

    /// Packets per second.
    pub fn packets_per_s(&self) -> f64 {
        self.queues.iter().map(|queue| queue.packets).sum()
    }

    /// Packets per second of its busiest queue.
    pub fn most_packets_per_s(&self) -> f64 {
        self.queues.iter().map(|queue| queue.packets).fold(0.0, f64::max)
    }

    /// Packets of one poll; `None` if neither polls nor interrupts were counted.
    pub fn packets_per_poll(&self) -> Option<f64> {
        let counted = || self.queues.iter().filter(|queue| queue.polls_are_counted());
        let packets: f64 = counted().map(|queue| queue.packets).sum();
        let polls: f64 = counted().map(|queue| queue.packets / queue.batch).sum();
        (polls > 0.0).then_some(packets / polls)
    }

    /// The share of each CPU's time that is spent on polling it; empty if that was not measured.
    pub fn poll_share(&self) -> BTreeMap<CpuId, f64> {
        let mut shares = BTreeMap::new();
        for (cpu, share) in self.silos().flat_map(|silo| &silo.own_share) {
            *shares.entry(*cpu).or_default() += share;
        }
        shares
    }

    /// The CPUs that poll it, of which the time was measured.
    pub fn pollers(&self) -> CpuSet {
        self.silos().flat_map(|silo| silo.own_share.keys().copied()).collect()
    }

    /// The CPU that spends most time on polling it.
    pub fn main_poller(&self) -> Option<CpuId> {
        heaviest(self.poll_share().into_iter())
    }

    /// The flows; `None` if they were not counted.
    pub fn flows(&self) -> Option<Flows> {
        self.queues[0].flows
    }

    /// The share of what is read that RFS can steer: that of connected sockets. `None` if no reads
    /// were observed.
    pub fn steerable(&self) -> Option<Bounds> {
        let mut sum = Bounds { least: 0.0, likely: 0.0, most: 0.0 };
        let mut bytes = 0.0;
        for queue in &self.queues {
            let Some(share) = queue.steerable else { continue };
            let read = queue.bytes * queue.packets;
            bytes += read;
            sum.least += read * share.least;
            sum.likely += read * share.likely;
            sum.most += read * share.most;
        }
        let part = |sum: f64| sum / bytes;
        (bytes > 0.0).then(|| Bounds {
            least: part(sum.least),
            likely: part(sum.likely),
            most: part(sum.most),
        })
    }

    /// The CPUs that read what arrives.
    pub fn readers(&self) -> CpuSet {
        self.queues.iter().flat_map(|queue| queue.read.cpus()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
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

    fn with_work<T>(
        observation: &Observation,
        then: impl FnOnce(&Work<'_>, &Received<'_>) -> T,
    ) -> T {
        let costs = Costs::default();
        let analysis = Analysis::new(observation, &costs);
        let work = Work::without_costs(&analysis).unwrap();
        then(&work, &Received::new(&work, &observation.after.netdevs[0]).unwrap())
    }

    #[test]
    fn time_of_kthreads_is_bound_to_their_cpus_as_that_of_softirqs_is() {
        let bound = |observation: &Observation| {
            with_work(observation, |work, _| [0, 1, 2].map(|cpu| work.bound(CpuId(cpu))))
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
        let packets = |observation: &Observation| {
            with_work(observation, |_, received| received.packets_per_s().round())
        };
        let mut observation = scene(false).observation();
        assert_eq!(packets(&observation), 20_000.0);
        observation.attribution.polls.clear();
        assert_eq!(packets(&observation), 70_000.0);
    }

    #[test]
    fn an_interrupt_counts_as_a_poll_where_polls_were_not_counted() {
        let each = |without_bpf: bool, interrupts: u64| {
            let mut observation = Scene { without_bpf, ..scene(false) }.observation();
            for irq in observation.after.irqs.values_mut() {
                irq.counts = [(CpuId(0), interrupts)].into();
            }
            for irq in observation.before.irqs.values_mut() {
                irq.counts = [(CpuId(0), 0)].into();
            }
            with_work(&observation, |_, received| received.packets_per_poll())
        };
        assert_eq!(each(false, 70), Some(4.0));
        assert_eq!(each(true, 35_000), Some(10.0), "7000 interrupts per second");
        assert_eq!(each(true, 70), Some(64.0), "an interrupt begins several polls");
    }
}
