//! What holds of the controller, in a closed loop with a synthetic machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;

use super::decision::{ControllerState, Decision, Effect, LogEntry, LogKind, WriteOutcome};
use super::policy::Policy;
use super::simulate::{Scheduler, World};
use crate::plan::{AlgorithmName, Goal, Xps};
use netsilo_model::change::{Change, Target, Value, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob};
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneForward, SceneNetdev, SceneQueue};

/// Windows per hour.
const HOUR: usize = 360;

fn policy(algorithm: AlgorithmName) -> Policy {
    Policy { goal: Goal { algorithm, ..Goal::default() }, ..Policy::default() }
}

/// The same, and the CPUs of each tx queue (XPS) follow its completion interrupt.
fn with_xps(policy: Policy, wanted: bool) -> Policy {
    Policy { goal: Goal { xps: wanted.then_some(Xps::Near), ..policy.goal }, ..policy }
}

fn algorithms() -> impl Strategy<Value = AlgorithmName> {
    select(AlgorithmName::ALL.to_vec())
}

/// Two sockets of four cores; each queue's interrupt on cpu 0, its reader on the other socket.
fn scene(queues: u32) -> Scene {
    let queue = |at: u32| SceneQueue {
        irq: Some(30 + at),
        cpus: CpuSet::from_cpu(CpuId(0)),
        xps_cpus: Some(CpuSet::new()),
        packets_per_s: 50_000,
        load: 0.2,
        readers: vec![Reader {
            comm: "redis".into(),
            cpu: CpuId(4 + at),
            bytes_per_s: 20_000_000,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let queues = (0..queues).map(queue).collect();
    let netdev =
        SceneNetdev { name: "eth0".into(), driver: "igb".into(), queues, ..SceneNetdev::default() };
    Scene {
        grid: Grid { nodes: 2, l2s: 4, ..Grid::default() },
        netdevs: vec![netdev],
        ..Scene::default()
    }
}

fn small(queues: u32, seed: u64) -> World {
    World::new(scene(queues), policy(AlgorithmName::NearConsumer), seed)
}

fn has(log: &[LogEntry], kind: LogKind) -> bool {
    log.iter().any(|entry| entry.kind == kind)
}

/// Without shrinking: a world follows from its seed, and another seed is no smaller world.
fn worlds(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(worlds(ProptestConfig::default().cases))]

    /// A cycle is one window. The first window that is wholly of the new workload is followed by
    /// one that confirms it; at the end of that one all is written. PROPTEST_CASES=5000 in a
    /// release build takes a minute.
    #[test]
    fn after_a_lasting_change_all_is_settled_within_two_cycles(
        seed: u64,
        algorithm in algorithms(),
        xps: bool,
    ) {
        let mut world = World::random(with_xps(policy(algorithm), xps), seed);
        for _ in 0..2 {
            world.steps(2);
            let made = world.made.len();
            // longer than the dwell: going back sooner would be a reversal
            for _ in 0..12 {
                let decision = world.step();
                prop_assert!(decision.conflicts.is_empty());
                prop_assert_eq!(decision.revert, vec![]);
            }
            prop_assert_eq!(world.made.len(), made, "{:?}", &world.made[made..]);
            world.shift();
        }
    }
}

proptest! {
    #![proptest_config(worlds(ProptestConfig::default().cases / 4))]

    /// 64 hours; PROPTEST_CASES=20000 makes it 5000.
    #[test]
    fn steady_noise_changes_nothing(seed: u64, algorithm in algorithms(), xps: bool) {
        let mut world = World::random(with_xps(policy(algorithm), xps), seed);
        world.noise = 0.05;
        world.steps(2);
        let made = world.made.len();
        world.steps(HOUR);
        prop_assert_eq!(&world.made[made..], &[]);
    }
}

proptest! {
    #![proptest_config(worlds(24))]

    #[test]
    fn no_minute_ever_holds_more_changes_than_the_budget(
        seed: u64,
        algorithm in algorithms(),
        most in 1u32..5,
    ) {
        let policy = Policy { changes_per_minute: most, ..policy(algorithm) };
        let mut world = World::random(policy, seed);
        world.scheduler = Scheduler { pull: 0.2, push: 0.2, flee: 0.2, wander: 0.1 };
        for _ in 0..10 {
            world.steps(10);
            world.shift();
        }
        for made in &world.made {
            let minute = made.at..made.at + Duration::from_secs(60);
            let within = world.made.iter().filter(|other| minute.contains(&other.at));
            prop_assert!(within.count() <= most as usize);
        }
    }
}

#[test]
fn the_random_machines_have_all_kinds_of_knobs_that_are_placed() {
    let mut kinds = BTreeSet::new();
    for seed in 0..30 {
        let mut world = World::random(with_xps(policy(AlgorithmName::Auto), true), seed);
        world.steps(2);
        world.shift();
        world.steps(14);
        let tx: Vec<Irq> = world.scene.netdevs[0]
            .queues
            .iter()
            .filter_map(|queue| queue.tx_irq)
            .map(Irq)
            .collect();
        kinds.extend(world.made.iter().map(|made| match &made.target {
            Target::IrqAffinity(knobs::IrqAffinity { irq, .. }) if tx.contains(irq) => {
                "tx interrupt"
            }
            Target::IrqAffinity(_) => "interrupt",
            Target::NapiThread(_) => "kthread",
            Target::XpsCpus(_) => "xps",
            other => panic!("{other}"),
        }));
    }
    assert_eq!(kinds, BTreeSet::from(["interrupt", "kthread", "tx interrupt", "xps"]));
}

/// A day with a task scheduler that moves readers to their interrupts and away from busy CPUs.
fn a_day(algorithm: AlgorithmName, scene: Scene) {
    let scheduler = Scheduler { pull: 0.1, push: 0.2, ..Scheduler::default() };
    let policy = with_xps(policy(algorithm), true);
    let mut world = World::new(scene.clone(), policy.clone(), 7);
    world.scheduler = scheduler;
    world.steps(24 * HOUR);
    assert_eq!(world.oscillations(), 0, "{algorithm}: {:?}", world.made);
    assert!(world.most_writes() <= 4, "{algorithm}: {:?}", world.made);

    let mut naive = World::new(scene, policy, 7);
    naive.scheduler = scheduler;
    (0..HOUR).for_each(|_| naive.step_without_controller());
    assert!(
        naive.most_writes() >= 10,
        "{algorithm}: no proof, as nothing oscillates without it: {:?}",
        naive.made.len()
    );
}

#[test]
fn a_day_with_a_pulling_scheduler_never_oscillates_with_near_consumer() {
    a_day(AlgorithmName::NearConsumer, scene(2));
}

#[test]
fn a_day_with_a_pulling_scheduler_never_oscillates_with_rfs_max_weight() {
    a_day(AlgorithmName::RfsMaxWeight, scene(2));
}

#[test]
fn a_day_with_a_pulling_scheduler_never_oscillates_with_auto() {
    a_day(AlgorithmName::Auto, scene(2));
}

#[test]
fn a_day_never_oscillates_with_kthreads_that_poll() {
    let mut scene = scene(2);
    scene.netdevs[0].threaded = true;
    scene.netdevs[0]
        .queues
        .iter_mut()
        .for_each(|queue| queue.kthread_cpus = CpuSet::from_cpu(CpuId(0)));
    a_day(AlgorithmName::Auto, scene);
}

#[test]
fn a_day_never_oscillates_with_tx_interrupts_apart() {
    let mut scene = scene(2);
    for (queue, at) in scene.netdevs[0].queues.iter_mut().zip(0..) {
        (queue.tx_irq, queue.tx_cpus) = (Some(60 + at), CpuSet::from_cpu(CpuId(0)));
    }
    a_day(AlgorithmName::Auto, scene);
}

/// The reader moves to the other socket whenever the interrupt arrives on its own: no write ever
/// reaches what is wanted.
#[test]
fn even_an_adversary_gets_ever_rarer_changes_and_without_the_hold_off_it_would_not() {
    let flee = Scheduler { flee: 1.0, ..Scheduler::default() };
    let mut world = small(1, 3);
    world.scheduler = flee;
    world.steps(24 * HOUR);
    let moves: Vec<Duration> = world.made.iter().map(|made| made.at).collect();
    assert!((4..=11).contains(&moves.len()), "{moves:?}");
    let gaps: Vec<Duration> = moves.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).skip(1).all(|pair| pair[1] >= pair[0]), "{gaps:?}");

    let none = Policy {
        hold_off: Duration::ZERO,
        dwell: Duration::ZERO,
        ..policy(AlgorithmName::NearConsumer)
    };
    let mut world = World::new(scene(1), none, 3);
    world.scheduler = flee;
    world.steps(6 * HOUR);
    assert!(world.made.len() > 40, "{}", world.made.len());
}

#[test]
fn a_workload_that_moves_every_hour_is_followed_every_time() {
    let mut world = small(2, 11);
    for hour in 0..12 {
        let socket = if hour % 2 == 0 { 4 } else { 0 };
        for (at, queue) in world.scene.netdevs[0].queues.iter_mut().enumerate() {
            queue.readers[0].cpu = CpuId(socket + at as u32);
        }
        world.steps(2);
        let made = world.made.len();
        world.steps(HOUR - 2);
        assert_eq!(world.made.len(), made, "hour {hour}: settled after two windows");
        for irq in [30, 31] {
            let cpu =
                world.settings.irqs[&Irq(irq)].requested.as_ref().and_then(CpuSet::single).unwrap();
            assert_eq!(cpu.0 / 4 * 4, socket, "hour {hour}: irq {irq} on the socket of its reader");
        }
    }
}

#[test]
fn a_single_odd_window_moves_nothing() {
    let mut world = small(1, 5);
    world.steps(10);
    let made = world.made.len();
    world.scene.netdevs[0].queues[0].readers[0].cpu = CpuId(1);
    world.step();
    world.scene.netdevs[0].queues[0].readers[0].cpu = CpuId(4);
    world.steps(10);
    assert_eq!(world.made.len(), made);
}

#[test]
fn states_go_from_settling_by_verifying_to_settled() {
    let mut world = small(2, 5);
    let states: Vec<ControllerState> = (0..9).map(|_| world.step().state).collect();
    let mut expected = vec![ControllerState::Settling; 2];
    expected.extend([ControllerState::Verifying; 5]);
    expected.extend([ControllerState::Settled; 2]);
    assert_eq!(states, expected);
}

#[test]
fn what_makes_a_megabyte_dearer_is_taken_back_and_tried_again_ever_more_rarely() {
    let mut world = small(1, 9);
    world.penalty = 2.5;
    let mut reverted = None;
    for _ in 0..12 {
        let decision = world.step();
        if !decision.revert.is_empty() {
            assert!(has(&decision.log, LogKind::Revert));
            let verdict = &decision.trials[0];
            assert_eq!(verdict.result, Effect::Worse, "{}", verdict.words);
            assert!(verdict.cost.unwrap().low > 1.05, "{}", verdict.words);
            reverted = Some(decision);
        }
    }
    assert!(reverted.is_some());
    assert_eq!(
        world.settings.irqs[&Irq(30)].requested,
        Some(CpuSet::from_cpu(CpuId(0))),
        "back where it was"
    );
    let decision = world.step();
    assert_eq!(decision.state, ControllerState::HoldOff);
    let tried = world.made.len();
    world.steps(24 * HOUR);
    assert!(
        world.made.len() - tried <= 18,
        "at most nine tries and reverts in a day: {}",
        world.made.len() - tried
    );
}

#[test]
fn what_is_better_is_confirmed_and_what_makes_no_difference_is_said_to() {
    let mut world = small(1, 9);
    world.penalty = 0.3;
    let log: Vec<LogEntry> = (0..10).flat_map(|_| world.step().log).collect();
    assert!(has(&log, LogKind::Confirm), "{log:#?}");
    let mut world = small(1, 9);
    let log: Vec<LogEntry> = (0..10).flat_map(|_| world.step().log).collect();
    assert!(has(&log, LogKind::NoDifference), "{log:#?}");
}

/// A router of one queue each way, the second netdev's interrupts far from the first one's.
fn router(penalty: f64) -> World {
    let mut scene = scene(1);
    let queue = &mut scene.netdevs[0].queues[0];
    queue.readers.clear();
    let forward =
        SceneForward { to: "eth1".into(), queue: 0, packets_per_s: 50_000, bytes_per_s: 0 };
    queue.forwards = vec![forward];
    let back =
        SceneQueue { irq: Some(40), cpus: CpuSet::from_cpu(CpuId(6)), ..SceneQueue::default() };
    let eth1 = SceneNetdev {
        name: "eth1".into(),
        driver: "igb".into(),
        queues: vec![back],
        ..SceneNetdev::default()
    };
    scene.netdevs.push(eth1);
    let mut world = World::new(scene, policy(AlgorithmName::Auto), 9);
    world.scene.netdevs[1].queues[0].packets_per_s = 25_000;
    world.scene.netdevs[1].queues[0].load = 0.1;
    world.penalty = penalty;
    world
}

#[test]
fn forwarding_is_judged_by_the_cost_of_a_packet() {
    for (penalty, kind, words) in [
        (0.3, LogKind::Confirm, "a thousand forwarded packets cost less: "),
        (2.5, LogKind::Revert, "a thousand forwarded packets cost more: "),
    ] {
        let mut world = router(penalty);
        let log: Vec<LogEntry> = (0..10).flat_map(|_| world.step().log).collect();
        let said = log.iter().find(|entry| entry.kind == kind && entry.why.contains(words));
        assert!(said.is_some(), "{log:#?}");
    }
}

#[test]
fn a_load_that_is_another_one_is_not_compared() {
    let mut world = small(1, 9);
    world.steps(2);
    world.scene.netdevs[0].queues[0].readers[0].bytes_per_s *= 5;
    let log: Vec<LogEntry> = (0..10).flat_map(|_| world.step().log).collect();
    let said = log.iter().find(|entry| entry.kind == LogKind::NotVerified).unwrap();
    assert!(said.why.contains("the load changed"), "{}", said.why);
}

fn by_someone_else(world: &mut World, irq: u32, cpu: u32) {
    world.settings.irqs.get_mut(&Irq(irq)).unwrap().requested = Some(CpuSet::from_cpu(CpuId(cpu)));
}

#[test]
fn a_knob_that_someone_else_writes_is_theirs_from_then_on_and_they_are_named() {
    let mut world = small(2, 5);
    world.steps(10);
    let made = world.made.len();
    let tuned = KnobOwner { name: "tuned".into(), pid: 7, writes: vec![OwnedKnob::IrqAffinity] };
    world.settings.writers = vec![tuned];
    by_someone_else(&mut world, 30, 1);
    let decision = world.step();
    assert!(has(&decision.log, LogKind::Yield));
    let [conflict] = decision.conflicts.as_slice() else { panic!("{:?}", decision.conflicts) };
    assert_eq!(
        (conflict.writer.as_str(), &conflict.theirs),
        ("tuned", &Value::Cpus(CpuSet::from_cpu(CpuId(1))))
    );
    world.settings.writers = Vec::new();
    world.steps(HOUR);
    world.shift();
    let decision = world.steps(HOUR);
    assert_eq!(decision.conflicts.len(), 1);
    assert!(world.made[made..].iter().all(|made| !matches!(
        made.target,
        Target::IrqAffinity(knobs::IrqAffinity { irq: Irq(30), .. })
    )));
    let policy = world.controller.policy().clone();
    world.controller.reconfigure(policy);
    world.scene.netdevs[0].queues[0].readers[0].cpu = CpuId(6);
    let decision = world.steps(3);
    assert_eq!(decision.conflicts, []);
    let cpu = world.settings.irqs[&Irq(30)].requested.as_ref().and_then(CpuSet::single).unwrap();
    assert!(cpu.0 >= 4 && cpu.0 != 6, "placed again: {cpu}");
}

#[test]
fn what_was_yielded_for_a_time_is_taken_back_after_it() {
    let yield_for = Some(Duration::from_secs(600));
    let mut world =
        World::new(scene(1), Policy { yield_for, ..policy(AlgorithmName::NearConsumer) }, 5);
    world.steps(10);
    by_someone_else(&mut world, 30, 1);
    assert_eq!(world.step().conflicts[0].writer, "unknown");
    assert_eq!(world.steps(59).conflicts.len(), 1);
    assert!(has(&world.step().log, LogKind::Regain));
}

#[test]
fn what_a_reset_undid_is_written_again_at_once_and_is_no_conflict() {
    let mut world = small(2, 5);
    world.steps(10);
    let ours = world.settings.irqs.clone();
    for event in [
        Event::LinkUp("eth0".into()),
        Event::CpuOnline(CpuId(3)),
        Event::Resumed,
        Event::Reset("eth0".into()),
    ] {
        for irq in [30, 31] {
            by_someone_else(&mut world, irq, 0);
        }
        world.controller.note_event(world.now, &event);
        let decision = world.step();
        assert_eq!(decision.conflicts, [], "{event:?}");
        assert_eq!(world.settings.irqs, ours, "{event:?}");
        assert!(has(&decision.log, LogKind::Reset) && has(&decision.log, LogKind::Reapply));
        world.steps(10);
    }
    assert_eq!(world.settings.irqs, ours, "and none of it counted as restlessness");
}

#[test]
fn what_someone_writes_after_a_reset_was_repaired_is_theirs() {
    let mut world = small(1, 5);
    world.steps(10);
    by_someone_else(&mut world, 30, 0);
    world.controller.note_event(world.now, &Event::Reset("eth0".into()));
    assert!(has(&world.step().log, LogKind::Reapply));
    by_someone_else(&mut world, 30, 0);
    assert!(has(&world.step().log, LogKind::Reapply), "the driver may take more than one step");
    assert_eq!(world.step().conflicts, []);
    by_someone_else(&mut world, 30, 1);
    assert_eq!(
        world.step().conflicts.len(),
        1,
        "30 s after the event, but a window has shown our value since"
    );
}

#[test]
fn an_event_of_another_netdev_explains_nothing() {
    let mut world = small(1, 5);
    world.steps(10);
    by_someone_else(&mut world, 30, 0);
    world.controller.note_event(world.now, &Event::LinkUp("eth1".into()));
    assert_eq!(world.step().conflicts.len(), 1);
}

#[test]
fn an_event_that_comes_after_its_effect_was_seen_takes_the_conflict_back() {
    let mut world = small(1, 5);
    world.steps(10);
    by_someone_else(&mut world, 30, 0);
    assert_eq!(world.step().conflicts.len(), 1);
    world.controller.note_event(world.now + Duration::from_secs(5), &Event::Reset("eth0".into()));
    let decision = world.step();
    assert_eq!(decision.conflicts, []);
    assert!(has(&decision.log, LogKind::Reapply));
}

#[test]
fn interrupts_with_new_numbers_are_placed_at_once_and_the_old_ones_forgotten() {
    let mut world = small(2, 5);
    world.steps(10);
    for (at, queue) in world.scene.netdevs[0].queues.iter_mut().enumerate() {
        queue.irq = Some(70 + at as u32);
    }
    world.settings = world.scene.settings();
    world.controller.note_event(world.now, &Event::Reset("eth0".into()));
    let decision = world.step();
    assert!(has(&decision.log, LogKind::Gone));
    assert_eq!(decision.writes.changes.len(), 2, "{:?}", decision.held);
    assert_eq!(world.controller.memory.knobs.len(), 2);
}

#[test]
fn of_a_netdev_that_is_gone_nothing_is_remembered() {
    let mut world = small(2, 5);
    world.steps(4);
    world.scene.netdevs.clear();
    world.settings = world.scene.settings();
    world.steps(2);
    assert!(world.controller.memory.knobs.is_empty());
}

#[test]
fn an_interrupt_whose_cpu_went_offline_is_placed_anew() {
    let mut world = small(1, 5);
    world.steps(10);
    let cpu = world.settings.irqs[&Irq(30)].requested.as_ref().and_then(CpuSet::single).unwrap();
    Arc::make_mut(&mut world.settings.topology).online.remove(cpu);
    world.settings.irqs.get_mut(&Irq(30)).unwrap().requested =
        Some(world.settings.topology.online.clone());
    world.controller.note_event(world.now, &Event::CpuOffline(cpu));
    let decision = world.step();
    assert_eq!(decision.conflicts, []);
    assert_eq!(decision.writes.changes.len(), 1);
}

#[test]
fn a_refused_knob_is_tried_again_ever_more_rarely() {
    let mut world = small(1, 5);
    let mut tries = Vec::new();
    for _ in 0..HOUR {
        let decision = world.look();
        let refused =
            |change: &Change| (change.target.clone(), WriteOutcome::Refused("EIO".into()));
        let outcomes: Vec<_> = decision.writes.changes.iter().map(refused).collect();
        if !outcomes.is_empty() {
            tries.push(world.now);
        }
        world.controller.wrote(world.now, &outcomes);
    }
    let gaps: Vec<u64> = tries.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert_eq!(gaps, [60, 120, 240, 480, 960], "{tries:?}");
}

#[test]
fn writes_that_nobody_makes_are_asked_for_again_and_told_once() {
    let mut world = small(1, 5);
    let decisions: Vec<Decision> = (0..4).map(|_| world.look()).collect();
    assert_eq!(
        decisions.iter().map(|it| it.writes.changes.len()).collect::<Vec<_>>(),
        [0, 1, 1, 1]
    );
    let told: Vec<bool> = decisions.iter().map(|it| has(&it.log, LogKind::Write)).collect();
    assert_eq!(told, [false, true, false, false], "and told once");
}

#[test]
fn a_policy_is_read_in_seconds_and_an_unknown_key_refused() {
    let policy: Policy = serde_json::from_str(r#"{ "dwell": 30, "yield-for": 600 }"#).unwrap();
    assert_eq!(
        (policy.dwell, policy.yield_for),
        (Duration::from_secs(30), Some(Duration::from_secs(600)))
    );
    assert_eq!(policy.hold_off, Policy::default().hold_off);
    assert!(serde_json::from_str::<Policy>(r#"{ "dwel": 30 }"#).is_err());
    let json = serde_json::to_string(&Policy::default()).unwrap();
    assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), Policy::default());
}

#[test]
fn a_load_that_comes_in_bursts_is_followed_as_quickly() {
    let mut world = small(2, 21);
    world.noise = 0.5;
    world.steps(30);
    for (at, queue) in world.scene.netdevs[0].queues.iter_mut().enumerate() {
        queue.readers[0].cpu = CpuId(at as u32);
    }
    world.steps(2);
    let made = world.made.len();
    assert!(
        world
            .settings
            .irqs
            .values()
            .all(|irq| irq.requested.as_ref().unwrap().highest() < Some(CpuId(4)))
    );
    world.steps(60);
    assert_eq!(world.made.len(), made, "{:?}", &world.made[made..]);
}
