//! Plans by a measured outcome: from any state to the measured one, and then nothing.

use std::collections::BTreeMap;

use netsilo_model::change::{Change, Knob as _, apply_to, knobs};
use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::signature::Signature;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

use super::*;
use crate::plan::measured_outcome::MeasuredState;
use crate::plan::tests::an_outcome;
use crate::plan::{AlgorithmName, Override, Plan, plan, plan_as_measured};

const AGE: Duration = Duration::from_secs(3 * 3600 + 7);

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// A netdev with these interrupts, all on CPU 0; queue N is read on CPU N + 4.
fn scene(first_irq: u32) -> Scene {
    let queue = |at: u32| SceneQueue {
        irq: Some(first_irq + at),
        tx_irq: Some(first_irq + 20 + at),
        cpus: set("0"),
        tx_cpus: set("0"),
        kthread_cpus: set("0-7"),
        rps_cpus: Some(CpuSet::new()),
        packets_per_s: 20_000,
        load: 0.1,
        readers: vec![Reader {
            comm: "nginx".into(),
            cpu: CpuId(at + 4),
            bytes_per_s: 2_000_000,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let eth0 = SceneNetdev {
        name: "eth0".into(),
        driver: "igb".into(),
        queues: (0..3).map(queue).collect(),
        ..SceneNetdev::default()
    };
    Scene {
        grid: Grid { llcs: 2, cores: 4, ..Grid::default() },
        netdevs: vec![eth0],
        ..Scene::default()
    }
}

fn with_analysis<T>(observation: &Observation, then: impl FnOnce(&Analysis<'_>) -> T) -> T {
    let costs = Costs::default();
    then(&Analysis::new(observation, &costs))
}

fn spread(observation: &Observation) -> Vec<Change> {
    let goal = Goal { algorithm: AlgorithmName::Spread, ..Goal::default() };
    with_analysis(observation, |analysis| plan(analysis, &goal).changes)
}

fn signature(analysis: &Analysis<'_>) -> Signature {
    Signature::new(analysis, &BTreeMap::new()).unwrap()
}

/// The outcome of a search from the scene's own settings that these changes won, or nothing.
fn an_outcome_of(scene: &Scene, winner: &[Change], tried: &[Change]) -> MeasuredOutcome {
    let end = scene.observe(&apply_to(&scene.settings(), winner));
    let (workload, state) = with_analysis(&end, |analysis| {
        let workload = signature(analysis);
        let tried = [winner, tried].concat();
        (workload.clone(), MeasuredState::new(analysis, &workload, winner, &tried))
    });
    MeasuredOutcome { won: !winner.is_empty(), workloads: vec![workload], state, ..an_outcome() }
}

fn planned(outcome: &MeasuredOutcome, observation: &Observation, goal: &Goal) -> Plan {
    // what is kept goes through a file
    let text = serde_json::to_string(outcome).unwrap();
    let read: MeasuredOutcome = serde_json::from_str(&text).unwrap();
    assert_eq!((&read, read.check()), (outcome, Ok(())));
    let matching = MatchingOutcome::new("7", &read, AGE);
    with_analysis(observation, |analysis| plan_as_measured(analysis, goal, &matching))
}

/// Why a plan does not use the outcome; it is the model's plan then.
fn why_not(outcome: &MeasuredOutcome, observation: &Observation, goal: &Goal) -> String {
    let mut made = planned(outcome, observation, goal);
    let by_model = with_analysis(observation, |analysis| plan(analysis, goal));
    let why = made.unused_outcome.take().unwrap();
    assert_eq!((made, why.subject.as_str()), (by_model, "measured outcome 7"));
    why.reason.strip_prefix("not used: ").unwrap().to_owned()
}

fn targets(changes: &[Change]) -> Vec<String> {
    let mut all: Vec<String> =
        changes.iter().map(|change| format!("{}: {}", change.target, change.new)).collect();
    all.sort();
    all
}

#[test]
fn the_winner_is_planned_with_its_age_and_interval_and_then_nothing() {
    let scene = scene(30);
    let winner = spread(&scene.observation());
    let outcome = an_outcome_of(&scene, &winner, &[]);
    let made = planned(&outcome, &scene.observation(), &Goal::default());
    assert_eq!(targets(&made.changes), targets(&winner));
    let basis = "measured 3 h ago by tune: cpu-per-megabyte -12.0% (-18.0% .. -6.0%)";
    for change in &made.changes {
        assert!(change.reason.ends_with(basis), "{}", change.reason);
    }
    assert!(made.placements.iter().all(|it| it.basis == basis));
    assert_eq!(made.measured, Some(outcome.basis("7", AGE)));
    let by_model = with_analysis(&scene.observation(), |it| plan(it, &Goal::default()));
    assert_ne!(targets(&by_model.changes), targets(&winner), "the outcome makes a difference");
    let applied = scene.observe(&apply_to(&scene.settings(), &made.changes));
    let again = planned(&outcome, &applied, &Goal::default());
    assert_eq!((again.changes, again.measured), (vec![], made.measured));
}

#[test]
fn interrupts_are_found_by_their_queues_after_a_reboot() {
    let before = scene(30);
    let outcome = an_outcome_of(&before, &spread(&before.observation()), &[]);
    let after = scene(90);
    let made = planned(&outcome, &after.observation(), &Goal::default());
    assert!(made.measured.is_some());
    assert_eq!(targets(&made.changes), targets(&spread(&after.observation())));
}

#[test]
fn a_present_state_that_nothing_beats_stays_while_it_is_the_present_state() {
    let scene = scene(30);
    let outcome = an_outcome_of(&scene, &[], &spread(&scene.observation()));
    let made = planned(&outcome, &scene.observation(), &Goal::default());
    assert_eq!(made.changes, []);
    assert_eq!(
        made.measured.unwrap().in_words(),
        "measured 3 h ago by tune: no candidate was better; the best, spread: cpu-per-megabyte \
         -12.0% (-18.0% .. -6.0%)"
    );
    let by_model = with_analysis(&scene.observation(), |it| plan(it, &Goal::default()));
    assert!(!by_model.changes.is_empty(), "the model would change something");
    let moved = scene.observe(&apply_to(&scene.settings(), &spread(&scene.observation())));
    let why = why_not(&outcome, &moved, &Goal::default());
    assert!(why.starts_with("eth0 rx-") && why.contains("was measured on cpu 0 and"), "{why}");
}

#[test]
fn a_cpu_that_is_not_allowed_or_a_netdev_that_was_not_chosen_leaves_the_model() {
    let scene = scene(30);
    let winner = spread(&scene.observation());
    let outcome = an_outcome_of(&scene, &winner, &[]);
    let used = winner.iter().find_map(|change| match &change.new {
        Value::Cpus(cpus) => cpus.single(),
        _ => None,
    });
    let exclude = Goal { exclude: CpuSet::from_cpu(used.unwrap()), ..Goal::default() };
    let why = why_not(&outcome, &scene.observation(), &exclude);
    assert!(why.contains("was measured on cpu "), "{why}");
    // also where it is there already
    let there = scene.observe(&apply_to(&scene.settings(), &winner));
    let why = why_not(&outcome, &there, &exclude);
    assert!(why.ends_with("which is not allowed"), "{why}");
    let mut other = scene.clone();
    other.netdevs.push(SceneNetdev { name: "eth1".into(), ..SceneNetdev::default() });
    let eth1 = Goal { netdevs: vec!["eth1".into()], ..Goal::default() };
    let why = why_not(&outcome, &other.observation(), &eth1);
    assert!(why.contains("and stays on cpu 0"), "{why}");
}

#[test]
fn an_owner_of_the_interrupts_refuses_the_measured_plan_as_any_other() {
    let mut scene = scene(30);
    let outcome = an_outcome_of(&scene, &spread(&scene.observation()), &[]);
    let writes = vec![OwnedKnob::IrqAffinity];
    scene.knob_owners.push(KnobOwner { name: "irqbalance".into(), pid: 812, writes, bans: None });
    let refused = planned(&outcome, &scene.observation(), &Goal::default());
    assert!(refused.changes.is_empty() && !refused.refusals.is_empty());
    let even_so = Goal { even_if_owned: true, ..Goal::default() };
    let made = planned(&outcome, &scene.observation(), &even_so);
    assert!(made.measured.is_some() && !made.changes.is_empty() && made.even_if_owned);
}

fn eth0() -> NetdevIdentity {
    NetdevIdentity::from_netdev(&scene(30).settings().netdevs[0])
}

/// The change that sets RPS of the first queue from one value to another.
fn rps(old: &str, new: &str) -> Change {
    Change::new(knobs::RpsCpus { netdev: eth0(), queue: 0 }, set(old), set(new), "RPS")
}

#[test]
fn knobs_of_the_winner_are_planned_from_their_value_then_only() {
    let scene = scene(30);
    // also one whose value is a single CPU, as that of an interrupt is
    let one_cpu = an_outcome_of(&scene, &[rps("", "3")], &[]);
    let made = planned(&one_cpu, &scene.observation(), &Goal::default());
    assert_eq!(targets(&made.changes), targets(&[rps("", "3")]));
    let outcome = an_outcome_of(&scene, &[rps("", "0-3")], &[]);
    let made = planned(&outcome, &scene.observation(), &Goal::default());
    assert_eq!(targets(&made.changes), targets(&[rps("", "0-3")]));
    assert!(made.changes[0].reason.starts_with("measured 3 h ago by tune: "));
    let now = |cpus: &str| scene.observe(&apply_to(&scene.settings(), &[rps("", cpus)]));
    let again = planned(&outcome, &now("0-3"), &Goal::default());
    assert!(again.changes.is_empty() && again.measured.is_some());
    let why = why_not(&outcome, &now("5"), &Goal::default());
    assert_eq!(why, "eth0 rx-0 rps_cpus is 5; it was none or 0-3 when measured");
    let few = Goal { cpus: Some(set("0-2")), ..Goal::default() };
    let why = why_not(&outcome, &scene.observation(), &few);
    assert_eq!(why, "eth0 rx-0 rps_cpus would be 0-3; allowed are 0-2");
}

#[test]
fn a_knob_that_was_tried_and_has_another_value_since_leaves_the_model() {
    let scene = scene(30);
    let outcome = an_outcome_of(&scene, &spread(&scene.observation()), &[rps("", "0-3")]);
    let same = planned(&outcome, &scene.observation(), &Goal::default());
    assert!(same.measured.is_some(), "{:?}", same.unchanged);
    let now = scene.observe(&apply_to(&scene.settings(), &[rps("", "0-3")]));
    let why = why_not(&outcome, &now, &Goal::default());
    assert_eq!(why, "eth0 rx-0 rps_cpus is 0-3; it was none when measured");
}

#[test]
fn a_kthread_returns_to_its_cpu_and_a_queue_that_is_no_longer_threaded_leaves_the_model() {
    let mut threaded = scene(30);
    threaded.netdevs[0].threaded = true;
    let winner = spread(&threaded.observation());
    assert!(winner.iter().any(|it| matches!(it.target, Target::NapiThread(_))));
    let outcome = an_outcome_of(&threaded, &winner, &[]);
    let made = planned(&outcome, &threaded.observation(), &Goal::default());
    assert!(made.measured.is_some(), "{:?}", made.unchanged);
    assert_eq!(targets(&made.changes), targets(&winner));
    let applied = threaded.observe(&apply_to(&threaded.settings(), &made.changes));
    assert_eq!(planned(&outcome, &applied, &Goal::default()).changes, []);
    let why = why_not(&outcome, &scene(30).observation(), &Goal::default());
    assert_eq!(why, "eth0 rx-0 is not threaded now");
}

#[test]
fn a_change_that_may_interrupt_traffic_is_not_planned() {
    let mut scene = scene(30);
    scene.netdevs[0].most_queues = Some(8);
    let knob = knobs::Channels { netdev: eth0() };
    let present = knob.value_in(&scene.settings()).unwrap();
    let change = Change::new(knob, present, "combined=4".parse().unwrap(), "");
    let mut outcome = an_outcome_of(&scene, &[rps("", "0-3")], &[]);
    outcome.state.changes = vec![change];
    let why = why_not(&outcome, &scene.observation(), &Goal::default());
    assert!(why.starts_with("eth0 channels may interrupt traffic"), "{why}");
}

#[test]
fn a_netdev_that_the_goal_leaves_alone_keeps_its_knobs() {
    let scene = scene(30);
    let outcome = an_outcome_of(&scene, &[rps("", "0-3")], &[]);
    let left = Override { netdev: "eth0".into(), leave: true, ..Override::default() };
    let goal = |left| Goal { overrides: vec![left], ..Goal::default() };
    let why = why_not(&outcome, &scene.observation(), &goal(left.clone()));
    assert_eq!(why, "eth0 rx-0 rps_cpus is not of the chosen netdevs");
    let other = Override { netdev: "eth1".into(), ..left };
    assert!(planned(&outcome, &scene.observation(), &goal(other)).measured.is_some());
}

#[test]
fn an_outcome_says_something_of_its_machine_and_workload_only() {
    let scene = scene(30);
    let outcome = an_outcome_of(&scene, &[rps("", "0-3")], &[]);
    let now = with_analysis(&scene.observation(), signature);
    let machine = outcome.machine.clone();
    assert_eq!(outcome.differs_in_machine(&machine), None);
    assert_eq!(outcome.differs_in_workload(&now), None);
    let kernel = MachineIdentity { kernel: "6.13".into(), ..machine.clone() };
    let why = outcome.differs_in_machine(&kernel).unwrap();
    assert_eq!(why, "its kernel was 6.12.1, not 6.13");
    let host = MachineIdentity { hostname: "db2".into(), ..machine.clone() };
    assert!(outcome.differs_in_machine(&host).unwrap().starts_with("its host name is db1"));
    let mut other = now.clone();
    other.queues.truncate(1);
    let why = outcome.differs_in_workload(&other).unwrap();
    assert_eq!(why, "67% of the packets arrived on other queues");
    // with the winner in effect the workload may look different: either counts
    let both = MeasuredOutcome { workloads: vec![now, other.clone()], ..outcome };
    assert_eq!(both.differs_in_workload(&other), None);
}

#[test]
fn a_damaged_outcome_is_refused_with_the_reason() {
    let scene = scene(30);
    let outcome = an_outcome_of(&scene, &spread(&scene.observation()), &[rps("", "0-3")]);
    let why = |damage: fn(&mut MeasuredOutcome)| {
        let mut outcome = outcome.clone();
        damage(&mut outcome);
        outcome.check().unwrap_err()
    };
    assert_eq!(why(|it| it.state.places[0].queue = Subject::Machine), "machine is not a queue");
    assert_eq!(why(|it| it.best.change = None), "a winner without an interval");
    assert!(why(|it| it.state.others[0].value = Value::Count(1)).contains("rps_cpus"));
    assert!(why(|it| it.workloads[0].queues[0].packets_per_s = -1.0).contains("not a rate"));
}
