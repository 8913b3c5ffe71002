//! What a NIC's hash leaves out: UDP on one queue for want of ports, and the two directions of a
//! connection on two CPUs.

use std::collections::{BTreeMap, BTreeSet};

use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::change::{Change, Key, NetdevIdentity, Words, knobs};
use crate::cpuset::{CpuId, CpuSet};
use crate::ethtool::{Ethtool, FlowType, HashFields, Rss};
use crate::flow::{Flow, Outer};
use crate::host::Netdev;
use crate::rss::flows_of;
use crate::silo::Silo;

/// Where flows are counted.
pub(super) const SOURCE: &str = "eBPF tp_btf/netif_receive_skb";
/// Fewer packets than this in an interval say nothing.
pub(super) const ENOUGH_PACKETS: u64 = 200;
/// On one queue: nearly all.
pub(super) const ONE_QUEUE: f64 = 0.9;
/// Fewer flows than this may well share a queue.
const ENOUGH_FLOWS: usize = 4;
/// A CPU at its wall.
const BUSY: f64 = 0.8;
/// A CPU that has time for others' packets.
const IDLE: f64 = 0.5;
/// Datagrams in pieces, as a share of the UDP packets, from which hashing by ports reorders a
/// traffic that matters.
const FRAGMENTS: f64 = 0.01;
/// Connections of which both directions were seen, and the part of them that two CPUs process.
const ENOUGH_PAIRS: usize = 8;
const APART: f64 = 0.3;
/// Drivers whose NICs have one hash for both directions (`input_xfrm`): ice, iavf, mlx5, sfc
/// (kernel 6.8 to 6.17).
const SYMMETRIC: [&str; 4] = ["ice", "iavf", "mlx5_core", "sfc"];
/// Drivers that name UDP's fields but cannot change them.
const FIXED_FIELDS: [&str; 1] = ["bnx2"];

/// UDP on one queue, for each netdev and family; connections on two CPUs.
pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for netdev in &seen.observation.after.netdevs {
        for flow_type in [FlowType::Udp4, FlowType::Udp6] {
            found.extend(udp_on_one_queue(seen, netdev, flow_type));
        }
    }
    found.extend(asymmetric(seen));
    found
}

/// Packets of some flows: in all, and on the queue that took most of them.
pub(super) struct Concentrated {
    pub(super) queue: u32,
    pub(super) packets: u64,
    pub(super) all: u64,
    pub(super) flows: usize,
}

impl Concentrated {
    /// `None` without packets whose queue is known.
    pub(super) fn of<'a>(flows: impl Iterator<Item = &'a Flow>) -> Option<Self> {
        let mut queues: BTreeMap<u32, u64> = BTreeMap::new();
        let mut count = 0;
        for flow in flows {
            let packets: &mut u64 = queues.entry(flow.queue?).or_default();
            *packets = packets.saturating_add(flow.packets);
            count += 1;
        }
        let (queue, packets) = queues.iter().max_by_key(|(_, packets)| **packets)?;
        Some(Self { queue: *queue, packets: *packets, all: queues.values().copied().fold(0, u64::saturating_add), flows: count })
    }

    /// Share of the one queue.
    pub(super) fn share(&self) -> f64 {
        self.packets as f64 / self.all.max(1) as f64
    }
}

/// How many rx queues a netdev spreads over: those of its table or, where it shows none, all.
pub(super) fn spread_over(netdev: &Netdev) -> usize {
    let table = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rss.value()).map(|rss| &rss.indirection);
    let queues: BTreeSet<u32> = table.into_iter().flatten().copied().collect();
    if queues.is_empty() { netdev.rx_queues.len() } else { queues.len() }
}

pub(super) fn silo_of<'a>(seen: &'a Seen<'_>, netdev: &Netdev, queue: u32) -> Option<&'a Silo> {
    seen.silos.queues.iter().find(|silo| silo.netdev.is(netdev) && silo.queue == Some(queue))
}

/// The CPU that polls a queue most, and the share of its time that this takes.
pub(super) fn poller(silo: &Silo) -> Option<(CpuId, f64)> {
    let most = silo.own_share.iter().max_by(|a, b| a.1.total_cmp(b.1));
    most.map(|(cpu, share)| (*cpu, *share))
}

/// Grave when the CPU that polls the queue has no time left.
pub(super) fn severity(seen: &Seen<'_>, silo: Option<&Silo>) -> Severity {
    let cpu = silo.and_then(poller).map(|(cpu, _)| cpu);
    let busy = cpu.and_then(|cpu| Some(seen.rates.cpus.get(&cpu)?.shares?.busy()));
    if busy.is_some_and(|busy| busy >= BUSY) { Severity::Warning } else { Severity::Info }
}

/// What can move off the CPU of a queue at most: `part` of what polling that queue takes.
pub(super) fn relief(silo: Option<&Silo>, part: f64, basis: &str) -> Gain {
    match silo.and_then(poller) {
        Some((cpu, share)) if share > 0.0 => Gain::AtMost {
            measure: Measure::Share(share * part),
            of: format!("cpu {cpu}'s time moves to other cpus"),
            basis: basis.to_owned(),
        },
        _ => Gain::Unknown("the time that this queue takes was not measured".into()),
    }
}

/// RPS for one queue, on CPUs of the same cache that have time: what a NIC's hash can't, the
/// kernel's own may.
pub(super) fn rps(seen: &Seen<'_>, netdev: &Netdev, queue: u32, why: &str) -> Remedy {
    let what = format!("let RPS spread {} rx-{queue}: {why}", netdev.name);
    let not_when = Some("the other cpus have no idle time: each packet costs an interrupt and a softirq more".to_owned());
    let cost = Some("an inter-processor interrupt and a softirq for each packet, or each few".to_owned());
    let remedy = |gain, changes| Remedy {
        what: what.clone(),
        gain,
        cost: cost.clone(),
        not_when: not_when.clone(),
        changes,
        interrupts_traffic: false,
    };
    let silo = silo_of(seen, netdev, queue);
    let Some((cpu, _)) = silo.and_then(poller) else {
        return remedy(Gain::Unknown("which cpu polls the queue is not known".into()), Vec::new());
    };
    let cpus = idle_near(seen, cpu);
    if cpus.is_empty() {
        return remedy(Gain::Nothing(format!("no cpu that shares a cache with cpu {cpu} has idle time")), Vec::new());
    }
    let old = netdev.rx_queues.iter().find(|rx| rx.index == queue).and_then(|rx| rx.rps_cpus.clone());
    let knob = knobs::RpsCpus { netdev: NetdevIdentity::of(netdev), queue };
    let change = old.map(|old| Change::new(knob, old, cpus, why));
    remedy(Gain::Unknown("how many flows are inside, and what an interrupt costs here, was not measured".into()), change.into_iter().collect())
}

/// CPUs that share the last-level cache, may be used, and are idle at least half of their time.
fn idle_near(seen: &Seen<'_>, cpu: CpuId) -> CpuSet {
    let topology = &seen.observation.after.topology;
    let near = topology.llc_of(cpu).and(&topology.online).minus(&topology.set_apart()).minus(&CpuSet::of(cpu));
    let idle = |cpu: &CpuId| {
        let shares = seen.rates.cpus.get(cpu).and_then(|rates| rates.shares);
        shares.is_some_and(|shares| shares.busy() <= 1.0 - IDLE)
    };
    near.iter().filter(idle).collect()
}

/// What is hashed of a type of flow, where the driver says so.
pub(super) fn fields(netdev: &Netdev, flow_type: FlowType) -> Option<HashFields> {
    netdev.ethtool.as_ref()?.flow_hash.get(&flow_type)?.value().copied()
}

/// Hashing by ports too; `None` where the driver can't, or does already.
pub(super) fn hash_ports(netdev: &Netdev, flow_type: FlowType, reason: &str) -> Option<Change> {
    let old = fields(netdev, flow_type).filter(|fields| !fields.contains(HashFields::PORTS))?;
    let fixed = netdev.driver.as_deref().is_some_and(|driver| FIXED_FIELDS.contains(&driver));
    let knob = knobs::FlowHash { netdev: NetdevIdentity::of(netdev), flow_type };
    (!fixed).then(|| Change::new(knob, old, HashFields::ADDRESSES_AND_PORTS, reason))
}

fn udp_on_one_queue(seen: &Seen<'_>, netdev: &Netdev, flow_type: FlowType) -> Option<Finding> {
    let udp = || {
        let of_netdev = flows_of(seen.observation, netdev);
        of_netdev.filter(|flow| flow.outer == Outer::Udp && flow.outer.flow_type(flow.v6) == Some(flow_type))
    };
    let taken = Concentrated::of(udp())?;
    let hashed = fields(netdev, flow_type);
    let by_ports = hashed.is_some_and(|fields| fields.contains(HashFields::PORTS));
    let rps_on = |silo: &Silo| silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
    let silo = silo_of(seen, netdev, taken.queue);
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
    let pieces = udp().filter(|flow| flow.fragments).map(|flow| flow.packets).sum::<u64>() as f64 / taken.all as f64;
    let told = hashed.map_or_else(|| "not told".to_owned(), |fields| fields.to_string());
    let evidence = vec![
        Evidence::new(format!("UDP packets on rx-{}", taken.queue), Measure::Share(taken.share()), SOURCE),
        Evidence::new("UDP packets", Measure::Count(taken.all), SOURCE),
        Evidence::new("UDP flows", Measure::Count(taken.flows as u64), SOURCE),
        Evidence::new("peers that send them", Measure::Count(peers.len() as u64), SOURCE),
        Evidence::new(format!("what is hashed of {flow_type}"), Measure::Text(told), "ethtool -n DEV rx-flow-hash"),
        Evidence::new("UDP packets in fragments", Measure::Share(pieces), SOURCE),
    ];
    let mut remedies: Vec<Remedy> = by_ports_too(netdev, flow_type, silo, &taken, pieces).into_iter().collect();
    if remedies.iter().all(|remedy| remedy.changes.is_empty()) {
        remedies.push(rps(seen, netdev, taken.queue, "the kernel's own hash takes ports"));
    }
    Some(Finding {
        id: FindingId::UdpOneQueue,
        severity: severity(seen, silo),
        subject: netdev.name.clone(),
        title: format!(
            "{} flows of {flow_type}, one queue: rx-{} takes {:.0}% of the packets, as ports are not hashed",
            taken.flows,
            taken.queue,
            taken.share() * 100.0
        ),
        evidence,
        remedies,
    })
}

fn by_ports_too(netdev: &Netdev, flow_type: FlowType, silo: Option<&Silo>, taken: &Concentrated, pieces: f64) -> Option<Remedy> {
    let reason = format!("{} flows of {flow_type} share rx-{}, for want of ports in the hash", taken.flows, taken.queue);
    let change = hash_ports(netdev, flow_type, &reason)?;
    let queues = spread_over(netdev) as f64;
    let fragmented = pieces >= FRAGMENTS;
    let basis = format!("the time that polling rx-{} takes, less one part of {queues:.0}", taken.queue);
    Some(Remedy {
        what: format!("hash UDP by ports too: ethtool -N {} rx-flow-hash {flow_type} sdfn", netdev.name),
        gain: match fragmented {
            true => Gain::Unknown(format!("{:.0}% of these packets are fragments, which have no ports", pieces * 100.0)),
            false => relief(silo, 1.0 - 1.0 / queues, &basis),
        },
        cost: Some("packets of a flow that is on its way may overtake each other once".into()),
        not_when: Some(
            "datagrams larger than the MTU are sent: their fragments have no ports, take another queue than the rest of \
             their flow, and overtake"
                .into(),
        ),
        changes: if fragmented { Vec::new() } else { vec![change] },
        interrupts_traffic: false,
    })
}

/// Connections whose two directions both arrive here, on two CPUs.
fn asymmetric(seen: &Seen<'_>) -> Option<Finding> {
    let netdevs = &seen.observation.after.netdevs;
    let mut connections: BTreeMap<u32, BTreeMap<u32, (usize, CpuId)>> = BTreeMap::new();
    for (at, netdev) in netdevs.iter().enumerate() {
        for flow in flows_of(seen.observation, netdev).filter(|flow| flow.connection != 0) {
            let silo = flow.queue.and_then(|queue| silo_of(seen, netdev, queue));
            let Some((cpu, _)) = silo.and_then(poller) else { continue };
            connections.entry(flow.connection).or_default().insert(flow.peer, (at, cpu));
        }
    }
    let pairs: Vec<Vec<(usize, CpuId)>> =
        connections.into_values().filter(|ways| ways.len() == 2).map(|ways| ways.into_values().collect()).collect();
    let apart = pairs.iter().filter(|ways| ways[0].1 != ways[1].1).count();
    if pairs.len() < ENOUGH_PAIRS || (apart as f64) < APART * pairs.len() as f64 {
        return None;
    }
    let used: BTreeSet<usize> = pairs.iter().flatten().map(|(at, _)| *at).collect();
    let used: Vec<&Netdev> = used.into_iter().filter_map(|at| netdevs.get(at)).collect();
    let names: Vec<&str> = used.iter().map(|netdev| netdev.name.as_str()).collect();
    Some(Finding {
        id: FindingId::RssAsymmetric,
        severity: Severity::Info,
        subject: names.join(" "),
        title: "the two directions of connections that pass here are processed on two CPUs".into(),
        evidence: vec![
            Evidence::new("connections of which both directions arrive", Measure::Count(pairs.len() as u64), SOURCE),
            Evidence::new("of these, on two CPUs", Measure::Count(apart as u64), "the CPUs that poll their queues"),
        ],
        remedies: symmetric(&used),
    })
}

/// One hash for both directions: by the NIC's own transform, or by a key that repeats itself every
/// 16 bits.
fn symmetric(netdevs: &[&Netdev]) -> Vec<Remedy> {
    let gain = || Gain::Unknown("what connection tracking or inspection loses by two CPUs was not measured".into());
    let not_when = Some("nothing on this machine looks at both directions together (connection tracking, NAT, intrusion detection)".to_owned());
    let ethtool = |netdev: &&Netdev| netdev.ethtool.clone();
    let told: Option<Vec<Ethtool>> = netdevs.iter().map(ethtool).collect();
    let rss: Option<Vec<&Rss>> = told.as_ref().and_then(|told| told.iter().map(|told| told.rss.value()).collect());
    let drivers_can = netdevs.iter().all(|dev| dev.driver.as_deref().is_some_and(|driver| SYMMETRIC.contains(&driver)));
    let reason = |netdev: &Netdev| format!("both directions of a connection have one hash on {}", netdev.name);
    let Some(rss) = rss.filter(|rss| rss.windows(2).all(|two| two[0].indirection == two[1].indirection)) else {
        return vec![Remedy {
            what: "give all these netdevs one indirection table, then one key that is the same both ways".into(),
            gain: gain(),
            cost: None,
            not_when,
            changes: Vec::new(),
            interrupts_traffic: false,
        }];
    };
    let identity = |netdev: &Netdev| NetdevIdentity::of(netdev);
    let (what, cost, changes): (_, _, Vec<Change>) = if drivers_can {
        let new = Words::new("toeplitz symmetric-xor");
        let one = |(netdev, rss): (&&Netdev, &&Rss)| {
            let old = rss.hash_words().unwrap_or_else(|| new.clone());
            Change::new(knobs::RssHash { netdev: identity(netdev) }, old, new.clone(), reason(netdev))
        };
        let cost = "source and destination are xored: fewer different hashes";
        ("hash both directions alike: ethtool -X DEV xfrm symmetric-xor", cost, netdevs.iter().zip(&rss).map(one).collect())
    } else {
        let one = |(netdev, rss): (&&Netdev, &&Rss)| {
            let old = rss.key.clone()?;
            let new = [0x6d, 0x5a].repeat(old.len().div_ceil(2))[..old.len()].to_vec();
            let knob = knobs::RssKey { netdev: identity(netdev) };
            Some(Change::new(knob, Key(old), Key(new), reason(netdev)))
        };
        let all: Option<Vec<Change>> = netdevs.iter().zip(&rss).map(one).collect();
        let cost = "such a key gives 16 bits of hash, and senders can reckon which queue they load";
        ("use a hash key that repeats each 16 bits, which hashes both directions alike", cost, all.unwrap_or_default())
    };
    let changes = changes.into_iter().filter(|change| change.old != change.new).collect();
    vec![Remedy { what: what.into(), gain: gain(), cost: Some(cost.into()), not_when, changes, interrupts_traffic: false }]
}
