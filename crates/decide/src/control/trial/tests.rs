//! Tests of trials, on scenes.

use super::*;
use crate::plan::Goal;
use netsilo_model::change::{Value, knobs};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::ids::Irq;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

/// Two sockets; one queue on CPU `at`, read on CPU `reader`.
fn scene(at: u32, reader: u32) -> Scene {
    let reader = Reader { cpu: CpuId(reader), bytes_per_s: 20_000_000, ..Reader::default() };
    let queue = SceneQueue {
        irq: Some(30),
        cpus: CpuSet::from_cpu(CpuId(at)),
        packets_per_s: 50_000,
        load: 0.2,
        wakeups_per_s: 10_000,
        readers: vec![reader],
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev {
        name: "eth0".into(),
        driver: "igb".into(),
        queues: vec![queue],
        ..SceneNetdev::default()
    };
    Scene {
        grid: Grid { nodes: 2, l2s: 4, ..Grid::default() },
        netdevs: vec![netdev],
        ..Scene::default()
    }
}

/// What a trial of a move between the two scenes shows under this algorithm.
fn trial(before: &Scene, after: &Scene, algorithm: AlgorithmName) -> TrialResult {
    let policy = Policy { goal: Goal { algorithm, ..Goal::default() }, ..Policy::default() };
    let (observations, costs) = ([before.observation(), after.observation()], Costs::default());
    let [old, new] = observations.each_ref().map(|it| Analysis::new(it, &costs));
    let target = Target::from(knobs::IrqAffinity {
        irq: Irq(30),
        action: "eth0-TxRx-0".into(),
        netdev: None,
    });
    let cpus = |scene: &Scene| Value::Cpus(scene.netdevs[0].queues[0].cpus.clone());
    let change = Change::untyped(target, cpus(before), cpus(after), "a test").unwrap();
    let napis = {
        let window = Window::new(Duration::ZERO, &old);
        window.napis([&change.target])
    };
    let mut trials = Trials::default();
    for second in 1..4 {
        trials.sample(&Window::new(Duration::from_secs(second), &old), &policy);
    }
    trials.begin(Duration::from_secs(3), Duration::ZERO, vec![change], napis, &policy);
    (4..20)
        .find_map(|second| {
            let window = Window::new(Duration::from_secs(second), &new);
            trials.sample(&window, &policy).pop()
        })
        .unwrap()
        .result(&policy)
}

#[test]
fn data_that_is_read_on_another_socket_for_no_gain_is_a_reason_to_go_back() {
    let (near, far) = (scene(4, 5), scene(0, 5));
    let result = trial(&near, &far, AlgorithmName::Auto);
    assert_eq!(result.result, Effect::Worse, "{}", result.words);
    assert!(result.words.starts_with("data is no longer read under"), "{}", result.words);
    let back = trial(&far, &near, AlgorithmName::Auto);
    assert_ne!(back.result, Effect::Worse, "{}", back.words);
    let wanted = trial(&near, &far, AlgorithmName::LeastLoaded);
    assert_eq!(wanted.result, Effect::NoDifference, "{}", wanted.words);
}

#[test]
fn a_cost_that_fell_is_shown_with_its_interval_in_percent() {
    let (before, mut after) = (scene(4, 5), scene(6, 5));
    after.netdevs[0].queues[0].load = 0.1;
    let result = trial(&before, &after, AlgorithmName::Auto);
    assert_eq!(result.result, Effect::Better);
    let words = "a received megabyte costs less: 10.00 -> 5.00 ms of cpu time, -51% to -49% (99%, ";
    assert!(result.words.starts_with(words), "{}", result.words);
}

#[test]
fn another_load_is_not_compared() {
    let (before, mut after) = (scene(4, 5), scene(4, 5));
    after.netdevs[0].queues[0].readers[0].bytes_per_s *= 3;
    let result = trial(&before, &after, AlgorithmName::Auto);
    assert_eq!(result.result, Effect::Unknown);
    assert_eq!(result.words, "not verified: the load changed, 20.0 to 60.0 MB/s");
}

#[test]
fn readers_that_moved_themselves_prove_nothing() {
    let result = trial(&scene(4, 5), &scene(6, 1), AlgorithmName::Auto);
    assert_eq!(result.result, Effect::NoDifference, "{}", result.words);
}

#[test]
fn wakeups_across_cpus_tell_what_cpu_time_does_not() {
    let (apart, same) = (scene(4, 5), scene(5, 5));
    let result = trial(&apart, &same, AlgorithmName::Auto);
    assert_eq!(result.result, Effect::Better, "{}", result.words);
    assert!(result.words.starts_with("fewer wakeups across cpus"), "{}", result.words);
    let back = trial(&same, &apart, AlgorithmName::Auto);
    assert_eq!(back.result, Effect::Worse, "{}", back.words);
    let accepted = trial(&same, &apart, AlgorithmName::NearConsumer);
    assert_eq!(accepted.result, Effect::NoDifference, "{}", accepted.words);
}
