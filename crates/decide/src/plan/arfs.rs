//! Moves flows instead of interrupts: aRFS, and advice where every queue feeds every worker.

use std::collections::BTreeSet;

use netsilo_model::change::{NTUPLE_FILTER, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::flow_steering::has_arfs;
use netsilo_model::derive::reader_spread::ReaderSpread;
use netsilo_model::derive::silo::{ConsumerShare, Silo};
use netsilo_model::snapshot::attribution::Protocol;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::plan::contents::{Advice, Placement, Plan, RefusalCause};
use crate::plan::flow_rules::can_steer;
use crate::plan::goal::Goal;

/// Share of a netdev's bytes that must arrive on queues with spread readers before the netdev gets
/// advice to move flows.
const SPREAD_SHARE: f64 = 0.8;

/// Share of a queue's data from which its readers of one name stand for all.
const MOST_DATA: f64 = 0.5;

/// Whether the RFS table has entries when the goal is reached.
fn has_table(snapshot: &Snapshot, goal: &Goal) -> bool {
    goal.rfs.or(snapshot.net.rps_sock_flow_entries).unwrap_or(0) > 0
}

/// Whether the goal has aRFS on, and this netdev can do it.
pub(crate) fn wants_arfs(snapshot: &Snapshot, netdev: &Netdev, goal: &Goal) -> bool {
    goal.arfs == Some(true) && has_arfs(netdev) && has_table(snapshot, goal)
}

/// Plans the offload (`rx-ntuple-filter`) that lets each driver steer flows by the RFS table.
pub(super) fn arfs(snapshot: &Snapshot, netdevs: &[&Netdev], goal: &Goal) -> Plan {
    let mut part = Plan::default();
    let Some(on) = goal.arfs else { return part };
    for netdev in netdevs {
        let subject = format!("{} ntuple", netdev.name);
        let feature = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.feature(NTUPLE_FILTER));
        match feature {
            _ if on && !has_arfs(netdev) => {
                let driver = netdev.driver.as_deref().unwrap_or("its driver");
                part.refuse(
                    &subject,
                    RefusalCause::NoSuchKnob,
                    format!("{driver} has no aRFS; --rfs does the same in software"),
                );
            }
            None => part.refuse(
                &subject,
                RefusalCause::NoSuchKnob,
                "its driver cannot steer flows".into(),
            ),
            Some(feature) if feature.fixed() && feature.active != on => {
                part.refuse(
                    &subject,
                    RefusalCause::NoSuchKnob,
                    "its driver does not let this offload be changed".into(),
                );
            }
            Some(_) if on && !has_table(snapshot, goal) => {
                part.refuse(
                    &subject,
                    RefusalCause::NoSuchKnob,
                    "aRFS uses the RFS table, which is off: add --rfs".into(),
                );
            }
            Some(feature) => {
                let reason = if on {
                    "aRFS: the device steers each flow to the queue whose interrupt is on \
                     its reader's cpu"
                } else {
                    "aRFS off: the device's hash chooses the queue of each flow"
                };
                let reason = reason.to_owned();
                let knob = knobs::Offload {
                    netdev: NetdevIdentity::from_netdev(netdev),
                    feature: NTUPLE_FILTER.into(),
                };
                part.set(knob, feature.active, on, reason);
            }
        }
    }
    part
}

/// Advice where every queue feeds every worker: moving interrupts gains nothing there, moving flows
/// might. `placements` are those of the plan.
pub(super) fn advise(
    analysis: &Analysis<'_>,
    netdevs: &[&Netdev],
    goal: &Goal,
    placements: &[Placement],
) -> Plan {
    let mut part = Plan::default();
    let snapshot = analysis.after();
    let llcs = snapshot.topology.llc_groups().len();
    for netdev in netdevs {
        let is_read = |silo: &&Silo| {
            let is_read = silo.bytes_per_s > Some(0.0) && silo.readers_are_known();
            silo.queue.is_some() && is_read
        };
        let queues: Vec<&Silo> = analysis.silos_of(&netdev.name).filter(is_read).collect();
        let bytes = |silo: &Silo| silo.bytes_per_s.unwrap_or(0.0);
        let is_spread = |silo: &Silo| {
            silo.concentration.is_some_and(|concentration| concentration.is_spread(llcs))
        };
        let all: f64 = queues.iter().map(|silo| bytes(silo)).sum();
        let spread_queues: Vec<&Silo> = queues.into_iter().filter(|silo| is_spread(silo)).collect();
        let heaviest = spread_queues.iter().max_by(|a, b| bytes(a).total_cmp(&bytes(b)));
        let Some((heaviest, at)) = heaviest.and_then(|silo| Some((silo, silo.concentration?)))
        else {
            continue;
        };
        if spread_queues.iter().map(|silo| bytes(silo)).sum::<f64>() >= all * SPREAD_SHARE {
            let moves = placements.iter().any(|it| it.moves && it.netdev.is(netdev));
            let advise = |text, needs_rfs| Advice { subject: netdev.name.clone(), text, needs_rfs };
            part.advice
                .push(advise(by_sockets(snapshot, netdev, heaviest, at, goal, moves), false));
            let by_rfs = by_rfs(snapshot, netdev, heaviest, goal);
            part.advice.extend(by_rfs.map(|text| advise(text, true)));
        }
    }
    part
}

/// Advice to let the kernel or the device steer flows to their readers; `None` if it does.
fn by_rfs(snapshot: &Snapshot, netdev: &Netdev, silo: &Silo, goal: &Goal) -> Option<String> {
    let mut ways = Vec::new();
    if !has_table(snapshot, goal) {
        let mut text = "--rfs 32768 runs the protocol work of each flow on the cpu that last read \
                        it, at one ipi per batch"
            .to_owned();
        if silo.consumers.iter().any(|consumer| consumer.protocols.contains(&Protocol::Udp)) {
            text += " (connected sockets only: an unconnected UDP server gains nothing)";
        }
        ways.push(text);
    }
    if has_arfs(netdev) && goal.arfs.is_none() {
        let driver = netdev.driver.as_deref().unwrap_or_default();
        ways.push(format!("--rfs 32768 --arfs on lets the device do it ({driver} can)"));
    }
    (!ways.is_empty()).then(|| ways.join("; "))
}

/// How the processes that read a queue belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// Threads of one process, or processes that listen on the same port.
    Workers,
    /// Processes of which each listens on a port of its own, or is a program or service of its own.
    Servers {
        /// How many of them.
        count: usize,
        /// A port on which one of them listens, if known.
        port: Option<u16>,
    },
    /// That many processes of one name.
    Unknown(usize),
}

impl Readers {
    /// The readers with the name of the heaviest one, if they read most of the queue's data.
    fn of(silo: &Silo, snapshot: &Snapshot) -> Self {
        let name = silo.consumers.first().map(|it| &it.comm);
        let named: Vec<&ConsumerShare> =
            silo.consumers.iter().filter(|it| Some(&it.comm) == name).collect();
        let tgids: BTreeSet<u32> = named.iter().map(|it| it.tgid).collect();
        let known = snapshot.socket_readers.as_ref();
        let listens = |tgid| known?.processes.get(tgid).filter(|it| !it.ports.is_empty());
        let listeners = || tgids.iter().filter_map(listens);
        let ports: BTreeSet<u16> = listeners().flat_map(|it| it.ports.iter().copied()).collect();
        let all_listen = listeners().count() == tgids.len();
        let of_one = |port| listeners().filter(|it| it.ports.contains(port)).count() == 1;
        let is_of_all = |port| listeners().all(|it| it.ports.contains(port));
        let groups: BTreeSet<_> = named.iter().filter_map(|it| it.cgroup.as_ref()).collect();
        let count = tgids.len();
        if named.iter().map(|it| it.share).sum::<f64>() < MOST_DATA {
            let names: BTreeSet<&str> = silo.consumers.iter().map(|it| it.comm.as_str()).collect();
            Self::Servers { count: names.len(), port: None }
        } else if count == 1 || all_listen && ports.iter().any(is_of_all) {
            Self::Workers
        } else if all_listen && ports.iter().all(of_one) || groups.len() == count {
            Self::Servers { count, port: ports.first().copied() }
        } else {
            Self::Unknown(count)
        }
    }
}

/// Advice to let the application choose where its flows are read, or to leave it.
fn by_sockets(
    snapshot: &Snapshot,
    netdev: &Netdev,
    silo: &Silo,
    at: ReaderSpread,
    goal: &Goal,
    moves: bool,
) -> String {
    let comm = silo.consumers.first().map_or("its workers", |consumer| consumer.comm.as_str());
    let by_cpu = format!(
        "let {comm} accept connections by CPU: SO_REUSEPORT with a socket per worker and \
         SO_ATTACH_REUSEPORT_EBPF (or _CBPF) that returns the CPU, or hand each accepted \
         connection to the worker of its SO_INCOMING_NAPI_ID"
    );
    let by_port = |port: Option<u16>| {
        let port = port.map_or_else(|| "PORT".to_owned(), |port| port.to_string());
        if !can_steer(netdev) {
            "leave them: the device has no rules that steer a port's flows to a queue".to_owned()
        } else if goal.steer.is_empty() {
            format!(
                "leave them, or steer each port's flows to a queue near its reader by rules of \
                 the device (--steer {port}/tcp=QUEUE)"
            )
        } else {
            "leave them".to_owned()
        }
    };
    let ways = match Readers::of(silo, snapshot) {
        Readers::Workers => format!("Move flows instead: {by_cpu}"),
        Readers::Servers { count, port } => {
            let by_port = by_port(port);
            format!("The readers are {count} servers of their own: {by_port}")
        }
        Readers::Unknown(count) => format!(
            "Whether the {count} processes share a port is not known. If they do: {by_cpu}. If \
             each listens on its own port: {}",
            by_port(None)
        ),
    };
    format!(
        "its queues feed readers on {} cpus evenly ({:.0}% of {} on the busiest): moving \
         interrupts {}. {ways}",
        at.cpus,
        at.cpu * 100.0,
        silo.label(),
        if moves { "relieves busy cpus, but shortens no ways" } else { "gains nothing" }
    )
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::snapshot::socket_readers::SocketReader;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    /// How four processes that listen on these ports belong together, and the advice about them.
    fn advised(names: [&str; 4], ports: [&[u16]; 4]) -> (Readers, String) {
        let reader = |(cpu, name)| format!(r#"{{"comm":"{name}","cpu":{cpu},"bytes_per_s":9000}}"#);
        let readers: Vec<String> = (0..4).zip(names).map(reader).collect();
        let readers = readers.join(",");
        let scene = format!(
            r#"{{"grid":{{"l2s":4}},"netdevs":[{{"name":"eth0","driver":"igb","queues":[{{"irq":30,
            "cpus":"0","packets_per_s":60000,"load":0.08,"readers":[{readers}]}}]}}]}}"#
        );
        let scene: Scene = serde_json::from_str(&scene).unwrap();
        let mut host = scene.observation();
        for (row, tgid) in host.attribution.consumption.iter_mut().zip(700..) {
            row.consumer.tgid = tgid;
        }
        let process = |(tgid, ports): (u32, &[u16])| {
            let ports = ports.iter().copied().collect();
            (tgid, SocketReader { ports, ..SocketReader::default() })
        };
        let known = host.after.socket_readers.get_or_insert_default();
        known.processes = (700..).zip(ports).map(process).collect();
        let costs = Costs::default();
        let analysis = Analysis::new(&host, &costs);
        let readers = Readers::of(&analysis.silos.queues[0], &host.after);
        let netdevs: Vec<&Netdev> = host.after.netdevs.iter().collect();
        let plan = advise(&analysis, &netdevs, &Goal::default(), &[]);
        (readers, plan.advice[0].text.clone())
    }

    #[test]
    fn workers_listen_on_one_port_and_servers_on_ports_of_their_own() {
        let redis = ["redis-server"; 4];
        let of = |ports| advised(redis, ports).0;
        assert_eq!(of([&[443], &[443], &[80, 443], &[443]]), Readers::Workers);
        let servers = |port| Readers::Servers { count: 4, port };
        assert_eq!(of([&[6379], &[6380], &[6381], &[6382, 16382]]), servers(Some(6379)));
        assert_eq!(of([&[6379], &[6380], &[6381], &[]]), Readers::Unknown(4));
        assert_eq!(of([&[80, 81], &[81, 82], &[82, 83], &[84]]), Readers::Unknown(4));
        let none: [&[u16]; 4] = [&[]; 4];
        assert_eq!(advised(["a", "b", "c", "d"], none).0, servers(None));
    }

    #[test]
    fn only_workers_are_to_share_a_port() {
        let redis = ["redis-server"; 4];
        let shares = |(_, text): &(Readers, String)| text.contains("SO_REUSEPORT");
        let workers = advised(redis, [&[443]; 4]);
        assert!(shares(&workers) && !workers.1.contains("leave them"), "{}", workers.1);
        let servers = advised(redis, [&[1], &[2], &[3], &[4]]);
        assert!(!shares(&servers) && servers.1.contains("4 servers"), "{}", servers.1);
        let unknown = advised(redis, [&[]; 4]);
        assert!(shares(&unknown) && unknown.1.contains("is not known"), "{}", unknown.1);
    }
}
