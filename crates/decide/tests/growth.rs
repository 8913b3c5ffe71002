//! What a look at a host costs grows no faster than the host: CPU time and heap at four times as
//! much of anything that a host can have many of.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Duration;

use netsilo_decide::judge::findings::{FindingId, check};
use netsilo_decide::judge::why::why;
use netsilo_decide::plan::{Goal, plan};
use netsilo_decide::report::Report;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::subject::Subject;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneForward, SceneNetdev, SceneQueue};
use netsilo_predict::live::forecast::forecast;
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;
use rustix::time::{ClockId, clock_gettime};

#[path = "../benches/synthetic/heap.rs"]
mod heap;

/// How many times the time or the peak of the heap may be at four times the size: `n log n` takes
/// 5, a square takes 16.
const MOST: f64 = 9.0;

fn queue(n: u32) -> SceneQueue {
    let cpu = CpuId(n % 16);
    SceneQueue {
        irq: Some(100 + n),
        cpus: CpuSet::from_cpu(cpu),
        packets_per_s: 1000,
        load: 0.001,
        readers: vec![reader(n)],
        wakeups_per_s: 100,
        ..SceneQueue::default()
    }
}

fn reader(n: u32) -> Reader {
    let comm = format!("reader-{n}");
    Reader { comm, cpu: CpuId(n * 7 % 16), bytes_per_s: 100_000, ..Reader::default() }
}

fn netdev(n: u32, queues: Vec<SceneQueue>) -> SceneNetdev {
    SceneNetdev {
        name: format!("eth{n}"),
        driver: "ixgbe".into(),
        queues,
        ..SceneNetdev::default()
    }
}

fn scene(netdevs: Vec<SceneNetdev>) -> Scene {
    let grid = Grid { cores: 16, ..Grid::default() };
    Scene { grid, netdevs, ..Scene::default() }
}

/// This many netdevs, each polled on another node than its reader's, so that `plan` moves it.
fn far(n: u32) -> Scene {
    let far = |it: u32| {
        let readers = vec![Reader { cpu: CpuId(8 + it % 8), bytes_per_s: 100_000, ..reader(it) }];
        let (cpus, load) = (CpuSet::from_cpu(CpuId(it % 8)), 0.8 / f64::from(n));
        netdev(it, vec![SceneQueue { cpus, readers, load, ..queue(it) }])
    };
    let grid = Grid { nodes: 2, cores: 8, ..Grid::default() };
    Scene { grid, netdevs: (0..n).map(far).collect(), ..Scene::default() }
}

/// A host with this many of something.
type Host = fn(u32) -> Scene;

const MANY: [(&str, u32, Host); 7] = [
    ("netdevs", 100, |n| scene((0..n).map(|n| netdev(n, vec![queue(n)])).collect())),
    ("netdevs that share an interrupt", 500, |n| {
        let load = 0.2 / f64::from(n);
        let shared = |n| SceneQueue { irq: Some(100), load, ..queue(n) };
        scene((0..n).map(|n| netdev(n, vec![shared(n)])).collect())
    }),
    ("ports of a bond", 100, |n| {
        let port = |n| SceneNetdev { master: Some("bond0".into()), ..netdev(n, vec![queue(n)]) };
        let bond = SceneNetdev { name: "bond0".into(), software: true, ..SceneNetdev::default() };
        scene((0..n).map(port).chain([bond]).collect())
    }),
    ("queues of a netdev", 100, |n| scene(vec![netdev(0, (0..n).map(queue).collect())])),
    ("readers of a queue", 400, |n| {
        let readers = (0..n).map(reader).collect();
        scene(vec![netdev(0, vec![SceneQueue { readers, ..queue(0) }])])
    }),
    ("links of forwarding", 100, |n| {
        let to = |n| SceneForward {
            to: format!("eth{n}"),
            queue: 0,
            packets_per_s: 10,
            bytes_per_s: 1000,
        };
        let first = SceneQueue { forwards: (1..n).map(to).collect(), ..queue(0) };
        let others = (1..n).map(|n| netdev(n, vec![queue(n)]));
        scene([netdev(0, vec![first])].into_iter().chain(others).collect())
    }),
    ("cpus", 32, |n| {
        let grid = Grid { cores: n, ..Grid::default() };
        Scene { grid, ..scene(vec![netdev(0, (0..8).map(queue).collect())]) }
    }),
];

/// What is done with an observation.
type Verb = fn(&Observation);

const VERBS: [(&str, Verb); 6] = [
    ("show", |seen| _ = black_box(Report::of(&analysis(seen)))),
    ("check", |seen| _ = black_box(check(&analysis(seen)))),
    ("plan", |seen| _ = black_box(plan(&analysis(seen), &Goal::default()))),
    ("explain", |seen| {
        let subjects = ["cpu0", "irq100", "eth0", "eth0 rx-0", "reader-0"];
        for subject in subjects.map(|it| it.parse::<Subject>().unwrap()) {
            _ = black_box(why(&analysis(seen), &subject).unwrap());
        }
    }),
    ("predict", |seen| {
        let analysis = analysis(seen);
        let goal = Goal { rps: Some(CpuSet::from_cpu(CpuId(1))), ..Goal::default() };
        let planned = plan(&analysis, &goal);
        let proposal = Proposal::new("rps", analysis.after(), &planned.changes);
        _ = black_box(forecast(&Work::new(&analysis).unwrap(), 1.0, &[proposal]));
    }),
    ("ndjson", |seen| {
        let line = serde_json::to_vec(seen).unwrap();
        _ = black_box(serde_json::from_slice::<Observation>(&line).unwrap());
    }),
];

fn analysis(seen: &Observation) -> Analysis<'_> {
    use netsilo_model::cost::weights::Costs;
    static COSTS: std::sync::LazyLock<Costs> = std::sync::LazyLock::new(Costs::default);
    Analysis::new(seen, &COSTS)
}

/// CPU time of this thread.
fn time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// CPU seconds, the least of some runs, and the peak of the heap in MB.
fn cost(verb: Verb, seen: &Observation) -> [f64; 2] {
    let once = || {
        let since = time();
        verb(seen);
        (time() - since).as_secs_f64()
    };
    let time = (0..3).map(|_| once()).fold(f64::INFINITY, f64::min);
    [time, heap::used(|| verb(seen)).0 as f64 / 1e6]
}

/// The costs of two observations, the second of a larger host. Measured again if the time is
/// `most` times as long: others on the hypervisor disturb some milliseconds, but not each attempt.
fn costs(verb: Verb, [few, many]: [&Observation; 2], most: f64) -> [[f64; 2]; 2] {
    const ATTEMPTS: usize = 5;
    let both = || [few, many].map(|seen| cost(verb, seen));
    let mut measured = both();
    for _ in 1..ATTEMPTS {
        if measured[1][0] < most * measured[0][0] {
            break;
        }
        measured = both();
    }
    measured
}

/// The heap is that of all threads.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn no_cost_grows_as_a_square() {
    let _alone = ALONE.lock();
    let mut all = Vec::new();
    for (what, n, host) in MANY {
        let [few, many] = [n, 4 * n].map(|n| host(n).observation());
        for (name, verb) in VERBS {
            let [few, many] = costs(verb, [&few, &many], MOST);
            for (unit, (few, many)) in ["s", "MB"].into_iter().zip(few.into_iter().zip(many)) {
                let line = format!("{name} with {what}: {few:.4} {unit}, then {many:.4} {unit}");
                all.push((many / few, line));
            }
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (ratio, line) in &all {
        println!("x{ratio:.1} {line}");
    }
    assert!(all.iter().all(|(ratio, _)| *ratio < MOST), "{all:#?}");
}

/// How many times the time or the peak of the heap may be at twice the size: `n log n` takes 2.3, a
/// square takes 4.
const MOST_OF_TWICE: f64 = 3.0;

#[test]
fn check_where_each_netdev_has_a_finding_costs_no_more_than_n_log_n() {
    let _alone = ALONE.lock();
    let sizes = [250, 500, 1000];
    let verb = VERBS.iter().find(|(name, _)| *name == "check").unwrap().1;
    let hosts = sizes.map(|n| {
        let seen = far(n).observation();
        let found = check(&analysis(&seen)).findings;
        let far = found.iter().filter(|it| it.id == FindingId::FarFromConsumers);
        assert_eq!(far.count(), n as usize);
        seen
    });
    for pair in hosts.windows(2) {
        let [few, many] = costs(verb, [&pair[0], &pair[1]], MOST_OF_TWICE);
        println!("seconds and MB with {sizes:?} netdevs: {few:.3?}, then {many:.3?}");
        let grows = |at: usize| many[at] / few[at];
        assert!(grows(0) < MOST_OF_TWICE && grows(1) < MOST_OF_TWICE, "{few:?}, then {many:?}");
    }
}

/// Allocations, at most, of one look at a host with 8 queues on 32 CPUs: a count that no load of
/// the machine disturbs. Five sixths of each were measured.
const ALLOCATIONS: [(&str, usize); 3] = [("check", 4550), ("plan", 1510), ("ndjson", 680)];

#[test]
fn a_look_at_a_host_allocates_no_more_than_it_did() {
    let _alone = ALONE.lock();
    let grid = Grid { cores: 32, ..Grid::default() };
    let netdevs = vec![netdev(0, (0..8).map(queue).collect())];
    let seen = Scene { grid, netdevs, ..Scene::default() }.observation();
    let verb = |name| VERBS.iter().find(|it| it.0 == name).unwrap().1;
    let used = ALLOCATIONS.map(|(name, most)| (name, heap::used(|| verb(name)(&seen)).1, most));
    println!("allocations, and at most: {used:?}");
    assert!(used.iter().all(|(_, used, most)| used <= most), "{used:?}");
}
