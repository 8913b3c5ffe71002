//! Which interrupt schedules which NAPI instance.

use std::collections::BTreeMap;

use netsilo_lab::Lab;
use netsilo_model::derive::observed_irqs::name_observed_interrupts;
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::net_thread::{NetThread, NetThreadKind, cpu_of, irq_of};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::scheduled::ScheduledBy;

use crate::{PATIENCE, TRACEPOINTS, traced_with};

/// Where handlers run in interrupts: with the kernel's list of NAPIs, without it, and with threaded
/// NAPI.
pub(crate) fn are_known_by_the_napis_that_they_schedule(lab: &Lab) {
    are_known_by(lab, "", ScheduledBy::Handler);
    are_known_by(lab, TRACEPOINTS, ScheduledBy::Softirq);
    lab.sh("echo 1 > /sys/class/net/eth0/threaded").unwrap();
    are_known_by(lab, "", ScheduledBy::Wakeup);
    lab.sh("echo 0 > /sys/class/net/eth0/threaded").unwrap();
}

/// On a kernel that does not let programs read its list.
pub(crate) fn are_known_without_the_list_of_napis(lab: &Lab) {
    are_known_by(lab, "", ScheduledBy::Softirq);
}

/// With `threadirqs` and `thread_backlog_napi`.
pub(crate) fn are_known_by_their_threads(lab: &Lab) {
    are_known_by(lab, "", ScheduledBy::Thread);
}

/// The names of the driver's interrupts are the truth; netsilo is not told them. Without a proof it
/// may name none, but not a wrong one.
fn are_known_by(lab: &Lab, options: &str, kind: ScheduledBy) {
    let server = lab.exact("echo --port 7200 --cpu 5").unwrap();
    let attribution = traced_with(lab, &format!("{options} --snapshot"), || {
        let to = format!("--dest {} --port 7200", Lab::guest_address(0));
        let ask = format!("ask {to} --connections 12 --duration 1");
        let client = lab.peer(0).unwrap().exact(&ask).unwrap();
        client.wait(PATIENCE).unwrap().ok().unwrap();
    });
    drop(server);
    let snapshot: Snapshot = serde_json::from_str(&lab.sh("cat /tmp/snapshot").unwrap()).unwrap();
    assert_eq!(snapshot.topology.nodes_with_cpus().count(), 2, "the guest's sockets");
    let named = interrupts(&snapshot);
    threads_are_known(&snapshot, &named, kind);
    let queues = queues(&attribution);
    let (mut right, mut wrong) = (0, 0);
    for row in attribution.scheduled.iter().filter(|row| row.by == kind) {
        match queues.get(&row.napi).and_then(|queue| named.get(queue)) {
            Some(irq) if *irq == row.irq => right += row.count,
            Some(_) => wrong += row.count,
            None => {}
        }
    }
    println!("{kind:?}: {right} events with the interrupt of their queue, {wrong} others");
    let is_proof = matches!(kind, ScheduledBy::Handler | ScheduledBy::Wakeup);
    assert!(right >= 20 && !(is_proof && wrong > 0), "{:#?}", attribution.scheduled);
    let mut after = snapshot;
    for netdev in after.netdevs.iter_mut() {
        netdev.rx_queues.iter_mut().for_each(|queue| queue.irq = None);
        netdev.napis.iter_mut().for_each(|napi| napi.irq = None);
        netdev.irqs.clear();
    }
    let mut observation = Observation { before: after.clone(), after, attribution };
    name_observed_interrupts(&mut observation);
    let observed = interrupts(&observation.after);
    assert!(observed.len() > 1 || kind == ScheduledBy::Softirq, "{observed:?} of {named:?}");
    assert!(observed.iter().all(|(queue, irq)| named[queue] == *irq), "{observed:?} {named:?}");
}

/// The threads that polled, or ran the handlers, with their CPU and a time.
fn threads_are_known(snapshot: &Snapshot, named: &BTreeMap<u32, Irq>, kind: ScheduledBy) {
    let threads = |wanted| {
        let all = snapshot.net_threads.values();
        let has_run = |it: &&NetThread| it.time.is_some_and(|time| time.run_ns > 0);
        let is_wanted = move |it: &&NetThread| NetThreadKind::from_comm(&it.comm) == Some(wanted);
        all.filter(is_wanted).filter(has_run).collect::<Vec<_>>()
    };
    let cpus = snapshot.topology.online.len();
    let bound_to = |it: &&NetThread| it.bound && cpu_of(&it.comm) == it.ran_on;
    match kind {
        ScheduledBy::Wakeup => {
            let napis = threads(NetThreadKind::Napi);
            assert!(napis.len() > 1 && napis.iter().all(|it| it.is_movable()), "{napis:?}");
        }
        ScheduledBy::Thread => {
            let of_irqs = threads(NetThreadKind::Irq);
            let here = |it: &&NetThread| {
                let state = irq_of(&it.comm).and_then(|irq| snapshot.irqs.get(&irq));
                state.and_then(|state| state.effective.as_ref()?.single()) == it.ran_on
            };
            let is_named =
                |it: &&NetThread| named.values().any(|irq| irq_of(&it.comm) == Some(*irq));
            assert!(
                of_irqs.iter().filter(|it| is_named(it) && here(it)).count() > 1,
                "{of_irqs:?}"
            );
            let backlogs = threads(NetThreadKind::BacklogNapi);
            assert!(!backlogs.is_empty() && backlogs.iter().all(bound_to), "{backlogs:?}");
        }
        _ => {}
    }
    let softirqs = threads(NetThreadKind::Ksoftirqd);
    assert!(softirqs.len() == cpus, "{softirqs:?}");
}

/// The interrupt of each queue of eth0.
fn interrupts(snapshot: &Snapshot) -> BTreeMap<u32, Irq> {
    let queues = &snapshot.netdevs.named("eth0").unwrap().rx_queues;
    queues.iter().filter_map(|queue| Some((queue.index, queue.irq.as_ref()?.to))).collect()
}

/// The queue of each NAPI, as packets record it.
fn queues(attribution: &Attribution) -> BTreeMap<NapiId, u32> {
    let reads = attribution.consumption.iter().filter(|read| !read.approximate);
    reads.filter_map(|read| Some((read.napi?, read.rx_queue?))).collect()
}
