//! Relief of a CPU: the changes of the placement plan that move queues off it, or RPS onto others.

use std::collections::BTreeSet;

use netsilo_model::change::{Change, Target, knobs};
use netsilo_model::derive::net_threads::NetThreadWork;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;
use netsilo_model::machine::words::plural;
use netsilo_model::snapshot::subject::Subject;
use netsilo_predict::live::claim::CLEAR;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::judged::Judged;
use crate::judge::verdict::{RemedyVerdict, percent};
use crate::place::FILLS_A_CPU;
use crate::plan::moves::{kept, moves_one_of};
use crate::plan::threads;

/// From this share of a CPU's time in receive work, the CPU is overloaded.
pub(super) const OVERLOADED: f64 = 0.6;

/// Moves that free less than this share of an overloaded CPU's time do not relieve it.
const LEAST_RELIEF: f64 = 0.05;

/// A queue with at least this share of a full CPU's time is a cause of that.
const CAUSE: f64 = 0.2;

pub(super) fn own(silo: &Silo, cpu: CpuId) -> Evidence {
    let share = silo.own_share.get(&cpu).copied();
    let measure = share.map_or_else(|| Measure::Text("share unknown".into()), Measure::Share);
    Evidence::new(format!("{} polled here", silo.label()), measure, "its part of NET_RX time")
}

fn heaviest_of<'a>(load: &CpuWork<'a>) -> Option<&'a Silo> {
    let queues = load.queues.iter().copied();
    queues.max_by(|a, b| load.share(a).total_cmp(&load.share(b)))
}

/// The changes of placement that move queues off a CPU, or the reason why there are none.
pub(super) fn spread(judged: &Judged<'_>, load: &CpuWork<'_>) -> Remedy {
    let plan = &judged.plan;
    let goes = |silo: &&&Silo| {
        let subject = silo.subject();
        plan.placements
            .iter()
            .any(|it| it.label == subject && it.moves && !it.cpus.contains(load.cpu))
    };
    // On a faster CPU it takes less.
    let slowdown = judged.analysis.after().topology.slowdown(load.cpu);
    let alone = heaviest_of(load).filter(|silo| load.share(silo) / slowdown >= FILLS_A_CPU);
    let is_other = |silo: &&&Silo| alone.is_none_or(|alone| !std::ptr::eq(alone, **silo));
    let leaving: Vec<&Silo> = load.queues.iter().filter(goes).filter(is_other).copied().collect();
    let moved: f64 = leaving.iter().map(|silo| load.share(silo)).sum();
    let relieves = |change: &&Change| moved >= LEAST_RELIEF && moves_one_of(change, &leaving);
    let changes: Vec<Change> = plan.changes.iter().filter(relieves).cloned().collect();
    let gain = match (changes.is_empty(), load.queues.len()) {
        (true, 0) => Gain::Unknown(format!(
            "none of the rx queues with an interrupt is polled on this cpu: netsilo explain cpu{} \
             lists its work",
            load.cpu
        )),
        (true, _) if judged.has_one_cpu() => Gain::Nothing("there is no other cpu".into()),
        (true, 1) if load.queues[0].ignores_affinity => {
            Gain::Nothing(kept(&judged.plan, &load.queues))
        }
        (true, 1) => Gain::Nothing("moving its only queue would only make another cpu busy".into()),
        (true, _) if alone.is_some() => {
            let label = alone.map(Silo::label).unwrap_or_default();
            Gain::Nothing(format!("{label} fills it alone, and would fill another cpu as well"))
        }
        (true, _) if !leaving.is_empty() => {
            let little = percent(moved);
            Gain::Nothing(format!(
                "the queues that other cpus could take need {little} of its time"
            ))
        }
        (true, _) => Gain::Nothing(kept(&judged.plan, &load.queues)),
        (false, _) => {
            let cost = format!("they take {} of cpu {}'s time", percent(moved), load.cpu);
            judged.look.gain(&changes, &cost)
        }
    };
    let what = match (changes.is_empty(), leaving.len()) {
        (true, _) if load.queues.len() == 1 && !judged.has_one_cpu() => {
            "use more queues, or RPS onto idle cpus, if there are many flows: one flow stays on \
             one cpu"
                .to_owned()
        }
        (true, _) => {
            format!("find the cpu's work and its causes with netsilo explain cpu{}", load.cpu)
        }
        (false, 1) => format!("move {} to another cpu", leaving[0].label()),
        (false, n) if n == load.queues.len() => format!("move its {n} queues to other cpus"),
        (false, n) => format!("move {n} of its {} queues to other cpus", load.queues.len()),
    };
    Remedy {
        what,
        gain,
        cost: None,
        not_when: Some(
            "the load is one flow, which no placement can split, or every queue has data for every \
             reader"
                .into(),
        ),
        changes,
        interrupts_traffic: false,
    }
}

/// The changes that move kernel threads off a full CPU which poll no rx queue; `None` if there are
/// none.
pub(super) fn spread_threads(
    judged: &Judged<'_>,
    load: &CpuWork<'_>,
    room: &CpuSet,
) -> Option<Remedy> {
    let analysis = judged.analysis;
    let movable = threads::movable(analysis, load.cpu);
    let system = load.split.ticks.map_or(0.0, |ticks| ticks.sys);
    let assumed = system / movable.len().max(1) as f64;
    let shares = analysis.rates.cpus.iter().filter_map(|(cpu, it)| Some((*cpu, it.shares?)));
    let mut busy = shares.map(|(cpu, it)| (cpu, 1.0 - it.idle - it.iowait)).collect();
    let changes = threads::off(analysis, load.cpu, room, &mut busy, Some(assumed));
    let pids = changes.iter().filter_map(|change| match &change.target {
        Target::NapiThread(knob) => Some(knob.pid),
        _ => None,
    });
    let pids: BTreeSet<u32> = pids.collect();
    let moved = |it: &&NetThreadWork| pids.contains(&it.pid);
    let times: Option<Vec<f64>> =
        movable.iter().copied().filter(moved).map(|it| it.ran()).collect();
    let took = times.map_or("their times are not recorded".to_owned(), |times| {
        format!("they ran {} of cpu {}'s time", percent(times.iter().sum()), load.cpu)
    });
    let gain = Gain::Unknown(format!("no rx queue of these threads is known; {took}"));
    let what = format!(
        "move {} of its {} that poll to cpus with room",
        changes.len(),
        plural(movable.len(), "kernel thread")
    );
    (!changes.is_empty()).then(|| Remedy::new(what, gain).by(changes))
}

/// The remedy with the best forecast for the netdev whose queue fills a CPU that no placement
/// relieves.
pub(super) fn best_verdict(judged: &Judged<'_>, load: &CpuWork<'_>) -> Option<Remedy> {
    let cause = heaviest_of(load).filter(|silo| load.share(silo) >= CAUSE)?;
    let gain = |it: &RemedyVerdict| it.gain.forecast().unwrap_or(0.0);
    let netdev = Subject::Netdev(cause.netdev.name.clone());
    let of_netdev = judged.verdicts.iter().filter(|it| it.subject == netdev);
    let verdicts = of_netdev.filter(|it| gain(it) >= CLEAR);
    let best = verdicts.max_by(|a, b| gain(a).total_cmp(&gain(b)))?;
    Some(Remedy {
        what: format!("try {}: {} fills this cpu", best.name(), cause.label()),
        gain: best.gain.clone(),
        cost: None,
        not_when: best.not_when.clone(),
        changes: best.changes.clone(),
        interrupts_traffic: false,
    })
}

/// CPUs that are mostly idle and may process packets, but for one of them.
pub(super) fn room(topology: &Topology, all: &[CpuWork<'_>], full: CpuId) -> CpuSet {
    let apart = topology.reserved();
    let has_room = |it: &&CpuWork<'_>| it.cpu != full && it.has_room() && !apart.contains(it.cpu);
    all.iter().filter(has_room).map(|it| it.cpu).collect()
}

/// RPS over idle CPUs for the queues that fill CPUs, of all netdevs together: the packets that one
/// CPU forwards and another completes are limited by both. `None` unless more load then fits.
pub(super) fn steer_all(judged: &Judged<'_>, all: &[CpuWork<'_>], room: &CpuSet) -> Option<Remedy> {
    let full = all.iter().filter(|it| it.receiving() >= OVERLOADED && it.is_full());
    let causes =
        full.flat_map(|it| it.queues.iter().copied().filter(|silo| it.share(silo) >= CAUSE));
    let mut queues: Vec<&Silo> = causes.collect();
    let mut seen = BTreeSet::new();
    queues.retain(|silo| seen.insert(silo.label()));
    let remedy = steer(judged, &queues, room)?;
    remedy.gain.forecast().is_some_and(|gain| gain >= CLEAR).then_some(remedy)
}

/// RPS of these queues over CPUs with idle time; `None` if it is there already.
pub(super) fn steer(judged: &Judged<'_>, queues: &[&Silo], room: &CpuSet) -> Option<Remedy> {
    let room = room.minus(&judged.analysis.after().topology.dropped_from_rps());
    let change = |silo: &&Silo| {
        let knob = knobs::RpsCpus { netdev: silo.netdev.clone(), queue: silo.queue? };
        let old = silo.rps_cpus.clone().filter(|old| silo.leased.is_none() && !room.is_subset(old));
        let reason = format!("the cpu that polls {} has no idle time left", silo.label());
        Some((silo.label(), Change::new(knob, old?, room.clone(), reason)))
    };
    let (labels, changes): (Vec<String>, Vec<Change>) = queues.iter().filter_map(change).unzip();
    if changes.is_empty() || room.is_empty() {
        return None;
    }
    let gain = judged.look.gain(&changes, "their cpus have no idle time left");
    let what = format!("spread {} with RPS over the idle cpus {room}", labels.join(" and "));
    Some(Remedy {
        what,
        gain,
        cost: Some("an IPI and a softirq for every packet or every few packets".into()),
        not_when: Some("one flow is the load: a flow stays on one cpu".into()),
        changes,
        interrupts_traffic: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::findings::{Finding, FindingId, check};
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue, SceneThread};

    /// Netdevs with a queue each, on these CPUs of four, with these loads and RPS.
    fn scene(netdevs: &[(&str, u32, f64, &str)]) -> Scene {
        let netdev = |(at, (name, cpu, load, rps)): (usize, &(&str, u32, f64, &str))| {
            let queue = SceneQueue {
                irq: Some(30 + at as u32),
                cpus: CpuSet::from_cpu(CpuId(*cpu)),
                rps_cpus: CpuSet::parse_list(rps).ok(),
                packets_per_s: 90_000,
                load: *load,
                ..SceneQueue::default()
            };
            let (name, driver) = ((*name).to_owned(), "igb".to_owned());
            SceneNetdev { name, driver, queues: vec![queue], ..SceneNetdev::default() }
        };
        let netdevs = netdevs.iter().enumerate().map(netdev).collect();
        Scene { grid: Grid { l2s: 4, ..Grid::default() }, netdevs, ..Scene::default() }
    }

    fn found(scene: &Scene, id: FindingId) -> Option<Finding> {
        let check = check(&Analysis::new(&scene.observation(), &Costs::default()));
        check.findings.into_iter().find(|finding| finding.id == id)
    }

    /// The first remedy, and its changes in words.
    fn remedy(scene: &Scene, id: FindingId) -> (String, Vec<String>) {
        let finding = found(scene, id).unwrap();
        let remedy = &finding.remedies[0];
        let change = |change: &Change| format!("{}: {}", change.target, change.new);
        (remedy.what.clone(), remedy.changes.iter().map(change).collect())
    }

    #[test]
    fn rps_is_judged_for_all_netdevs_whose_cpus_are_full_together() {
        let router = scene(&[("eth0", 0, 0.97, ""), ("eth1", 2, 0.97, "")]);
        let (what, changes) = remedy(&router, FindingId::SoftirqOneCpu);
        assert_eq!(what, "spread eth0 rx-0 and eth1 rx-0 with RPS over the idle cpus 1,3");
        assert_eq!(changes, ["eth0 rx-0 rps_cpus: 1,3", "eth1 rx-0 rps_cpus: 1,3"]);
        let spread = scene(&[("eth0", 0, 0.97, "1-3"), ("eth1", 2, 0.97, "1,3")]);
        let (what, changes) = remedy(&spread, FindingId::SoftirqOneCpu);
        assert!(changes.is_empty(), "RPS is on already: {what}");
    }

    #[test]
    fn rps_to_itself_is_widened_if_the_cpu_is_full_and_else_switched_off() {
        let changed = |load| {
            let scene = scene(&[("eth0", 0, load, "0")]);
            remedy(&scene, FindingId::RpsToItself).1
        };
        assert_eq!(changed(0.97), ["eth0 rx-0 rps_cpus: 1-3"]);
        assert_eq!(changed(0.5), ["eth0 rx-0 rps_cpus: none"]);
    }

    #[test]
    fn kernel_threads_that_fill_a_cpu_together_move_apart_and_bound_ones_stay() {
        let host = |threads: &[(&str, f64)], without_time| {
            let thread = |(comm, load): &(&str, f64)| SceneThread {
                comm: (*comm).to_owned(),
                cpus: CpuSet::from_cpu(CpuId(3)),
                load: *load,
                without_time,
            };
            let threads = threads.iter().map(thread).collect();
            Scene { grid: Grid { l2s: 4, ..Grid::default() }, threads, ..Scene::default() }
        };
        let wifi =
            [("napi/phy0-7", 0.5), ("mt76-tx phy0", 0.47), ("kworker/3:1-wg-crypt-wg0", 0.01)];
        let (what, changes) = remedy(&host(&wifi, false), FindingId::SoftirqOneCpu);
        assert_eq!(what, "move 1 of its 2 kernel threads that poll to cpus with room");
        assert_eq!(changes, ["kthread mt76-tx phy0 (pid 701): 0"], "the heavier one stays");
        let unknown = found(&host(&wifi, true), FindingId::SoftirqOneCpu).unwrap();
        assert!(unknown.title.contains("up to 98%"), "{}", unknown.title);
        assert!(matches!(unknown.remedies[0].gain, Gain::Unknown(_)));
        let bound = [("kworker/3:1-wg-crypt-wg0", 0.98)];
        let (_, changes) = remedy(&host(&bound, false), FindingId::SoftirqOneCpu);
        assert!(changes.is_empty(), "{changes:?}");
        let alone =
            found(&host(&[("napi/phy0-7", 0.97)], false), FindingId::SoftirqOneCpu).unwrap();
        assert!(alone.writable().is_none(), "it would fill another cpu as well");
        let softirqs = [("ksoftirqd/3", 0.97)];
        assert!(
            found(&host(&softirqs, false), FindingId::SoftirqOneCpu).is_none(),
            "counted there"
        );
    }

    #[test]
    fn a_queue_of_a_thousandth_is_neither_relief_nor_company() {
        let mut scene = scene(&[("eth0", 0, 0.97, "1-3"), ("eth1", 0, 0.001, "1-3")]);
        scene.netdevs[1].queues[0].packets_per_s = 100;
        let finding = found(&scene, FindingId::SoftirqOneCpu).unwrap();
        let remedy = &finding.remedies[0];
        assert!(remedy.changes.is_empty(), "{remedy:#?}");
        assert!(found(&scene, FindingId::QueuesShareCore).is_none());
        scene.netdevs[1].queues[0].packets_per_s = 2_000;
        assert!(found(&scene, FindingId::QueuesShareCore).is_some());
    }
}
