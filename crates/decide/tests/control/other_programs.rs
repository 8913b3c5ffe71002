//! Knobs that other programs, drivers and the kernel change, and writes that fail.

use std::sync::Arc;
use std::time::Duration;

use super::world::World;
use super::{HOUR, by_someone_else, has, policy, scene, small};
use netsilo_decide::control::{Decision, LogKind, Policy, WriteResult};
use netsilo_decide::plan::AlgorithmName;
use netsilo_model::change::{Change, Target, Value, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::host::{IrqBans, KnobOwner, OwnedKnob};

#[test]
fn a_knob_that_someone_else_writes_is_theirs_from_then_on_and_they_are_named() {
    let mut world = small(2, 5);
    world.steps(10);
    let made = world.made.len();
    let tuned = KnobOwner {
        name: "tuned".into(),
        pid: 7,
        writes: vec![OwnedKnob::IrqAffinity],
        bans: None,
    };
    world.settings.knob_owners = vec![tuned];
    by_someone_else(&mut world, 30, 1);
    let decision = world.step();
    assert!(has(&decision.log, LogKind::Yield));
    let [conflict] = decision.conflicts.as_slice() else { panic!("{:?}", decision.conflicts) };
    assert_eq!(
        (conflict.owner.as_str(), &conflict.theirs),
        ("tuned", &Value::Cpus(CpuSet::from_cpu(CpuId(1))))
    );
    world.settings.knob_owners = Vec::new();
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
    assert_eq!(world.step().conflicts[0].owner, "unknown");
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

fn on_cpu(world: &World, irq: u32) -> Option<CpuId> {
    world.settings.irqs[&Irq(irq)].requested.as_ref().and_then(CpuSet::single)
}

fn irqbalance() -> KnobOwner {
    KnobOwner {
        name: "irqbalance".into(),
        pid: 812,
        writes: vec![OwnedKnob::IrqAffinity],
        bans: None,
    }
}

/// An irqbalance that answers and has no list.
fn answering(pid: u32) -> KnobOwner {
    let bans = IrqBans { start_time: 1, irqs: [].into(), most_bytes: 499 };
    KnobOwner { pid, bans: Some(bans), ..irqbalance() }
}

fn times_told(world: &World) -> usize {
    world.made.iter().filter(|it| matches!(it.target, Target::IrqbalanceBan(_))).count()
}

#[test]
fn irqbalance_is_told_once_to_leave_interrupts_alone_and_a_later_one_again() {
    let mut world = small(2, 5);
    world.settings.knob_owners = vec![answering(812)];
    world.steps(10);
    assert_eq!(times_told(&world), 1);
    assert!(matches!(world.made[0].target, Target::IrqbalanceBan(_)), "before the first move");
    assert!([30, 31].iter().all(|irq| world.settings.knob_owners[0].leaves_alone(Irq(*irq))));
    // It is started again, and moves an interrupt before a window shows the new process.
    let ours = world.settings.irqs.clone();
    world.settings.knob_owners = vec![answering(900)];
    by_someone_else(&mut world, 30, 0);
    let decision = world.step();
    assert_eq!((decision.conflicts, times_told(&world)), (vec![], 2));
    assert!(has(&decision.log, LogKind::Reset) && has(&decision.log, LogKind::Reapply));
    assert_eq!(world.settings.irqs, ours);
    // Also if it has moved nothing yet.
    world.steps(10);
    world.settings.knob_owners = vec![answering(901)];
    world.step();
    assert_eq!((times_told(&world), &world.settings.irqs), (3, &ours));
}

#[test]
fn what_another_program_takes_from_irqbalances_list_is_irqbalances() {
    let mut world = small(2, 5);
    world.settings.knob_owners = vec![answering(812)];
    world.steps(20);
    world.settings.knob_owners = vec![answering(812)];
    by_someone_else(&mut world, 30, 0);
    let decision = world.step();
    assert_eq!(decision.conflicts[0].owner, "irqbalance");
    world.steps(HOUR);
    assert_eq!(times_told(&world), 1);
}

#[test]
fn a_list_that_irqbalance_did_not_take_is_sent_again() {
    let mut world = small(2, 5);
    world.settings.knob_owners = vec![answering(812)];
    let asked = |decision: &Decision| {
        let changes = &decision.writes.changes;
        changes.iter().find(|it| matches!(it.target, Target::IrqbalanceBan(_))).cloned()
    };
    let first = (0..10).find_map(|_| asked(&world.look())).unwrap();
    let refused = WriteResult::Refused("no answer".into());
    world.controller.wrote(world.now, &[(first.target.clone(), refused)]);
    assert_eq!(asked(&world.look()), Some(first.clone()));
    // Stopped before, as while an apply waits for its confirm.
    world.controller.wrote(world.now, &[]);
    assert_eq!(asked(&world.look()), Some(first));
}

/// What others have banned leaves no room in the list of a new irqbalance, and then does.
#[test]
fn a_list_that_was_too_long_is_sent_when_it_fits() {
    let mut world = small(2, 5);
    world.settings.knob_owners = vec![answering(812)];
    world.steps(10);
    let full = IrqBans { start_time: 2, irqs: (100..220).map(Irq).collect(), most_bytes: 499 };
    world.settings.knob_owners = vec![KnobOwner { bans: Some(full), ..answering(900) }];
    by_someone_else(&mut world, 30, 0);
    world.steps(3);
    assert_eq!(times_told(&world), 1);
    assert_eq!(on_cpu(&world, 30), Some(CpuId(0)), "moved, it would be moved back");
    let room = IrqBans { start_time: 2, irqs: [].into(), most_bytes: 499 };
    world.settings.knob_owners = vec![KnobOwner { bans: Some(room), ..answering(900) }];
    world.steps(10);
    assert_eq!(times_told(&world), 2);
}

/// Two interrupts that need no change, so that the controller has written nothing.
fn placed_by_others() -> World {
    let mut world = small(2, 5);
    for irq in [30, 31] {
        by_someone_else(&mut world, irq, irq - 24);
    }
    world.steps(10);
    assert_eq!(world.made, []);
    world
}

/// irqbalance moved interrupts 140 s after a CPU had come back. The daemon wrote them again as
/// re-applications, at once and regardless of their gain, because it assumed that the CPU event had
/// created them.
#[test]
fn what_another_program_moves_some_time_after_a_cpu_came_back_is_not_written_again() {
    for event in [Event::CpuOnline(CpuId(3)), Event::LinkUp("eth0".into()), Event::Resumed] {
        let mut world = placed_by_others();
        world.controller.note_event(world.now, &event);
        world.steps(14);
        for irq in [30, 31] {
            by_someone_else(&mut world, irq, 0);
        }
        for _ in 0..HOUR {
            assert!(!has(&world.step().log, LogKind::Reapply), "{event:?}");
        }
        assert_eq!(world.made, [], "{event:?}: the workload is the same");
    }
}

#[test]
fn a_value_that_someone_writes_over_what_a_reset_left_is_theirs() {
    // The driver leaves the interrupt in an equally good place, so the plan keeps it and nothing is
    // written.
    let mut world = small(1, 5);
    world.steps(10);
    let ours = on_cpu(&world, 30).unwrap();
    let made = world.made.len();
    let as_good = if ours == CpuId(6) { 5 } else { 6 };
    by_someone_else(&mut world, 30, as_good);
    world.controller.note_event(world.now, &Event::CpuOnline(CpuId(3)));
    assert!(has(&world.step().log, LogKind::Reset));
    world.steps(12);
    assert_eq!(world.made.len(), made, "{:?}", world.made);
    by_someone_else(&mut world, 30, 0);
    let decision = world.step();
    let [conflict] = decision.conflicts.as_slice() else { panic!("{decision:?}") };
    assert_eq!(conflict.ours, Value::Cpus(CpuSet::from_cpu(ours)));
    assert_eq!(conflict.theirs, Value::Cpus(CpuSet::from_cpu(CpuId(0))));
    world.steps(HOUR);
    assert_eq!(world.made.len(), made, "left to the other program");
}

#[test]
fn a_cpu_explains_nothing_where_a_program_runs_that_writes_interrupts() {
    let mut policy = policy(AlgorithmName::NearConsumer);
    policy.goal.even_if_owned = true;
    let mut world = World::new(scene(2), policy, 5);
    world.steps(10);
    let made = world.made.len();
    world.settings.knob_owners = vec![irqbalance()];
    world.step();
    by_someone_else(&mut world, 30, 0);
    world.controller.note_event(world.now, &Event::CpuOnline(CpuId(3)));
    let decision = world.step();
    let [conflict] = decision.conflicts.as_slice() else { panic!("{decision:?}") };
    assert_eq!(conflict.owner, "irqbalance");
    // An event that is announced after its effect was seen reverts nothing either.
    by_someone_else(&mut world, 31, 0);
    assert_eq!(world.step().conflicts.len(), 2);
    world.controller.note_event(world.now, &Event::CpuOnline(CpuId(3)));
    assert_eq!(world.steps(HOUR).conflicts.len(), 2);
    assert_eq!(world.made.len(), made, "nothing is written against it");
    // If only the driver resets a knob, irqbalance has nothing to do with it.
    world.settings.knob_owners.clear();
    let policy = world.controller.policy().clone();
    world.controller.reconfigure(policy);
    world.steps(10);
    world.settings.knob_owners = vec![irqbalance()];
    world.step();
    by_someone_else(&mut world, 30, 0);
    world.controller.note_event(world.now, &Event::Reset("eth0".into()));
    assert!(has(&world.step().log, LogKind::Reapply));
}

#[test]
fn what_a_reset_moved_that_was_never_written_is_placed_as_after_a_change_of_the_workload() {
    let mut world = placed_by_others();
    for irq in [30, 31] {
        by_someone_else(&mut world, irq, 0);
    }
    world.controller.note_event(world.now, &Event::Reset("eth0".into()));
    world.step();
    assert_eq!(world.made, []);
    world.step();
    assert_eq!(world.made.len(), 2, "two windows want it, and it is no noise");
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
    assert_eq!(world.controller.tracked().count(), 2);
}

#[test]
fn of_a_netdev_that_is_gone_nothing_is_remembered() {
    let mut world = small(2, 5);
    world.steps(4);
    world.scene.netdevs.clear();
    world.settings = world.scene.settings();
    world.steps(2);
    assert_eq!(world.controller.tracked().count(), 0);
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
        let refused = |change: &Change| (change.target.clone(), WriteResult::Refused("EIO".into()));
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
