//! Properties of every plan, on random scenes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::place::IDLE_BELOW;
use crate::plan::measured_outcome::{BestCandidate, MeasuredOutcome, MeasuredState, SCHEMA};
use netsilo_model::change::{Change, Target, Value, apply_to, knobs};
use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_trial::stats::Estimate;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{IrqState, Writable};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{
    CpuLoad, Reader, Scene, SceneForward, SceneNetdev, SceneQueue,
};

mod examples;
mod isolate;

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
                // half of them at boot, half by a cpuset partition
                let isolated_partitions = isolated.iter().filter(|cpu| cpu.0 % 2 == 1).collect();
                Scene {
                    grid,
                    offline,
                    isolated: isolated.minus(&isolated_partitions),
                    isolated_partitions,
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
        let plan = plan(&observation, &goal);
        prop_assert_eq!(plan.refused_on(&observation.after), vec![], "of its own plan");
        for change in plan.changes {
            prop_assert_eq!(change.target.value_in(&observation.after), Some(change.old.clone()));
            prop_assert_ne!(&change.old, &change.new);
            prop_assert!(!change.reason.is_empty());
            if let (Target::IrqAffinity(_) | Target::NapiThread(_), Value::Cpus(cpus)) =
                (&change.target, &change.new)
            {
                prop_assert_eq!(cpus.len(), 1);
                prop_assert!(cpus.is_subset(&allowed) && cpus.is_subset(&topology.online));
                prop_assert!(!cpus.intersects(&topology.isolated_or_tickless()));
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

/// An outcome that says nothing yet of a workload or state.
pub(super) fn an_outcome() -> MeasuredOutcome {
    MeasuredOutcome {
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
        let outcome = MeasuredOutcome { workloads: vec![workload], state, ..an_outcome() };
        let matching = MatchingOutcome::new("1", &outcome, std::time::Duration::ZERO);
        let made = |settings| {
            let observation = scene.observe(settings);
            plan_as_measured(&Analysis::new(&observation, &costs), &Goal::default(), &matching)
        };
        let first = made(&present);
        let is_refused = first.measured.is_none();
        // a kthread that the winner left on several CPUs is not freed again, and nothing returns to
        // an isolated CPU
        let threaded = scene.netdevs.iter().any(|netdev| netdev.threaded);
        let is_apart = |cpu: CpuId| scene.isolated.or(&scene.isolated_partitions).contains(cpu);
        let apart = outcome.state.places.iter().any(|it| it.irq.is_some_and(is_apart));
        prop_assert!(!is_refused || threaded || apart, "{:?}", first.unchanged);
        if !is_refused {
            let again = made(&apply_to(&present, &first.changes));
            prop_assert!(again.measured.is_some() && again.changes.is_empty(), "{:#?}", again);
        }
    }
}
