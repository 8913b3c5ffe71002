//! Each write is a verification: confirmed, without a difference, or reverted.

use super::world::World;
use super::{HOUR, has, policy, scene, small};
use netsilo_decide::control::{ControllerState, LogEntry, LogKind, MeasuredEffect};
use netsilo_decide::plan::AlgorithmName;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::synthetic::scene::{SceneForward, SceneNetdev, SceneQueue};

#[test]
fn what_makes_a_megabyte_dearer_is_taken_back_and_tried_again_ever_more_rarely() {
    let mut world = small(1, 9);
    world.penalty = 2.5;
    let mut reverted = None;
    for _ in 0..12 {
        let decision = world.step();
        if !decision.revert.is_empty() {
            assert!(has(&decision.log, LogKind::Revert));
            let verdict = &decision.verifications[0];
            assert_eq!(verdict.result, MeasuredEffect::Worse, "{}", verdict.words);
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
    let confirmed = log.iter().find(|entry| entry.kind == LogKind::Confirm).unwrap();
    assert!(confirmed.target.is_some(), "the only knob of the batch is named: {confirmed:?}");
    let mut world = small(1, 9);
    let log: Vec<LogEntry> = (0..10).flat_map(|_| world.step().log).collect();
    assert!(has(&log, LogKind::NoDifference), "{log:#?}");
}

/// A router with one queue each way. The second netdev's interrupts are far from the first one's.
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

/// Something unknown to the model processes the packets on one CPU. So no move of an interrupt has
/// the predicted effect, and each is reverted.
#[test]
fn what_does_not_come_as_expected_is_taken_back_and_tried_again_ever_more_rarely() {
    let mut world = World::new(scene(2), policy(AlgorithmName::Auto), 9);
    world.scene.netdevs[0].queues.iter_mut().for_each(|queue| queue.wakeups_per_s = 20_000);
    world.processed_on = Some(CpuId(1));
    let log: Vec<LogEntry> = (0..12).flat_map(|_| world.step().log).collect();
    let said = log.iter().find(|entry| entry.kind == LogKind::Revert);
    let said = said.unwrap_or_else(|| panic!("{log:#?}"));
    assert!(said.why.starts_with("the expected improvement did not come"), "{}", said.why);
    for irq in [30, 31] {
        let cpus = world.settings.irqs[&Irq(irq)].requested.clone();
        assert_eq!(cpus, Some(CpuSet::from_cpu(CpuId(0))), "back where it was");
    }
    let made = world.made.len();
    world.steps(24 * HOUR);
    let made = world.made.len() - made;
    assert!(made <= 2 * 18, "at most nine tries and reverts in a day of each: {made}");
}

#[test]
fn what_comes_as_expected_stays() {
    let mut world = World::new(scene(2), policy(AlgorithmName::Auto), 9);
    world.scene.netdevs[0].queues.iter_mut().for_each(|queue| queue.wakeups_per_s = 20_000);
    let log: Vec<LogEntry> = (0..12).flat_map(|_| world.step().log).collect();
    assert!(has(&log, LogKind::Confirm) && !has(&log, LogKind::Revert), "{log:#?}");
    let made = world.made.len();
    world.steps(HOUR);
    assert_eq!(world.made.len(), made);
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

#[test]
fn states_go_from_settling_by_verifying_to_settled() {
    let mut world = small(2, 5);
    let states: Vec<ControllerState> = (0..9).map(|_| world.step().state).collect();
    let mut expected = vec![ControllerState::Settling; 2];
    expected.extend([ControllerState::Verifying; 5]);
    expected.extend([ControllerState::Settled; 2]);
    assert_eq!(states, expected);
}
