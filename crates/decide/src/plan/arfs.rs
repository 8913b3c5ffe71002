//! Moves flows instead of interrupts: aRFS, and advice where every queue feeds every worker.

use netsilo_model::change::{NTUPLE_FILTER, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::flow_steering::has_arfs;
use netsilo_model::derive::reader_spread::ReaderSpread;
use netsilo_model::derive::silo::Silo;
use netsilo_model::snapshot::attribution::Protocol;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::plan::contents::{Advice, Placement, Plan, RefusalCause};
use crate::plan::flow_rules::can_steer;
use crate::plan::goal::Goal;

/// Share of a netdev's bytes that must arrive on queues with spread readers before the netdev gets
/// advice to move flows.
const SPREAD_SHARE: f64 = 0.8;

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
            part.advice.push(advise(by_sockets(netdev, heaviest, at, goal, moves), false));
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

/// Advice to let the application choose where its flows are read.
fn by_sockets(netdev: &Netdev, silo: &Silo, at: ReaderSpread, goal: &Goal, moves: bool) -> String {
    let comm = silo.consumers.first().map_or("its workers", |consumer| consumer.comm.as_str());
    let mut text = format!(
        "its queues feed workers on {} cpus evenly ({:.0}% of {} on the busiest): {}: let {comm} \
         accept connections by CPU: SO_REUSEPORT with a socket per worker and \
         SO_ATTACH_REUSEPORT_EBPF (or _CBPF) that returns the CPU, or hand each accepted \
         connection to the worker of its SO_INCOMING_NAPI_ID",
        at.cpus,
        at.cpu * 100.0,
        silo.label(),
        if moves {
            "moving interrupts relieves busy cpus only. To shorten ways, move flows"
        } else {
            "moving interrupts gains nothing. Move flows instead"
        }
    );
    if can_steer(netdev) && goal.steer.is_empty() {
        text += "; if each worker listens on its own port, --steer 443/tcp=2-3 adds rules of the \
                 device that steer the port's flows to the queues near its worker (netsilo does \
                 not see which port a worker uses: name it)";
    }
    text
}
