//! A controller whose plans follow measured outcomes, with the same hysteresis and verification.

use std::collections::BTreeMap;

use super::world::World;
use super::{HOUR, by_someone_else, has, policy, scene};
use netsilo_decide::control::LogKind;
use netsilo_decide::plan::find_outcome::KeptOutcome;
use netsilo_decide::plan::measured_outcome::{
    BestCandidate, MeasuredOutcome, MeasuredState, SCHEMA,
};
use netsilo_decide::plan::{AlgorithmName, Goal, plan};
use netsilo_model::change::{Change, apply_to};
use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_trial::stats::Estimate;

/// Two queues on CPU 0, each read on a CPU of the other socket.
fn world() -> World {
    World::new(scene(2), policy(AlgorithmName::Auto), 5)
}

/// The changes that move the interrupts to these CPUs from the current state.
fn spread_over(world: &World, cpus: &str) -> Vec<Change> {
    let (observation, costs) = (world.scene.observe(&world.settings), Costs::default());
    let cpus = Some(CpuSet::parse_list(cpus).unwrap());
    let goal = Goal { algorithm: AlgorithmName::Spread, cpus, ..Goal::default() };
    plan(&Analysis::new(&observation, &costs), &goal).changes
}

/// A search that these changes won in the current state. Without changes, nothing was better than
/// that state.
fn measured(world: &World, id: &str, winner: &[Change]) -> KeptOutcome {
    let costs = Costs::default();
    let end = world.scene.observe(&apply_to(&world.settings, winner));
    let analysis = Analysis::new(&end, &costs);
    let workload = Signature::new(&analysis, &BTreeMap::new()).unwrap();
    let outcome = MeasuredOutcome {
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
        won: !winner.is_empty(),
        best: BestCandidate {
            name: "spread".into(),
            change: Some(Estimate { value: -0.12, low: -0.18, high: -0.06 }),
            relative: true,
        },
        state: MeasuredState::new(&analysis, &workload, winner, &[]),
        workloads: vec![workload],
    };
    KeptOutcome { id: id.into(), outcome }
}

/// The CPUs of the interrupts.
fn cpus(settings: &Snapshot) -> Vec<u32> {
    let cpu = |irq| settings.irqs[&Irq(irq)].requested.as_ref().and_then(CpuSet::single);
    [30, 31].into_iter().filter_map(cpu).map(|cpu| cpu.0).collect()
}

/// A world that is idle by the model. Then an outcome with another placement becomes known.
fn with_a_new_outcome() -> (World, Vec<u32>, Vec<u32>) {
    let mut world = world();
    world.steps(30);
    let by_model = cpus(&world.settings);
    let winner = spread_over(&world, "6-7");
    assert_eq!(winner.len(), 2, "elsewhere than by the model: {by_model:?}");
    world.outcomes = vec![measured(&world, "7", &winner)];
    let best = cpus(&apply_to(&world.settings, &winner));
    world.controller.outcomes_changed();
    (world, by_model, best)
}

#[test]
fn an_outcome_is_followed_after_two_windows_and_then_nothing_is_written() {
    let (mut world, by_model, best) = with_a_new_outcome();
    let decision = world.step();
    assert!(has(&decision.log, LogKind::Follow), "{:?}", decision.log);
    assert_eq!((cpus(&world.settings), decision.writes.changes), (by_model, vec![]));
    let decision = world.step();
    assert_eq!(cpus(&world.settings), best);
    assert!(decision.writes.changes.iter().all(|it| it.reason.contains("measured 1 min ago")));
    let made = world.made.len();
    let decision = world.steps(HOUR);
    assert_eq!((world.made.len(), decision.plan.changes), (made, vec![]));
    assert_eq!(decision.plan.measured.unwrap().outcome, "7");
}

#[test]
fn a_forgotten_outcome_leaves_the_placement_to_the_model() {
    let (mut world, by_model, _) = with_a_new_outcome();
    world.steps(30);
    world.outcomes.clear();
    world.controller.outcomes_changed();
    let decision = world.step();
    assert!(has(&decision.log, LogKind::Estimate) && decision.plan.measured.is_none());
    // the third change of these knobs comes after the hold-off
    world.steps(HOUR);
    assert_eq!(cpus(&world.settings), by_model);
}

#[test]
fn where_nothing_was_better_than_the_present_state_nothing_is_moved() {
    let mut world = world();
    world.outcomes = vec![measured(&world, "7", &[])];
    let decision = world.steps(HOUR);
    assert_eq!((world.made.len(), decision.plan.measured.unwrap().won), (0, false));
}

#[test]
fn an_outcome_that_needs_another_programs_knob_is_not_used() {
    let (mut world, ..) = with_a_new_outcome();
    world.steps(30);
    by_someone_else(&mut world, 30, 3);
    let decision = world.steps(2);
    assert_eq!((decision.plan.measured.as_ref(), decision.conflicts.len()), (None, 1));
    let why = &decision.plan.unused_outcome.as_ref().unwrap().reason;
    assert!(
        why.contains("irq 30") && why.ends_with("is left to another program (unknown)"),
        "{why}"
    );
    let (made, conflict) = (world.made.len(), cpus(&world.settings)[0]);
    world.steps(HOUR);
    assert_eq!(cpus(&world.settings)[0], conflict);
    assert!(world.made[made..].iter().all(|it| !it.target.to_string().contains("irq 30")));
}

#[test]
fn an_outcome_that_makes_it_worse_is_reverted() {
    let (mut world, by_model, best) = with_a_new_outcome();
    world.steps(2);
    assert_eq!(cpus(&world.settings), best);
    world.penalty = 3.0;
    let mut log = Vec::new();
    for _ in 0..7 {
        log.extend(world.step().log);
    }
    assert!(has(&log, LogKind::Revert), "{log:?}");
    assert_eq!(cpus(&world.settings), by_model);
}

#[test]
fn a_workload_at_the_edge_of_the_measured_one_moves_nothing_to_and_fro() {
    let (mut world, ..) = with_a_new_outcome();
    // measured at 50000 packets per second and queue; down to a third of that, the workload is the
    // same
    for queue in &mut world.scene.netdevs[0].queues {
        queue.packets_per_s /= 3;
        queue.readers[0].bytes_per_s /= 3;
    }
    let mut followed = [0, 0];
    for _ in 0..6 * HOUR {
        followed[usize::from(world.step().plan.measured.is_some())] += 1;
    }
    assert!(followed.iter().all(|windows| *windows > 0), "{followed:?}");
    assert_eq!(world.oscillations(), 0, "{followed:?}");
    assert!(world.most_writes() <= 3, "{:?}", world.made);
}
