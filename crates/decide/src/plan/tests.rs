//! Properties of every plan, on random scenes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::place::IDLE_BELOW;
use crate::plan::learned::{BestCandidate, Learned, MeasuredState, SCHEMA};
use netsilo_model::change::{Change, Target, Value, apply_to, knobs};
use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_stats::Estimate;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::{CoreKind, Distance};
use netsilo_model::snapshot::host::{IrqState, Writable};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{
    CpuLoad, Reader, Scene, SceneForward, SceneNetdev, SceneQueue,
};

/// All queues together take less than this share of a CPU, and all other work less than the rest.
///
/// So no CPU is ever overloaded, and load moves without changing.
const ALL_QUEUES: f64 = 0.87;
const ALL_ELSE: f64 = 0.113;

/// The plan of a goal for an observation, with the goal's weights.
fn plan(observation: &Observation, goal: &Goal) -> Plan {
    super::plan(&Analysis::new(observation, &goal.costs), goal)
}

/// First interrupt number of tx queues that have their own.
const FIRST_TX_IRQ: u32 = 60;

/// The next window may measure this share more or less of each load.
const NOISE: f64 = 0.04;

fn grids() -> impl Strategy<Value = Grid> {
    let grid = |nodes, llcs, l2s, cores, threads, siblings_apart| Grid {
        nodes,
        llcs,
        l2s,
        cores,
        threads,
        siblings_apart,
    };
    select(vec![
        grid(1, 1, 1, 1, 1, false),
        grid(1, 1, 4, 1, 1, false),
        grid(1, 1, 4, 1, 2, true),
        grid(2, 1, 2, 1, 2, false),
        grid(2, 2, 2, 2, 2, false),
        grid(1, 2, 1, 4, 2, true),
        grid(1, 4, 2, 1, 1, false),
    ])
}

fn sets(cpus: Vec<u32>, least: usize, most: usize) -> impl Strategy<Value = CpuSet> {
    let most = most.min(cpus.len());
    subsequence(cpus, least.min(most)..=most).prop_map(|cpus| cpus.into_iter().map(CpuId).collect())
}

/// Loads come from few values, so that ties happen. A packet costs the same on every CPU, as in
/// netsilo's model; packets of queues cost up to ten times as much as others' where the time of
/// their polls is measured.
fn queues(cpus: &[u32], count: usize) -> impl Strategy<Value = Vec<SceneQueue>> + use<> {
    let cpu = select(cpus.to_vec());
    let reader =
        (select(vec!["redis", "nginx", "iperf"]), cpu, select(vec![100u64, 500, 700, 10_000]));
    let reader = reader.prop_map(|(comm, cpu, bytes_per_s)| Reader {
        comm: comm.into(),
        cpu: CpuId(cpu),
        bytes_per_s,
        ..Reader::default()
    });
    let readers = prop::collection::vec(reader, 0..4);
    let writable = prop_oneof![9 => Just(Writable::Yes), 1 => Just(Writable::Managed)];
    let placed = || sets(cpus.to_vec(), 1, 3);
    let packets = select(vec![0u64, 10, 300, 700, 1000, 1000]);
    let cost = select(vec![0.1, 0.3, 1.0, 1.0]);
    let queue = (placed(), placed(), writable, packets, readers, placed(), cost).prop_map(
        move |(cpus, tx_cpus, writable, packets_per_s, readers, kthread_cpus, cost)| SceneQueue {
            cpus,
            tx_cpus,
            writable,
            load: load(packets_per_s, count) * cost,
            poll_time: true,
            packets_per_s,
            readers: if packets_per_s == 0 { Vec::new() } else { readers },
            kthread_cpus,
            rps_cpus: Some(CpuSet::new()),
            rps_flow_cnt: Some(0),
            xps_cpus: Some(CpuSet::new()),
            ..SceneQueue::default()
        },
    );
    prop::collection::vec(queue, count)
}

/// Load of one of `count` queues whose packets all cost the same.
fn load(packets_per_s: u64, count: usize) -> f64 {
    packets_per_s as f64 / 1000.0 * ALL_QUEUES / count as f64
}

fn scenes() -> impl Strategy<Value = Scene> {
    let shape = grids().prop_flat_map(|grid| {
        let all: Vec<u32> = grid.topology().online.iter().map(|cpu| cpu.0).collect();
        let most = all.len() / 3;
        (Just(grid), sets(all.clone(), 0, most), sets(all, 0, most))
    });
    shape.prop_flat_map(|(grid, offline, isolated)| {
        let online: Vec<u32> =
            grid.topology().online.minus(&offline).iter().map(|cpu| cpu.0).collect();
        let busy = (sets(online.clone(), 0, online.len()), select(vec![0.013, ALL_ELSE]));
        let queues = (1usize..7).prop_flat_map(move |count| queues(&online, count));
        let kind = select(vec!["combined", "split", "shared", "threaded"]);
        // Packet rates too low to matter, and rates at which the cost of a packet's path decides.
        let rate = (select(vec![1u64, 300]), select(vec![0u64, 2]), any::<bool>(), any::<bool>());
        (Just((grid, offline, isolated)), queues, busy, kind, any::<bool>(), rate).prop_map(
            |(
                (grid, offline, isolated),
                mut queues,
                (cpus, usr),
                kind,
                two,
                (times, wakeups, forwards, xps),
            )| {
                let count = queues.len();
                for (i, queue) in queues.iter_mut().enumerate() {
                    if kind == "threaded" {
                        // The time of kthreads' polls is not measured.
                        queue.load = load(queue.packets_per_s, count);
                    }
                    queue.packets_per_s *= times;
                    queue.wakeups_per_s = queue.packets_per_s * wakeups / 4;
                    if forwards
                        && two
                        && kind != "shared"
                        && i < count / 2
                        && queue.packets_per_s > 0
                    {
                        let (packets_per_s, bytes_per_s) =
                            (queue.packets_per_s / 2, queue.packets_per_s * 50);
                        queue.forwards = vec![SceneForward {
                            to: "eth1".into(),
                            queue: 0,
                            packets_per_s,
                            bytes_per_s,
                        }];
                    }
                    queue.irq = Some(30 + if kind == "shared" { i as u32 / 2 } else { i as u32 });
                    queue.tx_irq = (kind == "split").then_some(FIRST_TX_IRQ + i as u32);
                }
                let half = if two && kind != "shared" { queues.len() / 2 } else { 0 };
                let mut second = queues.split_off(half);
                // XPS of the egress: each tx queue sends for every second CPU, or every third, ...
                let count = second.len();
                for (i, queue) in second.iter_mut().enumerate().filter(|_| xps) {
                    let cpus = grid.topology().possible;
                    let own = cpus.iter().filter(|cpu| cpu.0 as usize % count == i);
                    queue.xps_cpus = Some(own.collect());
                }
                let device = |name: &str, node, queues| SceneNetdev {
                    name: name.into(),
                    driver: "igb".into(),
                    node: Some(node),
                    threaded: kind == "threaded",
                    queues,
                    ..SceneNetdev::default()
                };
                let netdevs =
                    vec![device("eth0", 0, queues), device("eth1", grid.nodes - 1, second)];
                let busy = vec![CpuLoad { cpus, usr }];
                Scene {
                    grid,
                    offline,
                    isolated,
                    busy,
                    netdevs,
                    rps_sock_flow_entries: Some(0),
                    ..Scene::default()
                }
            },
        )
    })
}

fn goals() -> impl Strategy<Value = Goal> {
    let cpus = CpuSet::first(2);
    let rps = select(vec![None, Some(CpuSet::new()), Some(cpus)]);
    let rfs = select(vec![None, Some(0), Some(1000)]);
    let xps = select(vec![None, Some(Xps::Near), Some(Xps::Off)]);
    (select(AlgorithmName::ALL.to_vec()), rps, rfs, xps)
        .prop_map(|(algorithm, rps, rfs, xps)| Goal { algorithm, rps, rfs, xps, ..Goal::default() })
}

/// Narrows the goal's pool to some of the CPUs that may take work.
fn narrowed(goal: Goal, scene: &Scene, keep: &[bool]) -> Goal {
    let cpus = scene.settings().topology.housekeeping();
    let pool: CpuSet = cpus.iter().filter(|cpu| keep[cpu.0 as usize % keep.len()]).collect();
    Goal { cpus: (!pool.is_empty()).then_some(pool), ..goal }
}

/// Load of each interrupt or kthread under these settings, by core.
fn placed(
    observation: &Observation,
    settings: &netsilo_model::snapshot::host::Snapshot,
) -> BTreeMap<CpuId, Vec<f64>> {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let mut vectors: BTreeMap<(Irq, u32), (CpuSet, f64)> = BTreeMap::new();
    for silo in analysis.silos.queues.iter().filter(|silo| silo.has_traffic()) {
        let irq = silo.irq.as_ref().unwrap().to;
        let threads = settings
            .netdevs
            .iter()
            .flat_map(|netdev| &netdev.napis)
            .filter_map(|napi| napi.thread.as_ref());
        let thread = silo
            .kthread
            .as_ref()
            .and_then(|own| threads.into_iter().find(|thread| thread.pid == own.pid));
        let cpus = thread.map_or_else(
            || settings.irqs[&irq].requested.clone().unwrap(),
            |thread| thread.cpus.clone(),
        );
        let (_, load) =
            vectors.entry((irq, thread.map_or(0, |thread| thread.pid))).or_insert((cpus, 0.0));
        *load += silo.own_share.values().sum::<f64>();
    }
    let mut cores: BTreeMap<CpuId, Vec<f64>> = BTreeMap::new();
    for (cpus, load) in vectors.into_values() {
        let core = settings.topology.core_of(cpus.lowest().unwrap()).lowest().unwrap();
        cores.entry(core).or_default().push(load);
    }
    cores
}

/// A router of virtio's shape: each CPU of a socket sends through that socket's tx queue. Moving
/// the receiving queue to the completions changes the egress queue, and with it the completions.
#[test]
fn forwarding_under_xps_settles_in_one_plan() {
    let queue = |irq, cpu: u32, tx_cpu: u32, xps| SceneQueue {
        irq: Some(irq),
        tx_irq: Some(irq + FIRST_TX_IRQ),
        cpus: CpuSet::from_cpu(CpuId(cpu)),
        tx_cpus: CpuSet::from_cpu(CpuId(tx_cpu)),
        xps_cpus: Some(CpuSet::parse_list(xps).unwrap()),
        ..SceneQueue::default()
    };
    let receives = |queue: SceneQueue| SceneQueue {
        packets_per_s: 50_000,
        load: 0.16,
        forwards: vec![SceneForward {
            to: "eth1".into(),
            queue: 0,
            packets_per_s: 50_000,
            bytes_per_s: 5_000_000,
        }],
        ..queue
    };
    let device = |name: &str, queues| SceneNetdev {
        name: name.into(),
        driver: "virtio_net".into(),
        queues,
        ..SceneNetdev::default()
    };
    let router = |rx_cpus: [u32; 2], tx_cpus: [u32; 2]| Scene {
        grid: Grid { nodes: 2, l2s: 2, threads: 2, ..Grid::default() },
        netdevs: vec![
            device(
                "eth0",
                vec![
                    receives(queue(30, rx_cpus[0], 0, "0-3")),
                    receives(queue(31, rx_cpus[1], 4, "4-7")),
                ],
            ),
            device(
                "eth1",
                vec![
                    queue(40, tx_cpus[0], tx_cpus[0], "0-3"),
                    queue(41, tx_cpus[1], tx_cpus[1], "4-7"),
                ],
            ),
        ],
        ..Scene::default()
    };
    let goal = Goal::default();
    for (rx_cpus, tx_cpus) in [([0, 1], [4, 2]), ([4, 5], [4, 2]), ([0, 4], [4, 0])] {
        let scene = router(rx_cpus, tx_cpus);
        let first = plan(&scene.observation(), &goal);
        let settings = apply_to(&scene.settings(), &first.changes);
        let observation = scene.observe(&settings);
        let again = plan(&observation, &goal).changes;
        assert_eq!(again, vec![], "rx on {rx_cpus:?}, tx on {tx_cpus:?}, after {first:#?}");
        let topology = &settings.topology;
        for forwarded in &observation.attribution.forwarded {
            let tx = &settings.netdevs[1].tx_queues[forwarded.tx_queue as usize];
            let completes = settings.irqs[&tx.irq.as_ref().unwrap().to].effective.clone().unwrap();
            let distance = topology.distance(forwarded.poll_cpu, completes.single().unwrap());
            assert!(distance < Distance::Remote, "{forwarded:?} is completed on {completes}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_placed_interrupt_goes_to_one_allowed_online_cpu_and_really_changes(
        scene in scenes(),
        goal in goals(),
        keep in prop::array::uniform4(any::<bool>()),
    ) {
        let goal = narrowed(goal, &scene, &keep);
        let observation = scene.observation();
        let topology = &observation.after.topology;
        let allowed = goal.cpus.clone().unwrap_or(topology.housekeeping());
        for change in plan(&observation, &goal).changes {
            prop_assert_eq!(change.target.value_in(&observation.after), Some(change.old.clone()));
            prop_assert_ne!(&change.old, &change.new);
            prop_assert!(!change.reason.is_empty());
            if let (Target::IrqAffinity(_) | Target::NapiThread(_), Value::Cpus(cpus)) =
                (&change.target, &change.new)
            {
                prop_assert_eq!(cpus.len(), 1);
                prop_assert!(cpus.is_subset(&allowed) && cpus.is_subset(&topology.online));
                prop_assert!(!cpus.intersects(&topology.isolated));
            }
        }
    }

    #[test]
    fn the_plan_of_the_state_after_the_plan_is_empty(
        scene in scenes(),
        goal in goals(),
        keep in prop::array::uniform4(any::<bool>()),
    ) {
        let goal = narrowed(goal, &scene, &keep);
        let observation = scene.observation();
        let first = plan(&observation, &goal);
        let after = apply_to(&observation.after, &first.changes);
        let settings_only = Observation { after: after.clone(), ..observation.clone() };
        let again = plan(&settings_only, &goal).changes;
        prop_assert_eq!(again, vec![], "with the load where it was, after {:#?}", first);
        let moved_along = scene.observe(&apply_to(&scene.settings(), &first.changes));
        let again = plan(&moved_along, &goal).changes;
        prop_assert_eq!(again, vec![], "with the load moved along, after {:#?}", first);
    }

    /// Vectors that stayed may be near a threshold, and tx queues and the interrupts of kthreads
    /// follow them, so only the vectors that were moved count here.
    #[test]
    fn measurement_noise_does_not_move_again_what_was_just_moved(
        scene in scenes(),
        goal in goals(),
        keep in prop::array::uniform4(any::<bool>()),
        noise in prop::array::uniform8(-NOISE..NOISE),
    ) {
        let goal = narrowed(goal, &scene, &keep);
        let first = plan(&scene.observation(), &goal);
        let mut next = scene.clone();
        let queues = next.netdevs.iter_mut().flat_map(|netdev| &mut netdev.queues);
        for (queue, noise) in queues.zip(noise) {
            queue.load *= 1.0 + noise;
        }
        for busy in &mut next.busy {
            busy.usr *= 1.0 + noise[7];
        }
        let observation = next.observe(&apply_to(&scene.settings(), &first.changes));
        let mut again = plan(&observation, &goal).changes;
        let threaded = scene.netdevs.iter().any(|netdev| netdev.threaded);
        let follows = |target: &Target| match target {
            Target::NapiThread(_) => false,
            Target::IrqAffinity(knob) => threaded || knob.irq.0 >= FIRST_TX_IRQ,
            _ => true,
        };
        let was_moved = |target: &Target| first.changes.iter().any(|it| it.target == *target);
        again.retain(|change| !follows(&change.target) && was_moved(&change.target));
        prop_assert_eq!(again, vec![], "after {:#?}", first);
    }

    #[test]
    fn no_two_heavy_queues_share_a_core_while_a_free_one_is_on_the_same_llc(scene in scenes()) {
        let observation = scene.observation();
        let topology = &observation.after.topology;
        let goal = Goal { algorithm: AlgorithmName::NearConsumer, ..Goal::default() };
        let plan = plan(&observation, &goal);
        let after = apply_to(&observation.after, &plan.changes);
        let new_cpu = |change: &Change| match (&change.target, &change.new) {
            (Target::IrqAffinity(knob), Value::Cpus(cpus)) if knob.irq.0 < FIRST_TX_IRQ => {
                cpus.single()
            }
            (Target::NapiThread(_), Value::Cpus(cpus)) => cpus.single(),
            _ => None,
        };
        let core = |cpu: CpuId| topology.core_of(cpu).lowest().unwrap();
        let moved: BTreeSet<CpuId> =
            plan.changes.iter().filter_map(new_cpu).map(core).collect();
        let placed = placed(&observation, &after);
        let queues = scene.netdevs.iter().flat_map(|netdev| &netdev.queues);
        let readers: CpuSet =
            queues.flat_map(|queue| &queue.readers).map(|reader| reader.cpu).collect();
        let is_busy = |load: &CpuLoad, cpu| load.cpus.contains(cpu) && load.usr >= IDLE_BELOW;
        let busy = |cpu: CpuId| scene.busy.iter().any(|load| is_busy(load, cpu));
        for (core, loads) in placed.iter().filter(|(core, _)| moved.contains(core)) {
            if loads.iter().filter(|load| **load >= IDLE_BELOW).count() < 2 {
                continue;
            }
            for cpu in topology.llc_of(*core).and(&topology.housekeeping()).iter() {
                let siblings = topology.core_of(cpu).and(&topology.online);
                let free = !placed.contains_key(&topology.core_of(cpu).lowest().unwrap())
                    && !siblings.intersects(&readers)
                    && !siblings.iter().any(busy);
                prop_assert!(
                    !free,
                    "two heavy queues on core {core}, but cpu {cpu} is free: {plan:#?}"
                );
            }
        }
    }

    #[test]
    fn the_order_in_which_things_were_counted_does_not_matter(scene in scenes(), goal in goals()) {
        let observation = scene.observation();
        let mut turned = observation.clone();
        turned.attribution.polls.reverse();
        turned.attribution.consumption.reverse();
        prop_assert_eq!(plan(&observation, &goal), plan(&turned, &goal));
    }
}

#[test]
fn several_queues_of_one_interrupt_make_one_change() {
    let queue = |packets_per_s, cpu| SceneQueue {
        irq: Some(30),
        cpus: CpuSet::from_cpu(CpuId(0)),
        packets_per_s,
        readers: vec![Reader {
            comm: "redis".into(),
            cpu: CpuId(cpu),
            bytes_per_s: 100,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev {
        name: "eth0".into(),
        queues: vec![queue(10, 2), queue(1000, 4)],
        ..SceneNetdev::default()
    };
    let grid = Grid { nodes: 2, l2s: 2, threads: 2, ..Grid::default() };
    let goal = Goal { algorithm: AlgorithmName::RfsMaxWeight, ..Goal::default() };
    let plan =
        plan(&Scene { grid, netdevs: vec![netdev], ..Scene::default() }.observation(), &goal);
    assert!(matches!(
        plan.changes[0].target,
        Target::IrqAffinity(knobs::IrqAffinity { irq: Irq(30), .. })
    ));
    assert_eq!(plan.changes.len(), 1);
    assert_eq!(
        plan.changes[0].new,
        Value::Cpus(CpuSet::from_cpu(CpuId(4))),
        "the heaviest decides"
    );
}

/// Six kthreads share two CPUs, so the third heavy kthread of either CPU depends on the load of
/// both.
///
/// An order by load to the per cent put 14.50% before or after 14.51%, and moved the same kthread
/// to the other CPU in each window.
#[test]
fn kthreads_of_about_the_same_load_stay_in_every_window() {
    let queue = |kthread, packets_per_s, reader| SceneQueue {
        cpus: CpuSet::from_cpu(CpuId(kthread)),
        kthread_cpus: CpuSet::from_cpu(CpuId(kthread)),
        packets_per_s,
        load: 0.145e-3 * packets_per_s as f64,
        readers: vec![Reader {
            comm: "redis".into(),
            cpu: CpuId(reader),
            bytes_per_s: 100,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let queues = [(3, 1000, 0), (6, 10, 2), (0, 1000, 1), (7, 1000, 1), (7, 1000, 2), (6, 10, 5)];
    let queues = queues
        .map(|(kthread, packets_per_s, reader)| queue(kthread, packets_per_s, reader))
        .to_vec();
    let netdev =
        SceneNetdev { name: "eth0".into(), threaded: true, queues, ..SceneNetdev::default() };
    let busy = vec![CpuLoad { cpus: CpuSet::from_cpu(CpuId(5)), usr: 0.113 }];
    let grid = Grid { llcs: 4, l2s: 2, ..Grid::default() };
    let scene = Scene { grid, busy, netdevs: vec![netdev], ..Scene::default() };
    let algorithm = AlgorithmName::NearConsumer;
    let goal =
        Goal { cpus: Some([1, 5].map(CpuId).into_iter().collect()), algorithm, ..Goal::default() };
    let first = plan(&scene.observation(), &goal);
    assert_eq!(first.changes.len(), 6);
    let after = scene.observe(&apply_to(&scene.settings(), &first.changes));
    assert_eq!(plan(&after, &goal).changes, []);
}

#[test]
fn an_impossible_cpu_number_causes_no_panic_and_uses_no_memory() {
    let queue = SceneQueue {
        irq: Some(30),
        cpus: CpuSet::from_cpu(CpuId(0)),
        packets_per_s: 1000,
        readers: vec![Reader {
            comm: "redis".into(),
            cpu: CpuId(2),
            bytes_per_s: 100,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev { name: "eth0".into(), queues: vec![queue], ..SceneNetdev::default() };
    let mut observation = Scene {
        grid: Grid { l2s: 4, ..Grid::default() },
        netdevs: vec![netdev],
        ..Scene::default()
    }
    .observation();
    let known = plan(&observation, &Goal::default());
    for number in [4_000_000_000, u32::MAX] {
        let cpu = observation.after.topology.cpus[&CpuId(0)].clone();
        Arc::make_mut(&mut observation.after.topology).cpus.insert(CpuId(number), cpu);
    }
    assert_eq!(plan(&observation, &Goal::default()), known);
}

#[test]
fn a_cpu_without_a_free_vector_is_not_chosen_and_the_plan_reports_it() {
    let queue = SceneQueue {
        irq: Some(30),
        cpus: CpuSet::from_cpu(CpuId(0)),
        packets_per_s: 1000,
        readers: vec![Reader {
            comm: "redis".into(),
            cpu: CpuId(1),
            bytes_per_s: 100,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev { name: "eth0".into(), queues: vec![queue], ..SceneNetdev::default() };
    let scene = Scene {
        grid: Grid { l2s: 3, ..Grid::default() },
        netdevs: vec![netdev],
        ..Scene::default()
    };
    let goal = Goal { algorithm: AlgorithmName::SameCpu, ..Goal::default() };
    let mut observation = scene.observation();
    observation.after.arch_interrupts.insert("LOC".into(), BTreeMap::new());
    for irq in 100..300 {
        let state = IrqState { effective: Some(CpuSet::from_cpu(CpuId(1))), ..IrqState::default() };
        observation.after.irqs.insert(Irq(irq), state);
    }
    let full = plan(&observation, &goal);
    assert!(full.changes.is_empty(), "{full:#?}");
    assert!(
        full.unchanged
            .iter()
            .any(|it| it.reason.contains("cpu 1 is without a free interrupt vector")),
        "{full:#?}"
    );
    observation.after.arch_interrupts.clear();
    assert_eq!(
        plan(&observation, &goal).changes.len(),
        1,
        "other architectures have no such limit"
    );
}

/// Two queues on one socket, each of which feeds both workers on the other socket.
#[test]
fn queues_that_feed_both_workers_of_the_other_socket_go_there() {
    let reader = |cpu| Reader {
        comm: "worker".into(),
        cpu: CpuId(cpu),
        bytes_per_s: 10_000_000,
        ..Reader::default()
    };
    let queue = |irq| SceneQueue {
        irq: Some(irq),
        cpus: CpuSet::from_cpu(CpuId(0)),
        packets_per_s: 40_000,
        load: 0.2,
        readers: vec![reader(5), reader(7)],
        ..SceneQueue::default()
    };
    let queues = vec![queue(30), queue(31)];
    let netdev = SceneNetdev {
        name: "eth0".into(),
        driver: "virtio_net".into(),
        queues,
        ..SceneNetdev::default()
    };
    let grid = Grid { nodes: 2, l2s: 4, ..Grid::default() };
    let observation = Scene { grid, netdevs: vec![netdev], ..Scene::default() }.observation();
    for algorithm in [AlgorithmName::Auto, AlgorithmName::NearConsumer, AlgorithmName::SameCpu] {
        let plan = plan(&observation, &Goal { algorithm, ..Goal::default() });
        let there = |change: &Change| match &change.new {
            Value::Cpus(cpus) => cpus.lowest() >= Some(CpuId(4)),
            _ => false,
        };
        assert_eq!(
            plan.changes.iter().filter(|change| there(change)).count(),
            2,
            "{algorithm}: {plan:#?}"
        );
    }
}

#[test]
fn a_queue_leaves_a_slow_core_of_a_hybrid_machine() {
    let queue = SceneQueue {
        irq: Some(30),
        cpus: CpuSet::from_cpu(CpuId(0)),
        packets_per_s: 50_000,
        load: 0.2,
        readers: vec![Reader { cpu: CpuId(1), bytes_per_s: 10_000_000, ..Reader::default() }],
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev { name: "eth0".into(), queues: vec![queue], ..SceneNetdev::default() };
    let grid = Grid { l2s: 4, ..Grid::default() };
    let scene = Scene { grid, netdevs: vec![netdev], ..Scene::default() };
    let chosen = |slow: &[u32], algorithm| {
        let mut settings = scene.settings();
        let topology = Arc::make_mut(&mut settings.topology);
        for (CpuId(number), cpu) in &mut topology.cpus {
            let is_slow = slow.contains(number);
            cpu.kind = if is_slow { CoreKind::Efficiency } else { CoreKind::Performance };
        }
        let plan = plan(&scene.observe(&settings), &Goal { algorithm, ..Goal::default() });
        plan.placements[0].cpus.to_string()
    };
    use AlgorithmName::{Dedicated, NearConsumer, Spread};
    for algorithm in [Spread, NearConsumer, Dedicated] {
        assert_eq!(chosen(&[0, 1], algorithm), "2", "{algorithm}");
        assert_eq!(chosen(&[2, 3], algorithm), "0", "{algorithm}");
    }
}

#[test]
fn an_interrupt_of_completions_is_a_placement_whether_it_moves_or_not() {
    let queue = |irq: u32, cpus: &str, tx_cpus: &str| SceneQueue {
        irq: Some(irq),
        cpus: CpuSet::parse_list(cpus).unwrap(),
        tx_irq: Some(irq + 10),
        tx_cpus: CpuSet::parse_list(tx_cpus).unwrap(),
        packets_per_s: 50_000,
        load: 0.2,
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev {
        name: "eth0".into(),
        driver: "virtio_net".into(),
        queues: vec![queue(30, "0", "0"), queue(31, "1", "3")],
        ..SceneNetdev::default()
    };
    let grid = Grid { l2s: 4, ..Grid::default() };
    let scene = Scene { grid, netdevs: vec![netdev], ..Scene::default() };
    let plan = plan(&scene.observation(), &Goal::default());
    let completions: Vec<(String, u32, String, bool)> = plan
        .placements
        .iter()
        .filter(|it| it.is_of_completions())
        .map(|it| (it.label.to_string(), it.irq.unwrap().0, it.cpus.to_string(), it.moves))
        .collect();
    assert_eq!(
        completions,
        [
            ("eth0 tx-0".to_owned(), 40, "0".to_owned(), false),
            ("eth0 tx-1".to_owned(), 41, "1".to_owned(), true)
        ]
    );
}

#[test]
fn one_cpu_is_advised_no_other() {
    let queue = SceneQueue {
        irq: Some(30),
        cpus: CpuSet::from_cpu(CpuId(0)),
        writable: Writable::Managed,
        packets_per_s: 50_000,
        load: 0.9,
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev {
        name: "eth0".into(),
        driver: "virtio_net".into(),
        queues: vec![queue],
        ..SceneNetdev::default()
    };
    let mut scene = Scene { netdevs: vec![netdev], ..Scene::default() };
    let reason =
        |scene: &Scene| plan(&scene.observation(), &Goal::default()).refusals[0].reason.clone();
    assert!(!reason(&scene).contains("RPS"), "{}", reason(&scene));
    scene.grid.l2s = 2;
    assert!(reason(&scene).contains("RPS"), "{}", reason(&scene));
}

/// An outcome that says nothing yet of a workload or state.
pub(super) fn an_outcome() -> Learned {
    Learned {
        schema: SCHEMA,
        netsilo: "0".into(),
        ended_s: 0,
        machine: MachineIdentity {
            hostname: "db1".into(),
            cpu_model: String::new(),
            cpus: 8,
            kernel: "6.12.1".into(),
            virtual_machine: None,
        },
        objective: "cpu-per-megabyte".into(),
        load: vec![],
        windows: 120,
        won: true,
        best: BestCandidate {
            name: "spread".into(),
            change: Some(Estimate { value: -0.12, low: -0.18, high: -0.06 }),
            relative: true,
        },
        workloads: vec![],
        state: MeasuredState::default(),
    }
}

proptest! {
    #[test]
    fn a_measured_placement_is_reached_from_any_other_one_and_then_stays(
        scene in scenes(),
        winner in select(AlgorithmName::ALL.to_vec()),
        other in select(AlgorithmName::ALL.to_vec()),
    ) {
        let settings = scene.settings();
        let placed_by = |algorithm| {
            let goal = Goal { algorithm, ..Goal::default() };
            let changes = plan(&scene.observation(), &goal).changes;
            (apply_to(&settings, &changes), changes)
        };
        let ((won, changes), (present, _)) = (placed_by(winner), placed_by(other));
        let (end, costs) = (scene.observe(&won), Costs::default());
        let analysis = Analysis::new(&end, &costs);
        let Some(workload) = Signature::new(&analysis, &BTreeMap::new()) else { return Ok(()) };
        let state = MeasuredState::new(&analysis, &workload, &changes, &changes);
        prop_assert_eq!(&state.changes, &vec![]);
        let learned = Learned { workloads: vec![workload], state, ..an_outcome() };
        let recalled = Recalled::new("1", &learned, std::time::Duration::ZERO);
        let made = |settings| {
            let observation = scene.observe(settings);
            plan_recalled(&Analysis::new(&observation, &costs), &Goal::default(), &recalled)
        };
        let first = made(&present);
        let is_refused = first.measured.is_none();
        // a kthread that the winner left on several CPUs is not freed again, and nothing returns to
        // an isolated CPU
        let threaded = scene.netdevs.iter().any(|netdev| netdev.threaded);
        let is_apart = |cpu: CpuId| scene.isolated.contains(cpu);
        let apart = learned.state.places.iter().any(|it| it.irq.is_some_and(is_apart));
        prop_assert!(!is_refused || threaded || apart, "{:?}", first.unchanged);
        if !is_refused {
            let again = made(&apply_to(&present, &first.changes));
            prop_assert!(again.measured.is_some() && again.changes.is_empty(), "{:#?}", again);
        }
    }
}

#[test]
fn an_exclusive_cpu_takes_an_interrupt_only_if_it_is_named() {
    let reader = Reader { cpu: CpuId(1), bytes_per_s: 100, ..Reader::default() };
    let queue = SceneQueue {
        irq: Some(30),
        cpus: CpuSet::from_cpu(CpuId(2)),
        packets_per_s: 1000,
        readers: vec![reader],
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev { name: "eth0".into(), queues: vec![queue], ..SceneNetdev::default() };
    let scene = Scene {
        grid: Grid { l2s: 3, ..Grid::default() },
        exclusive: CpuSet::parse_list("1-2").unwrap(),
        netdevs: vec![netdev],
        ..Scene::default()
    };
    let goal = Goal { algorithm: AlgorithmName::Spread, ..Goal::default() };
    let observation = scene.observation();
    let made = plan(&observation, &goal);
    let cpus = |plan: &Plan| match &plan.changes[..] {
        [change] => change.new.to_string(),
        changes => format!("{changes:?}"),
    };
    assert_eq!(cpus(&made), "0");
    assert!(
        made.unchanged.iter().any(|it| it.reason.contains("cpus 1-2 are exclusive to containers")),
        "{made:#?}"
    );
    let named = Goal { cpus: Some(CpuSet::from_cpu(CpuId(1))), ..goal };
    assert_eq!(cpus(&plan(&observation, &named)), "1");
}
