//! [`Signature`]: what makes two workloads the same for placement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::derive::analysis::Analysis;
use crate::derive::silo::{ConsumerShare, Silo};
use crate::machine::cpuset::CpuSet;
use crate::snapshot::attribution::AttributionSource;
use crate::snapshot::netdev::Netdev;

/// Largest share of the packets, or of the bytes read, that may arrive on other queues or be read
/// by others in the same workload. If each rate differs by up to 30%, at most 16% is elsewhere.
const MOVED: f64 = 0.2;

/// Rates of the same workload differ by less than this factor.
const FACTOR: f64 = 3.0;

/// A workload as placement sees it: which queues carry which share of the packets, who reads them
/// and where the readers are pinned, how many packets and bytes there are, and the CPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The CPUs that are online.
    pub online: CpuSet,
    /// Those of them that are isolated, tickless, or exclusive to a container or service.
    pub apart: CpuSet,
    /// The rx queues that receive packets.
    pub queues: Vec<QueueSignature>,
    /// Who reads data whose queue was not found, in the network namespace of the netdevs.
    pub elsewhere: Vec<ReaderSignature>,
}

/// An rx queue that receives packets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QueueSignature {
    /// Name of the netdev.
    pub netdev: String,
    /// Number of the queue.
    pub queue: u32,
    /// Number of rx queues of the netdev.
    pub of: usize,
    /// Packets per second.
    pub packets_per_s: f64,
    /// Who reads its data.
    pub readers: Vec<ReaderSignature>,
}

/// All readers of a queue with the same name that are pinned to the same CPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReaderSignature {
    /// Name of the program (`comm`).
    pub comm: String,
    /// The CPUs to which its threads are pinned; empty if they may run on all.
    pub pinned: CpuSet,
    /// Bytes of payload read per second.
    pub bytes_per_s: f64,
}

impl Signature {
    /// The signature of a workload; `None` if no packet of a known queue was counted.
    ///
    /// `pinned` has the CPUs of those thread groups that may not run on all CPUs.
    pub fn new(analysis: &Analysis<'_>, pinned: &BTreeMap<u32, CpuSet>) -> Option<Self> {
        let after = analysis.after();
        if analysis.observation.attribution.source != AttributionSource::Bpf {
            return None;
        }
        let queue = |silo: &Silo| {
            let netdev = after.netdevs.identified(&silo.netdev)?;
            Some(QueueSignature {
                netdev: netdev.name.clone(),
                queue: silo.queue?,
                of: netdev.rx_queues.len(),
                packets_per_s: packets_per_s(analysis, silo, netdev)?,
                readers: readers(&silo.consumers, pinned),
            })
        };
        let queues: Vec<QueueSignature> = analysis.silos.queues.iter().filter_map(queue).collect();
        let topology = &after.topology;
        (!queues.is_empty()).then(|| Self {
            online: topology.online.clone(),
            apart: topology.reserved(),
            queues,
            elsewhere: readers(&analysis.silos.unresolved_here.consumers, pinned),
        })
    }

    /// Whether two workloads are the same for placement.
    pub fn matches(&self, now: &Self) -> bool {
        self.differs_from(now).is_none()
    }

    /// How this workload differs from the one now; `None` if they are the same.
    pub fn differs_from(&self, now: &Self) -> Option<String> {
        self.differs_in_cpus(now)
            .or_else(|| self.differs_in_queues(now))
            .or_else(|| self.differs_in_rates(now))
    }

    /// Checks a signature that may come from a stranger.
    pub fn check(&self) -> Result<(), String> {
        let readers = self.queues.iter().flat_map(|it| &it.readers).chain(&self.elsewhere);
        let bytes = readers.map(|it| it.bytes_per_s);
        let rates = self.queues.iter().map(|it| it.packets_per_s).chain(bytes);
        match rates.into_iter().find(|rate| !(0.0..=1e15).contains(rate)) {
            Some(rate) => Err(format!("{rate} is not a rate per second")),
            None => Ok(()),
        }
    }

    fn differs_in_cpus(&self, now: &Self) -> Option<String> {
        let sets = [
            ("online", &self.online, &now.online),
            ("isolated or tickless", &self.apart, &now.apart),
        ];
        let (what, then, now) = sets.into_iter().find(|(_, then, now)| then != now)?;
        let words = |cpus: &CpuSet| if cpus.is_empty() { "none".into() } else { cpus.to_string() };
        Some(format!("the {what} cpus were {}, now {}", words(then), words(now)))
    }

    fn differs_in_queues(&self, now: &Self) -> Option<String> {
        let count = |it: &Self, name: &str| Some(it.queues.iter().find(|it| it.netdev == name)?.of);
        let other = self.queues.iter().find_map(|queue| {
            let count = count(now, &queue.netdev).filter(|count| *count != queue.of)?;
            Some(format!("{} had {} rx queues, now {count}", queue.netdev, queue.of))
        });
        let moved = || moved(&self.packets(), &now.packets());
        other.or_else(|| too_many(moved(), "packets arrived on other queues"))
    }

    fn differs_in_rates(&self, now: &Self) -> Option<String> {
        let (then_reads, now_reads) = (self.reads(), now.reads());
        let moved = moved(&then_reads, &now_reads);
        if let Some(why) = too_many(moved, "bytes had other readers or queues") {
            return Some(why);
        }
        let packets = |it: &Self| it.packets().into_values().sum::<f64>();
        let (then_packets, now_packets) = (packets(self), packets(now));
        let then_size = then_reads.into_values().sum::<f64>() / then_packets;
        let now_size = now_reads.into_values().sum::<f64>() / now_packets;
        let rates = [
            ("packets per second", then_packets, now_packets),
            ("bytes read per packet", then_size, now_size),
        ];
        let (what, then, now) = rates.into_iter().find(|(_, then, now)| !alike(*then, *now))?;
        Some(format!("there were {then:.0} {what}, now {now:.0}"))
    }

    fn packets(&self) -> BTreeMap<(&str, u32), f64> {
        let mut all = BTreeMap::new();
        for queue in &self.queues {
            *all.entry((queue.netdev.as_str(), queue.queue)).or_default() += queue.packets_per_s;
        }
        all
    }

    fn reads<'a>(&'a self) -> BTreeMap<(&'a str, u32, &'a str, &'a CpuSet), f64> {
        let mut all = BTreeMap::new();
        let mut add = |netdev, queue, readers: &'a [ReaderSignature]| {
            for reader in readers {
                let key: (&'a str, u32, &'a str, &'a CpuSet) =
                    (netdev, queue, &reader.comm, &reader.pinned);
                *all.entry(key).or_default() += reader.bytes_per_s;
            }
        };
        self.queues.iter().for_each(|it| add(it.netdev.as_str(), it.queue, &it.readers));
        add("", 0, &self.elsewhere);
        all
    }
}

/// Packets per second of a queue: as polled; of a netdev with one queue also as the netdev counts
/// them (a veth's packets may pass no NAPI). `None` if there are none, or if they are loopback's.
fn packets_per_s(analysis: &Analysis<'_>, silo: &Silo, netdev: &Netdev) -> Option<f64> {
    let counted = || match netdev.rx_queues.len() {
        1 if netdev.name != "lo" => analysis.rate(netdev, "rx_packets"),
        _ => None,
    };
    let polled = silo.packets_per_s.filter(|rate| *rate > 0.0);
    polled.or_else(counted).filter(|rate| *rate > 0.0)
}

/// The readers of a queue, in order of name and CPUs: thread ids differ in each run.
fn readers(consumers: &[ConsumerShare], pinned: &BTreeMap<u32, CpuSet>) -> Vec<ReaderSignature> {
    let mut all: BTreeMap<(&str, CpuSet), f64> = BTreeMap::new();
    for consumer in consumers {
        let cpus = pinned.get(&consumer.tgid).cloned().unwrap_or_default();
        *all.entry((consumer.comm.as_str(), cpus)).or_default() += consumer.bytes_per_s;
    }
    let reader = |((comm, pinned), bytes_per_s): ((&str, CpuSet), f64)| ReaderSignature {
        comm: comm.to_owned(),
        pinned,
        bytes_per_s,
    };
    all.into_iter().map(reader).collect()
}

/// The share of the whole that is elsewhere: the total variation distance; 0 if there is nothing.
fn moved<K: Ord>(then: &BTreeMap<K, f64>, now: &BTreeMap<K, f64>) -> f64 {
    let (all_then, all_now) = (then.values().sum::<f64>(), now.values().sum::<f64>());
    if all_then <= 0.0 || all_now <= 0.0 {
        return if all_then <= 0.0 && all_now <= 0.0 { 0.0 } else { 1.0 };
    }
    let share =
        |all: &BTreeMap<K, f64>, key: &K, whole: f64| all.get(key).map_or(0.0, |rate| rate / whole);
    let of = |key: &K| (share(then, key, all_then) - share(now, key, all_now)).abs();
    let new = now.keys().filter(|key| !then.contains_key(key));
    then.keys().chain(new).map(of).sum::<f64>() / 2.0
}

fn too_many(moved: f64, what: &str) -> Option<String> {
    (moved > MOVED).then(|| format!("{:.0}% of the {what}", moved * 100.0))
}

/// Whether two rates have the same order of magnitude.
fn alike(a: f64, b: f64) -> bool {
    a == b || (a.min(b) > 0.0 && a.max(b) < FACTOR * a.min(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cost::weights::Costs;
    use crate::machine::cpuset::CpuId;
    use crate::snapshot::attribution::{Consumer, QueueResolution};
    use crate::synthetic::grid::Grid;
    use crate::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

    /// A netdev whose queues receive these packets per second, each read by `comm`.
    fn scene(packets: &[u64], comm: &str) -> Scene {
        let queue = |(at, packets): (usize, &u64)| SceneQueue {
            irq: Some(30 + at as u32),
            cpus: CpuSet::first(1),
            packets_per_s: *packets,
            readers: vec![Reader {
                comm: comm.into(),
                cpu: CpuId(at as u32 % 4),
                bytes_per_s: packets * 100,
                ..Reader::default()
            }],
            ..SceneQueue::default()
        };
        let queues = packets.iter().enumerate().map(queue).collect();
        Scene {
            grid: Grid { cores: 4, ..Grid::default() },
            netdevs: vec![SceneNetdev { name: "eth0".into(), queues, ..SceneNetdev::default() }],
            ..Scene::default()
        }
    }

    fn signature_of(scene: &Scene) -> Signature {
        let observation = scene.observation();
        let costs = Costs::default();
        Signature::new(&Analysis::new(&observation, &costs), &BTreeMap::new()).unwrap()
    }

    fn signature(packets: &[u64], comm: &str) -> Signature {
        signature_of(&scene(packets, comm))
    }

    fn loads() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop::sample::select(vec![1_000u64, 20_000, 50_000]), 2..8)
    }

    proptest! {
        #[test]
        fn the_same_load_with_noise_matches(
            noisy in loads().prop_flat_map(|loads| {
                let noise = prop::collection::vec(0.7..1.3, loads.len());
                (Just(loads), noise, 0.7..1.3)
            }),
        ) {
            let (loads, noise, all): (Vec<u64>, Vec<f64>, f64) = noisy;
            let noisy: Vec<u64> =
                loads.iter().zip(noise).map(|(it, by)| (*it as f64 * by * all) as u64).collect();
            let (a, b) = (signature(&loads, "nginx"), signature(&noisy, "nginx"));
            prop_assert_eq!(a.differs_from(&b), None);
            prop_assert!(b.matches(&a));
        }

        #[test]
        fn ten_times_the_rate_another_reader_and_other_queues_do_not_match(loads in loads()) {
            let known = signature(&loads, "nginx");
            let ten: Vec<u64> = loads.iter().map(|it| it * 10).collect();
            let more: Vec<u64> = loads.iter().copied().chain([0]).collect();
            let others = [
                signature(&ten, "nginx"),
                signature(&loads, "redis"),
                signature(&more, "nginx"),
            ];
            for other in others {
                prop_assert!(!known.matches(&other) && !other.matches(&known));
            }
        }

        #[test]
        fn queues_that_carry_other_shares_do_not_match(
            loads in loads(), other in loads(), seed in 0u64..10,
        ) {
            let share = |all: &[u64], at: usize| {
                all.get(at).map_or(0.0, |it| *it as f64 / all.iter().sum::<u64>() as f64)
            };
            let mut other = other;
            other.resize(loads.len(), 1_000 + seed);
            let moved: f64 = (0..loads.len())
                .map(|at| (share(&loads, at) - share(&other, at)).abs() / 2.0)
                .sum();
            let matches = signature(&loads, "nginx").matches(&signature(&other, "nginx"));
            prop_assert!(!matches || moved < 0.21, "{moved} moved");
        }
    }

    #[test]
    fn each_difference_is_named() {
        let known = signature(&[10_000, 10_000], "nginx");
        let why = |other: &Signature| known.differs_from(other).unwrap();
        assert_eq!(why(&signature(&[10_000, 10_000, 0], "nginx")), "eth0 had 2 rx queues, now 3");
        assert_eq!(
            why(&signature(&[20_000, 1], "nginx")),
            "50% of the packets arrived on other queues"
        );
        assert_eq!(
            why(&signature(&[10_000, 10_000], "redis")),
            "100% of the bytes had other readers or queues"
        );
        assert_eq!(
            why(&signature(&[100_000, 100_000], "nginx")),
            "there were 20000 packets per second, now 200000"
        );
        let mut small = known.clone();
        small.queues.iter_mut().flat_map(|it| &mut it.readers).for_each(|it| it.bytes_per_s /= 9.0);
        assert_eq!(why(&small), "there were 100 bytes read per packet, now 11");
        let offline = Scene { offline: CpuSet::from_cpu(CpuId(3)), ..scene(&[1, 1], "nginx") };
        assert_eq!(why(&signature_of(&offline)), "the online cpus were 0-3, now 0-2");
        let isolated = Scene { isolated: CpuSet::from_cpu(CpuId(3)), ..scene(&[1, 1], "nginx") };
        assert_eq!(why(&signature_of(&isolated)), "the isolated or tickless cpus were none, now 3");
    }

    #[test]
    fn a_reader_that_is_pinned_elsewhere_is_another_one() {
        let scene = scene(&[10_000, 10_000], "nginx");
        let observation = scene.observation();
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let tgids = analysis.silos.queues.iter().flat_map(|it| &it.consumers).map(|it| it.tgid);
        let on = |cpu: u32| tgids.clone().map(move |tgid| (tgid, CpuSet::from_cpu(CpuId(cpu))));
        let pinned = |cpu| Signature::new(&analysis, &on(cpu).collect()).unwrap();
        assert!(pinned(1).matches(&pinned(1)));
        assert!(!pinned(1).matches(&pinned(2)) && !pinned(1).matches(&signature_of(&scene)));
    }

    #[test]
    fn without_counted_packets_there_is_no_signature() {
        let quiet = scene(&[0, 0], "nginx").observation();
        let blind = Scene { without_bpf: true, ..scene(&[9_000], "nginx") }.observation();
        let costs = Costs::default();
        let signature = |it| Signature::new(&Analysis::new(it, &costs), &BTreeMap::new());
        assert_eq!((signature(&quiet), signature(&blind)), (None, None));
    }

    #[test]
    fn the_only_queue_of_a_netdev_has_the_packets_that_the_netdev_counts() {
        let mut scene = scene(&[0], "nginx");
        scene.netdevs[0].per_s = [("rx_packets".into(), 5_000)].into();
        let known = signature_of(&scene);
        assert_eq!((known.queues.len(), known.queues[0].packets_per_s), (1, 5_000.0));
        // who reads is part of the workload even if the queue is not known
        let read = |comm: &str| Signature {
            elsewhere: vec![ReaderSignature {
                comm: comm.into(),
                bytes_per_s: 1e6,
                ..ReaderSignature::default()
            }],
            ..known.clone()
        };
        assert!(read("nginx").matches(&read("nginx")) && !read("nginx").matches(&read("redis")));
    }

    #[test]
    fn readers_in_other_network_namespaces_are_no_part_of_the_workload() {
        let scene = scene(&[10_000, 10_000], "nginx");
        let (known, observation) = (signature_of(&scene), scene.observation());
        let reads_in = |namespaces: &[u32]| {
            let mut observation = observation.clone();
            for netns in namespaces {
                let mut row = observation.attribution.consumption[0].clone();
                (row.napi, row.rx_queue, row.protocol_cpu) = (None, None, None);
                row.resolved = QueueResolution::Unresolved;
                row.consumer = Consumer { tgid: 77, netns: *netns, ..row.consumer };
                observation.attribution.consumption.push(row);
            }
            let costs = Costs::default();
            let analysis = Analysis::new(&observation, &costs);
            let elsewhere = Signature::new(&analysis, &BTreeMap::new()).unwrap().elsewhere;
            elsewhere.iter().map(|it| it.bytes_per_s).sum::<f64>()
        };
        let ours = observation.after.machine.netns;
        let each = known.queues[0].readers[0].bytes_per_s;
        assert_eq!(reads_in(&[ours + 1]), 0.0);
        assert_eq!([reads_in(&[ours]), reads_in(&[ours + 1, ours])], [each, each]);
        assert_eq!(reads_in(&[0]), each, "unknown");
    }

    #[test]
    fn a_rate_from_a_stranger_is_checked() {
        let mut known = signature(&[10_000], "nginx");
        assert_eq!(known.check(), Ok(()));
        known.queues[0].packets_per_s = -1.0;
        assert!(known.check().unwrap_err().contains("-1 is not a rate"));
    }
}
