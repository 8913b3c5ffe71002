//! Findings on a NIC's hash: UDP on one queue because ports are not hashed, and connections whose
//! two directions are on different CPUs.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::{Change, Key, Words, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::drivers::name::has_driver;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::rss::model::flows_on;
use netsilo_model::snapshot::ethtool::{Ethtool, FlowType, HashFields, Rss};
use netsilo_model::snapshot::flow::{Flow, Outer};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::subject::Subject;
use netsilo_predict::live::claim::CLEAR;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::verdict::{fewer_targets, percent};

/// The hook that counts flows.
pub(super) const SOURCE: &str = "eBPF tp_btf/netif_receive_skb";
/// Minimum number of packets in an interval for a conclusion.
pub(super) const ENOUGH_PACKETS: u64 = 200;
/// From this share of the packets on one queue, traffic counts as concentrated on it.
pub(super) const ONE_QUEUE: f64 = 0.9;
/// Minimum number of flows, because fewer may share a queue by chance.
const ENOUGH_FLOWS: usize = 4;
/// From this busy share, a CPU is saturated.
const BUSY: f64 = 0.8;
/// From this idle share, a CPU can process more packets.
const IDLE: f64 = 0.5;
/// From this share of fragments in the UDP packets, hashing by ports would reorder too many.
const FRAGMENTS: f64 = 0.01;
/// Minimum number of connections with both directions observed.
const ENOUGH_PAIRS: usize = 8;
/// If at least this share of those connections is on two CPUs, they are reported.
const APART: f64 = 0.3;
/// Drivers of NICs with a symmetric hash for both directions (`input_xfrm`): ice, iavf, mlx5, sfc
/// (kernel 6.8 to 6.17).
const SYMMETRIC: [&str; 4] = ["ice", "iavf", "mlx5_core", "sfc"];
/// Drivers that report the hash fields of UDP but cannot change them.
const FIXED_FIELDS: [&str; 1] = ["bnx2"];

/// Findings on UDP per netdev and address family, and on connections processed on two CPUs.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut found = Vec::new();
    let netdevs = analysis.after().netdevs.iter().filter(|_| !judged.has_one_cpu());
    for netdev in netdevs {
        for flow_type in [FlowType::Udp4, FlowType::Udp6] {
            found.extend(udp_on_one_queue(judged, netdev, flow_type));
        }
    }
    found.extend(asymmetric(analysis));
    found
}

/// Packets of a set of flows, in total and on the queue that received most of them.
pub(super) struct QueueConcentration {
    /// The queue with the most packets.
    pub(super) queue: u32,
    /// Packets on that queue.
    pub(super) packets: u64,
    /// Packets on all queues.
    pub(super) all: u64,
    /// Number of flows.
    pub(super) flows: usize,
}

impl QueueConcentration {
    /// Sums the flows. Returns `None` without flows, or if the queue of a flow is not known.
    pub(super) fn of<'a>(flows: impl Iterator<Item = &'a Flow>) -> Option<Self> {
        let mut queues: BTreeMap<u32, u64> = BTreeMap::new();
        let mut count = 0;
        for flow in flows {
            let packets: &mut u64 = queues.entry(flow.queue?).or_default();
            *packets = packets.saturating_add(flow.packets);
            count += 1;
        }
        let (queue, packets) = queues.iter().max_by_key(|(_, packets)| **packets)?;
        Some(Self {
            queue: *queue,
            packets: *packets,
            all: queues.values().copied().fold(0, u64::saturating_add),
            flows: count,
        })
    }

    /// The queue's share of all packets.
    pub(super) fn share(&self) -> f64 {
        self.packets as f64 / self.all.max(1) as f64
    }
}

/// The number of rx queues over which a netdev spreads packets: those in its table, or all if it
/// has no table.
pub(in crate::judge) fn spread_over(netdev: &Netdev) -> usize {
    let table =
        netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rss.value()).map(|rss| &rss.indirection);
    let queues: BTreeSet<u32> = table.into_iter().flatten().copied().collect();
    if queues.is_empty() { netdev.rx_queues.len() } else { queues.len() }
}

pub(super) fn silo_of<'a>(
    analysis: &'a Analysis<'_>,
    netdev: &Netdev,
    queue: u32,
) -> Option<&'a Silo> {
    analysis.silos_of(&netdev.name).find(|silo| silo.queue == Some(queue))
}

/// The CPU that polls a queue most, and the share of its time that the queue uses.
pub(super) fn poller(silo: &Silo) -> Option<(CpuId, f64)> {
    let most = silo.own_share.iter().max_by(|a, b| a.1.total_cmp(b.1));
    most.map(|(cpu, share)| (*cpu, *share))
}

/// A warning if the CPU that polls the queue is saturated, else information.
pub(super) fn severity(analysis: &Analysis<'_>, silo: Option<&Silo>) -> Severity {
    let cpu = silo.and_then(poller).map(|(cpu, _)| cpu);
    let busy = cpu.and_then(|cpu| Some(analysis.rates.cpus.get(&cpu)?.shares?.busy()));
    if busy.is_some_and(|busy| busy >= BUSY) { Severity::Warning } else { Severity::Info }
}

/// The gain of changes that spread what one queue receives.
pub(super) fn relief(judged: &Judged<'_>, silo: Option<&Silo>, changes: &[Change]) -> Gain {
    let cost = match silo.and_then(poller) {
        Some((cpu, share)) => format!("the queue takes {} of cpu {cpu}'s time", percent(share)),
        None => "the time of the queue is not known".to_owned(),
    };
    judged.look.gain(changes, &cost)
}

/// The remedy RPS for one queue, onto those idle CPUs that share its CPU's last-level cache, or
/// fewer of them, to which the forecast is best.
pub(super) fn rps(judged: &Judged<'_>, netdev: &Netdev, queue: u32, why: &str) -> Remedy {
    let analysis = judged.analysis;
    let what = format!("spread {} rx-{queue} with RPS: {why}", netdev.name);
    let not_when = Some(
        "the other cpus have no idle time: each packet costs one more interrupt and softirq"
            .to_owned(),
    );
    let cost = Some(
        "an inter-processor interrupt and a softirq for every packet or every few packets"
            .to_owned(),
    );
    let remedy = |gain, changes| Remedy {
        what: what.clone(),
        gain,
        cost: cost.clone(),
        not_when: not_when.clone(),
        changes,
        interrupts_traffic: false,
    };
    let silo = silo_of(analysis, netdev, queue);
    let Some((cpu, _)) = silo.and_then(poller) else {
        return remedy(
            Gain::Unknown("the cpu that polls the queue is not known".into()),
            Vec::new(),
        );
    };
    let cpus = idle_near(analysis, cpu);
    if cpus.is_empty() {
        return remedy(
            Gain::Nothing(format!("no cpu that shares a cache with cpu {cpu} has idle time")),
            Vec::new(),
        );
    }
    let present = netdev.rx_queues.iter().find(|rx| rx.index == queue);
    let Some(old) = present.and_then(|rx| rx.rps_cpus.clone()) else {
        return remedy(Gain::Unknown("the present RPS setting is not known".into()), Vec::new());
    };
    let onto = |cpus: CpuSet| {
        let knob = knobs::RpsCpus { netdev: NetdevIdentity::from_netdev(netdev), queue };
        let changes = vec![Change::new(knob, old.clone(), cpus, why)];
        (relief(judged, silo, &changes), changes)
    };
    let fewer = fewer_targets(&analysis.after().topology, cpu, &cpus);
    let all = onto(cpus);
    let value = |gain: &Gain| gain.forecast().unwrap_or(0.0);
    // each poll sends an interrupt to each target that gets a packet of it
    let best = fewer
        .into_iter()
        .map(onto)
        .fold(all, |best, next| if value(&next.0) >= value(&best.0) + CLEAR { next } else { best });
    match best {
        (gain, _) if value(&gain) <= -CLEAR => remedy(gain, Vec::new()),
        (gain, changes) => remedy(gain, changes),
    }
}

/// CPUs that share the last-level cache, are not reserved, and are idle at least half of the time.
fn idle_near(analysis: &Analysis<'_>, cpu: CpuId) -> CpuSet {
    let topology = &analysis.observation.after.topology;
    let near = topology
        .llc_of(cpu)
        .and(&topology.online)
        .minus(&topology.reserved())
        .minus(&CpuSet::from_cpu(cpu));
    let idle = |cpu: &CpuId| {
        let shares = analysis.rates.cpus.get(cpu).and_then(|rates| rates.shares);
        shares.is_some_and(|shares| shares.busy() <= 1.0 - IDLE)
    };
    near.iter().filter(idle).collect()
}

/// The hash fields of a flow type; `None` if the driver does not report them.
pub(super) fn fields(netdev: &Netdev, flow_type: FlowType) -> Option<HashFields> {
    netdev.ethtool.as_ref()?.flow_hash.get(&flow_type)?.value().copied()
}

/// The change to hash ports too; `None` if the driver cannot, or already does.
pub(in crate::judge) fn hash_ports(
    netdev: &Netdev,
    flow_type: FlowType,
    reason: &str,
) -> Option<Change> {
    let old = fields(netdev, flow_type).filter(|fields| !fields.contains(HashFields::PORTS))?;
    let fixed = has_driver(netdev, &FIXED_FIELDS);
    let knob = knobs::FlowHash { netdev: NetdevIdentity::from_netdev(netdev), flow_type };
    (!fixed).then(|| Change::new(knob, old, HashFields::ADDRESSES_AND_PORTS, reason))
}

fn udp_on_one_queue(judged: &Judged<'_>, netdev: &Netdev, flow_type: FlowType) -> Option<Finding> {
    let analysis = judged.analysis;
    let udp = || {
        let of_netdev = flows_on(analysis.observation, netdev);
        of_netdev.filter(|flow| {
            flow.outer == Outer::Udp && flow.outer.flow_type(flow.v6) == Some(flow_type)
        })
    };
    let taken = QueueConcentration::of(udp())?;
    let hashed = fields(netdev, flow_type);
    let by_ports = hashed.is_some_and(|fields| fields.contains(HashFields::PORTS));
    let rps_on = |silo: &Silo| silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
    let silo = silo_of(analysis, netdev, taken.queue);
    if taken.flows < ENOUGH_FLOWS
        || taken.all < ENOUGH_PACKETS
        || taken.share() < ONE_QUEUE
        || spread_over(netdev) < 2
        || by_ports
        || silo.is_some_and(rps_on)
    {
        return None;
    }
    let peers: BTreeSet<u32> = udp().map(|flow| flow.peer).collect();
    let pieces = udp().filter(|flow| flow.fragments).map(|flow| flow.packets).sum::<u64>() as f64
        / taken.all as f64;
    let hash_fields = hashed.map_or_else(|| "not reported".to_owned(), |fields| fields.to_string());
    let evidence = vec![
        Evidence::new(
            format!("UDP packets on rx-{}", taken.queue),
            Measure::Share(taken.share()),
            SOURCE,
        ),
        Evidence::new("UDP packets", Measure::Count(taken.all), SOURCE),
        Evidence::new("UDP flows", Measure::Count(taken.flows as u64), SOURCE),
        Evidence::new("peers that send UDP", Measure::Count(peers.len() as u64), SOURCE),
        Evidence::new(
            format!("hash fields of {flow_type}"),
            Measure::Text(hash_fields),
            "ethtool -n DEV rx-flow-hash",
        ),
        Evidence::new("UDP packets in fragments", Measure::Share(pieces), SOURCE),
    ];
    let mut remedies: Vec<Remedy> =
        by_ports_too(judged, netdev, flow_type, silo, &taken, pieces).into_iter().collect();
    if remedies.iter().all(|remedy| remedy.changes.is_empty()) {
        remedies.push(rps(judged, netdev, taken.queue, "the kernel hashes ports"));
    }
    Some(Finding {
        id: FindingId::UdpOneQueue,
        severity: severity(analysis, silo),
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "{} flows of {flow_type} share a queue: rx-{} receives {:.0}% of the packets because \
             ports are not hashed",
            taken.flows,
            taken.queue,
            taken.share() * 100.0
        ),
        evidence,
        remedies,
    })
}

/// The remedy to hash UDP by ports; `None` if the driver cannot, or already does.
fn by_ports_too(
    judged: &Judged<'_>,
    netdev: &Netdev,
    flow_type: FlowType,
    silo: Option<&Silo>,
    taken: &QueueConcentration,
    pieces: f64,
) -> Option<Remedy> {
    let reason = format!(
        "{} flows of {flow_type} share rx-{} because ports are not hashed",
        taken.flows, taken.queue
    );
    let change = hash_ports(netdev, flow_type, &reason)?;
    let fragmented = pieces >= FRAGMENTS;
    let changes = if fragmented { Vec::new() } else { vec![change] };
    Some(Remedy {
        what: format!(
            "hash UDP ports too: ethtool -N {} rx-flow-hash {flow_type} sdfn",
            netdev.name
        ),
        gain: if fragmented {
            Gain::Unknown(format!(
                "{:.0}% of these packets are fragments, which have no ports",
                pieces * 100.0
            ))
        } else {
            relief(judged, silo, &changes)
        },
        cost: Some("packets of flows in transit may be reordered once".into()),
        not_when: Some(
            "datagrams larger than the MTU are sent: their fragments have no ports, use another \
             queue than the rest of their flow, and are reordered"
                .into(),
        ),
        changes,
        interrupts_traffic: false,
    })
}

/// Connections whose two directions both arrive here, but on different CPUs.
fn asymmetric(analysis: &Analysis<'_>) -> Option<Finding> {
    let netdevs = &analysis.observation.after.netdevs;
    let mut connections: BTreeMap<u32, BTreeMap<u32, (usize, CpuId)>> = BTreeMap::new();
    for (at, netdev) in netdevs.iter().enumerate() {
        for flow in flows_on(analysis.observation, netdev).filter(|flow| flow.connection != 0) {
            let silo = flow.queue.and_then(|queue| silo_of(analysis, netdev, queue));
            let Some((cpu, _)) = silo.and_then(poller) else { continue };
            connections.entry(flow.connection).or_default().insert(flow.peer, (at, cpu));
        }
    }
    let pairs: Vec<Vec<(usize, CpuId)>> = connections
        .into_values()
        .filter(|ways| ways.len() == 2)
        .map(|ways| ways.into_values().collect())
        .collect();
    let apart = pairs.iter().filter(|ways| ways[0].1 != ways[1].1).count();
    if pairs.len() < ENOUGH_PAIRS || (apart as f64) < APART * pairs.len() as f64 {
        return None;
    }
    let used: BTreeSet<usize> = pairs.iter().flatten().map(|(at, _)| *at).collect();
    let used: Vec<&Netdev> = used.into_iter().filter_map(|at| netdevs.get(at)).collect();
    let names = used.iter().map(|netdev| netdev.name.clone());
    Some(Finding {
        id: FindingId::RssAsymmetric,
        severity: Severity::Info,
        subject: match names.len() {
            1 => names.map(Subject::Netdev).next().unwrap_or(Subject::Machine),
            _ => Subject::Netdevs(names.collect()),
        },
        title: "the two directions of forwarded connections are processed on different cpus".into(),
        evidence: vec![
            Evidence::new(
                "connections with both directions observed",
                Measure::Count(pairs.len() as u64),
                SOURCE,
            ),
            Evidence::new(
                "of these, on two cpus",
                Measure::Count(apart as u64),
                "the cpus that poll their queues",
            ),
        ],
        remedies: symmetric(&used),
    })
}

/// Remedies that give both directions the same hash: the NIC's `input_xfrm`, or a key that repeats
/// every 16 bits.
fn symmetric(netdevs: &[&Netdev]) -> Vec<Remedy> {
    let gain = || {
        Gain::Unknown(
            "the cost of two cpus for connection tracking or inspection was not measured".into(),
        )
    };
    let not_when = Some(
        "nothing on this machine processes both directions together (connection \
         tracking, NAT, intrusion detection)"
            .to_owned(),
    );
    let ethtool = |netdev: &&Netdev| netdev.ethtool.clone();
    let ethtools: Option<Vec<Ethtool>> = netdevs.iter().map(ethtool).collect();
    let rss: Option<Vec<&Rss>> =
        ethtools.as_ref().and_then(|all| all.iter().map(|one| one.rss.value()).collect());
    let drivers_can = netdevs.iter().all(|netdev| has_driver(netdev, &SYMMETRIC));
    let reason = |netdev: &Netdev| {
        format!("both directions of a connection have the same hash on {}", netdev.name)
    };
    let Some(rss) =
        rss.filter(|rss| rss.windows(2).all(|two| two[0].indirection == two[1].indirection))
    else {
        return vec![Remedy {
            what: "give all these netdevs the same indirection table, then the same symmetric key"
                .into(),
            gain: gain(),
            cost: None,
            not_when,
            changes: Vec::new(),
            interrupts_traffic: false,
        }];
    };
    let identity = |netdev: &Netdev| NetdevIdentity::from_netdev(netdev);
    let (what, cost, changes): (_, _, Vec<Change>) = if drivers_can {
        let new = Words::new("toeplitz symmetric-xor");
        let one = |(netdev, rss): (&&Netdev, &&Rss)| {
            let old = rss.hash_words().unwrap_or_else(|| new.clone());
            Change::new(
                knobs::RssHash { netdev: identity(netdev) },
                old,
                new.clone(),
                reason(netdev),
            )
        };
        let cost = "source and destination are XORed, so there are fewer different hashes";
        (
            "hash both directions the same way: ethtool -X DEV xfrm symmetric-xor",
            cost,
            netdevs.iter().zip(&rss).map(one).collect(),
        )
    } else {
        let one = |(netdev, rss): (&&Netdev, &&Rss)| {
            let old = rss.key.clone()?;
            let new = [0x6d, 0x5a].repeat(old.len().div_ceil(2))[..old.len()].to_vec();
            let knob = knobs::RssKey { netdev: identity(netdev) };
            Some(Change::new(knob, Key(old), Key(new), reason(netdev)))
        };
        let all: Option<Vec<Change>> = netdevs.iter().zip(&rss).map(one).collect();
        let cost =
            "with this key the hash has only 16 bits, and senders can predict the queue of a flow";
        (
            "use a hash key that repeats every 16 bits, which gives both directions the same hash",
            cost,
            all.unwrap_or_default(),
        )
    };
    let changes = changes.into_iter().filter(|change| change.old != change.new).collect();
    vec![Remedy {
        what: what.into(),
        gain: gain(),
        cost: Some(cost.into()),
        not_when,
        changes,
        interrupts_traffic: false,
    }]
}
