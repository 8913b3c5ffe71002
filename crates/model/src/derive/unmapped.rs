//! The receive work of a netdev of which neither an interrupt nor a poll is known.
//!
//! Where it runs follows from the kernel's counts of each CPU, if no other netdev can have raised
//! them.

use std::collections::BTreeMap;

use crate::derive::analysis::Analysis;
use crate::derive::counted::FEW_PACKETS;
use crate::derive::silo::Silo;
use crate::drivers::software::SoftwareNetdev;
use crate::machine::cpuset::CpuId;
use crate::machine::words::cpus;
use crate::snapshot::netdev::{Netdev, NetdevIdentity};

/// From this share on, all else is a few stray packets or softirqs.
const NEARLY_ALL: f64 = 0.9;

/// A CPU with less than this share of the softirqs polls other things.
const STRAY: f64 = 0.05;

/// Most packets of one softirq: the default of `net.core.netdev_budget`, with room for a larger
/// one. Where more arrive, kthreads poll.
const MOST_PER_SOFTIRQ: f64 = 1000.0;

/// A netdev's part of the CPUs' NET_RX softirqs.
#[derive(Debug, Clone)]
pub struct UnmappedWork {
    /// Packets per second.
    pub packets_per_s: f64,
    /// NET_RX softirqs per second for them.
    pub softirqs_per_s: f64,
    /// Share of each CPU's time.
    pub share: BTreeMap<CpuId, f64>,
    /// What shows that these CPUs poll it.
    pub because: String,
}

impl UnmappedWork {
    /// The work of a netdev; the error says why the CPUs that poll it are not known. `None` if they
    /// are known otherwise, or if the netdev receives nothing of its own.
    pub fn of(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Result<Self, String>> {
        let packets_per_s = unmapped(analysis, netdev)?;
        Some(Self::found(analysis, netdev, packets_per_s))
    }

    fn found(analysis: &Analysis<'_>, netdev: &Netdev, packets_per_s: f64) -> Result<Self, String> {
        let rps = |queue: &crate::snapshot::netdev::RxQueue| {
            queue.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty())
        };
        if netdev.threaded.is_some_and(|threaded| threaded > 0) {
            return Err("its kthreads are not known".into());
        }
        if netdev.rx_queues.iter().any(rps) {
            return Err("RPS is on: its targets run softirqs too".into());
        }
        let all: f64 = analysis.running().filter_map(|it| arrives(analysis, it)).sum();
        let others = analysis.running().filter(|it| it.ifindex != netdev.ifindex);
        let alike: Vec<(&Netdev, f64)> =
            others.filter_map(|it| Some((it, unmapped(analysis, it)?))).collect();
        let sum_of_alike = packets_per_s + alike.iter().map(|(_, rate)| rate).sum::<f64>();
        if sum_of_alike < NEARLY_ALL * all {
            return Err("other netdevs receive packets too".into());
        }
        let softirqs = |cpu: &CpuId| analysis.rates.cpus.get(cpu)?.net_rx_per_s;
        let rates: BTreeMap<CpuId, f64> =
            analysis.rates.cpus.keys().filter_map(|cpu| Some((*cpu, softirqs(cpu)?))).collect();
        let sum: f64 = rates.values().sum();
        if sum_of_alike > MOST_PER_SOFTIRQ * sum {
            return Err("too few NET_RX softirqs ran for its packets: kthreads may poll it".into());
        }
        let one = rates.iter().find(|(_, rate)| **rate >= NEARLY_ALL * sum).map(|(cpu, _)| *cpu);
        let alone = packets_per_s >= NEARLY_ALL * all;
        let because = match one {
            Some(cpu) => format!("nearly all NET_RX softirqs run on cpu {cpu}"),
            None if alone => "no other netdev receives packets".to_owned(),
            None => {
                let name = alike.first().map_or("another netdev", |(it, _)| &it.name);
                return Err(format!("{name} receives packets too, and several cpus run softirqs"));
            }
        };
        let part = packets_per_s / sum_of_alike;
        let of_cpu = |(cpu, rate): (&CpuId, &f64)| {
            let is_its = one.map_or(*rate >= STRAY * sum, |one| one == *cpu);
            let (share, _) = analysis.softirq(*cpu).filter(|_| is_its)?;
            Some((*cpu, share * part))
        };
        let share: BTreeMap<CpuId, f64> = rates.iter().filter_map(of_cpu).collect();
        Ok(Self { packets_per_s, softirqs_per_s: sum * part, share, because })
    }

    /// The same as a silo of the netdev's first queue, which stands for all of them.
    pub fn silo(&self, netdev: &Netdev) -> Silo {
        let queue = netdev.rx_queues.first();
        Silo {
            netdev: NetdevIdentity::from_netdev(netdev),
            queue: queue.map(|queue| queue.index),
            counted_per_s: Some(self.packets_per_s),
            own_share: self.share.clone(),
            rps_cpus: queue.and_then(|queue| queue.rps_cpus.clone()),
            rps_flow_cnt: queue.and_then(|queue| queue.rps_flow_cnt),
            ..Silo::default()
        }
    }

    /// `polled on cpu 0: nearly all NET_RX softirqs run on cpu 0`.
    pub fn in_words(&self) -> String {
        let polling = self.share.keys().copied().collect();
        format!("polled on {}: {}", cpus(&polling), self.because)
    }
}

/// Packets per second that enter the machine through a netdev, and not through one below it;
/// `None` if a few or none do.
fn arrives(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<f64> {
    let few = FEW_PACKETS / analysis.rates.elapsed.as_secs_f64();
    let rate = analysis.rate(netdev, "rx_packets").filter(|rate| *rate > few)?;
    let is_device = netdev.device_path.is_some() || netdev.bus.is_some();
    let is_own = SoftwareNetdev::from_netdev(netdev).is_none() && is_device;
    (is_own || netdev.name == "lo").then_some(rate)
}

/// The same of a netdev of which no poll and no interrupt is known.
fn unmapped(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<f64> {
    let rate = arrives(analysis, netdev)?;
    let is_known = |silo: &Silo| {
        silo.packets_per_s.is_some() || silo.irq.is_some() || !silo.own_share.is_empty()
    };
    let is_software = SoftwareNetdev::from_netdev(netdev).is_some();
    (!is_software && !analysis.silos_of(&netdev.name).any(is_known)).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::weights::Costs;
    use crate::machine::cpuset::CpuSet;
    use crate::synthetic::grid::Grid;
    use crate::synthetic::scene::{Scene, SceneNetdev, SceneQueue};

    /// What is known of eth0, which receives 9000 packets per second without a known interrupt,
    /// where its polls and those of the others ran on these CPUs.
    fn found(cpus: &[u32], change: fn(&mut Scene)) -> Option<Result<String, String>> {
        let queue = |cpu: &u32| SceneQueue {
            arrives_on: Some(CpuId(*cpu)),
            packets_per_s: 9000,
            load: 0.4,
            ..SceneQueue::default()
        };
        let netdev = |(n, cpu): (usize, &u32)| SceneNetdev {
            name: format!("eth{n}"),
            queues: vec![queue(cpu)],
            per_s: [("rx_packets".to_owned(), 9000)].into(),
            ..SceneNetdev::default()
        };
        let netdevs = cpus.iter().enumerate().map(netdev).collect();
        let grid = Grid { l2s: 4, ..Grid::default() };
        let mut scene = Scene { grid, netdevs, without_bpf: true, ..Scene::default() };
        change(&mut scene);
        let (observation, costs) = (scene.observation(), Costs::default());
        let analysis = Analysis::new(&observation, &costs);
        let work = UnmappedWork::of(&analysis, &observation.after.netdevs[0])?;
        Some(work.map(|work| format!("{} {:?}", work.in_words(), work.share.values())))
    }

    #[test]
    fn the_cpu_of_a_netdev_without_interrupt_is_known_if_nothing_else_runs_softirqs() {
        let one = "polled on cpu 2: nearly all NET_RX softirqs run on cpu 2";
        assert_eq!(found(&[2], |_| {}), Some(Ok(format!("{one} [0.4]"))));
        assert_eq!(found(&[2, 2], |_| {}), Some(Ok(format!("{one} [0.4]"))), "half of 80%");
        let apart = found(&[2, 3], |_| {}).unwrap().unwrap_err();
        assert_eq!(apart, "eth1 receives packets too, and several cpus run softirqs");
        let known = |scene: &mut Scene| {
            scene.netdevs[1].queues[0].irq = Some(30);
            scene.netdevs[1].queues[0].cpus = CpuSet::from_cpu(CpuId(2));
        };
        assert_eq!(found(&[2, 2], known), Some(Err("other netdevs receive packets too".into())));
        assert_eq!(found(&[2], |scene| scene.without_bpf = false), None, "its polls are known");
        let threaded = found(&[2], |scene| scene.netdevs[0].threaded = true);
        assert_eq!(threaded, Some(Err("its kthreads are not known".into())));
    }
}
