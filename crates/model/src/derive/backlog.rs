//! The receive work of a netdev without NAPI, which the CPU that sends a packet does on its
//! backlog.

use std::collections::BTreeMap;

use crate::derive::analysis::Analysis;
use crate::derive::silo::{PollRate, Silo};
use crate::derive::silos::consumers;
use crate::derive::wakeups::Wakeups;
use crate::drivers::software::SoftwareNetdev;
use crate::machine::cpuset::CpuId;
use crate::snapshot::attribution::{Consumption, QueueResolution};
use crate::snapshot::netdev::{Netdev, NetdevIdentity};

/// Least share of all packets that the CPUs process: a host of containers has hundreds of such
/// netdevs, and what follows visits all CPUs.
const LEAST_SHARE: f64 = 0.1;

/// Least share of a network namespace's packets, from which what its processes read came from this
/// netdev.
const NEARLY_ALL: f64 = 0.9;

/// A netdev's part of the backlogs.
#[derive(Debug, Clone)]
pub struct BacklogWork<'a> {
    /// Polls of the backlogs with its packets, by CPU.
    polls: BTreeMap<CpuId, PollRate>,
    /// What the readers in this network namespace read; empty unless nearly all of it came from
    /// this netdev.
    pub reads: Vec<&'a Consumption>,
    /// Share of what they read by the CPU that processed it.
    protocol_cpus: BTreeMap<CpuId, f64>,
    /// Share of each CPU's time.
    pub share: BTreeMap<CpuId, f64>,
    /// Packets per second.
    pub packets_per_s: f64,
    /// Polls of the backlogs per second for them.
    pub polls_per_s: f64,
}

impl<'a> BacklogWork<'a> {
    /// The part of a netdev; `None` if NAPI polls it, or if it is a small part.
    ///
    /// A backlog does not show which netdev its packets came from. The sockets that read them
    /// show which CPUs processed them. Without such sockets, the netdev is assumed to have the same
    /// share on every CPU.
    pub fn of(analysis: &Analysis<'a>, netdev: &Netdev, silos: &[&Silo]) -> Option<Self> {
        if !SoftwareNetdev::is_on_backlogs(netdev) {
            return None;
        }
        let arrived = *analysis.rates.netdevs.get(&netdev.name)?.get("rx_packets")?;
        let polled: f64 = silos.iter().filter_map(|silo| silo.packets_per_s).sum();
        let softnets = analysis.rates.cpus.values().filter_map(|cpu| cpu.softnet);
        let processed: f64 = softnets.filter_map(|it| it.processed_per_s).sum();
        if polled >= arrived / 2.0 || arrived < LEAST_SHARE * processed {
            return None;
        }
        let cpus: BTreeMap<CpuId, Backlog> = analysis
            .rates
            .cpus
            .keys()
            .filter_map(|cpu| Some((*cpu, Backlog::of(analysis, *cpu)?)))
            .collect();
        let all: f64 = cpus.values().map(|backlog| backlog.packets_per_s).sum();
        let reads = read_here(analysis, arrived);
        let known = processed_on(&reads);
        let part = |cpu: &CpuId, backlog: &Backlog| match &known {
            None => (arrived / all).min(1.0),
            Some(shares) => {
                let own = arrived * shares.get(cpu).copied().unwrap_or(0.0);
                (own / backlog.packets_per_s.max(f64::MIN_POSITIVE)).min(1.0)
            }
        };
        let parts = || cpus.iter().map(|(cpu, backlog)| (*cpu, backlog, part(cpu, backlog)));
        let rate = |(cpu, backlog, part): (CpuId, &Backlog, f64)| {
            let time_share = Some(backlog.time * part);
            let [polls_per_s, packets_per_s] =
                [backlog.polls_per_s, backlog.packets_per_s].map(|rate| rate * part);
            (cpu, PollRate { polls_per_s, packets_per_s, time_share })
        };
        Some(Self {
            polls: parts().map(rate).collect(),
            protocol_cpus: known.clone().unwrap_or_default(),
            reads,
            share: parts().map(|(cpu, backlog, part)| (cpu, backlog.time * part)).collect(),
            packets_per_s: arrived,
            polls_per_s: parts().map(|(_, backlog, part)| backlog.polls_per_s * part).sum(),
        })
    }
}

impl BacklogWork<'_> {
    /// The same as a silo of the netdev's first queue: without interrupt and NAPI, polled on each
    /// CPU that sends to it.
    pub fn silo(&self, analysis: &Analysis<'_>, netdev: &Netdev) -> Silo {
        let attribution = &analysis.observation.attribution;
        let wakeups = Wakeups::from_attribution(attribution);
        let consumers = consumers(&self.reads, attribution, &wakeups);
        let queue = netdev.rx_queues.first();
        Silo {
            netdev: NetdevIdentity::from_netdev(netdev),
            queue: queue.map(|queue| queue.index),
            packets_per_s: Some(self.packets_per_s),
            polls: self.polls.clone(),
            own_share: self.share.clone(),
            bytes_per_s: (!consumers.is_empty())
                .then(|| consumers.iter().map(|consumer| consumer.bytes_per_s).sum()),
            consumers,
            protocol_cpus: self.protocol_cpus.clone(),
            rps_cpus: queue.and_then(|queue| queue.rps_cpus.clone()),
            rps_flow_cnt: queue.and_then(|queue| queue.rps_flow_cnt),
            ..Silo::default()
        }
    }
}

/// What the processes of this network namespace read of a netdev's packets; nothing if it may have
/// come from elsewhere.
fn read_here<'a>(analysis: &Analysis<'a>, arrived: f64) -> Vec<&'a Consumption> {
    let netns = analysis.after().machine.netns;
    let netdevs = analysis.rates.netdevs.values();
    let all: f64 = netdevs.filter_map(|netdev| netdev.get("rx_packets")).sum();
    if netns == 0 || arrived < NEARLY_ALL * all {
        return Vec::new();
    }
    let here =
        |row: &&Consumption| row.consumer.netns == netns && row.resolved == QueueResolution::Local;
    analysis.observation.attribution.consumption.iter().filter(here).collect()
}

/// The share of a netdev's packets that each CPU processed, by the sockets that read them.
fn processed_on(rows: &[&Consumption]) -> Option<BTreeMap<CpuId, f64>> {
    let mut cpus: BTreeMap<CpuId, f64> = BTreeMap::new();
    for row in rows {
        *cpus.entry(row.protocol_cpu?).or_default() += row.bytes as f64;
    }
    let bytes: f64 = cpus.values().sum();
    cpus.values_mut().for_each(|share| *share /= bytes);
    (bytes > 0.0).then_some(cpus)
}

/// One CPU's backlog.
#[derive(Debug, Clone, Copy)]
struct Backlog {
    /// Share of the CPU's time.
    time: f64,
    packets_per_s: f64,
    polls_per_s: f64,
}

impl Backlog {
    /// As eBPF has counted its polls, else all that the CPU has processed.
    fn of(analysis: &Analysis<'_>, cpu: CpuId) -> Option<Self> {
        let rates = analysis.rates.cpus.get(&cpu)?;
        let attribution = &analysis.observation.attribution;
        let seconds = attribution.elapsed.as_secs_f64();
        let (mut all, mut own, mut polls) = (0.0, 0.0, 0.0);
        for poll in attribution.polls.iter().filter(|poll| poll.cpu == cpu) {
            all += poll.packets as f64;
            if poll.netdev.is_empty() {
                own += poll.packets as f64;
                polls += poll.polls as f64;
            }
        }
        let time = attribution.cpu_time.get(&cpu).filter(|_| seconds > 0.0 && all > 0.0);
        if let Some(time) = time {
            return Some(Self {
                time: time.net_rx_ns as f64 / 1e9 / seconds * own / all,
                packets_per_s: own / seconds,
                polls_per_s: polls / seconds,
            });
        }
        Some(Self {
            time: rates.shares?.softirq,
            packets_per_s: rates.softnet?.processed_per_s?,
            polls_per_s: rates.net_rx_per_s.unwrap_or(0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::weights::Costs;
    use crate::machine::cpuset::CpuSet;
    use crate::snapshot::observation::Observation;
    use crate::synthetic::grid::Grid;
    use crate::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

    /// One netdev, and a consumption whose packets came from its queue.
    fn observation() -> Observation {
        let reader = Reader { cpu: CpuId(1), bytes_per_s: 1000, ..Reader::default() };
        let queue = SceneQueue {
            irq: Some(30),
            cpus: CpuSet::parse_list("0").unwrap(),
            packets_per_s: 1000,
            packets_per_poll: 1,
            readers: vec![reader],
            ..SceneQueue::default()
        };
        let netdev = SceneNetdev {
            name: "eth0".into(),
            driver: "veth".into(),
            queues: vec![queue],
            per_s: BTreeMap::from([("rx_packets".to_owned(), 1000)]),
            ..SceneNetdev::default()
        };
        let grid = Grid { l2s: 4, ..Grid::default() };
        Scene { grid, netdevs: vec![netdev], ..Scene::default() }.observation()
    }

    /// What is processed where, if this share of all packets arrived on the netdev.
    fn processed(observation: &Observation, share: f64) -> Option<BTreeMap<CpuId, f64>> {
        let costs = Costs::default();
        let analysis = Analysis::new(observation, &costs);
        let all: f64 =
            analysis.rates.netdevs.values().filter_map(|netdev| netdev.get("rx_packets")).sum();
        assert!(all > 0.0);
        processed_on(&read_here(&analysis, share * all))
    }

    #[test]
    fn the_readers_of_the_own_namespace_say_where_its_packets_are_processed() {
        let mut observation = observation();
        let of_queue = observation.attribution.consumption[0].clone();
        assert_ne!(of_queue.resolved, QueueResolution::Local);
        assert_eq!(processed(&observation, 1.0), None);
        let local = |cpu: u32, bytes: u64| Consumption {
            resolved: QueueResolution::Local,
            protocol_cpu: Some(CpuId(cpu)),
            bytes,
            ..of_queue.clone()
        };
        let mut elsewhere = local(0, 5000);
        elsewhere.consumer.netns += 1;
        observation.attribution.consumption.extend([local(2, 3000), local(3, 1000), elsewhere]);
        let expected = BTreeMap::from([(CpuId(2), 0.75), (CpuId(3), 0.25)]);
        assert_eq!(processed(&observation, 1.0), Some(expected));
        // Half of what they read may have come from elsewhere.
        assert_eq!(processed(&observation, 0.5), None);
    }
}
