//! Tests of verifications, on scenes.

use super::super::expected::Moved;
use super::*;
use crate::place::AlgorithmName;
use crate::plan::Goal;
use netsilo_model::change::{Value, knobs};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneForward, SceneNetdev, SceneQueue};

/// Two sockets. One queue is polled on CPU `at` and read on CPU `reader`.
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

/// Moves an interrupt from one CPU to another.
fn to(irq: u32, action: &str, old: &CpuSet, new: &CpuSet) -> Change {
    let action = action.to_owned();
    let target = Target::from(knobs::IrqAffinity { irq: Irq(irq), action, netdev: None });
    let cpus = |cpus: &CpuSet| Value::Cpus(cpus.clone());
    Change::untyped(target, cpus(old), cpus(new), "a test").unwrap()
}

/// The result of verifying a move between the two scenes, under this algorithm.
fn verification(before: &Scene, after: &Scene, algorithm: AlgorithmName) -> VerificationResult {
    let cpus = |scene: &Scene| scene.netdevs[0].queues[0].cpus.clone();
    let changes = vec![to(30, "eth0-TxRx-0", &cpus(before), &cpus(after))];
    let observations = [before.observation(), after.observation()];
    trial_of(&observations, changes, algorithm)
}

/// The result of verifying these changes, with what was observed before and after.
fn trial_of(
    observations: &[Observation; 2],
    changes: Vec<Change>,
    algorithm: AlgorithmName,
) -> VerificationResult {
    let policy = Policy { goal: Goal { algorithm, ..Goal::default() }, ..Policy::default() };
    let costs = Costs::default();
    let [old, new] = observations.each_ref().map(|it| Analysis::new(it, &costs));
    let mut batch = Batch::default();
    let window = Window::new(Duration::ZERO, &old);
    batch.napis = window.napis(changes.iter().map(|change| &change.target));
    changes.iter().for_each(|change| batch.moves.add(change, Moved::new(&window, change)));
    batch.changes = changes;
    let mut verifications = Verifications::default();
    for second in 1..4 {
        verifications.sample(&Window::new(Duration::from_secs(second), &old), &policy);
    }
    verifications.begin(Duration::from_secs(3), Duration::ZERO, batch, &policy);
    (4..20)
        .find_map(|second| {
            let window = Window::new(Duration::from_secs(second), &new);
            verifications.sample(&window, &policy).pop()
        })
        .unwrap()
        .result(&policy)
}

#[test]
fn data_that_is_read_on_another_socket_for_no_gain_is_a_reason_to_go_back() {
    let (near, far) = (scene(4, 5), scene(0, 5));
    let result = verification(&near, &far, AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::Worse, "{}", result.words);
    assert!(result.words.starts_with("data is no longer read under"), "{}", result.words);
    let back = verification(&far, &near, AlgorithmName::Auto);
    assert_ne!(back.result, MeasuredEffect::Worse, "{}", back.words);
    let wanted = verification(&near, &far, AlgorithmName::LeastLoaded);
    assert_eq!(wanted.result, MeasuredEffect::NoDifference, "{}", wanted.words);
}

#[test]
fn a_cost_that_fell_is_shown_with_its_interval_in_percent() {
    let (before, mut after) = (scene(4, 5), scene(6, 5));
    after.netdevs[0].queues[0].load = 0.1;
    let result = verification(&before, &after, AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::Better);
    let words = "a received megabyte costs less: 10.00 -> 5.00 ms of cpu time, -51% to -49% (99%, ";
    assert!(result.words.starts_with(words), "{}", result.words);
}

#[test]
fn another_load_is_not_compared() {
    let (before, mut after) = (scene(4, 5), scene(4, 5));
    after.netdevs[0].queues[0].readers[0].bytes_per_s *= 3;
    let result = verification(&before, &after, AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::Unknown);
    assert_eq!(result.words, "not verified: the load changed, 20.0 to 60.0 MB/s");
}

#[test]
fn readers_that_moved_themselves_prove_nothing() {
    let result = verification(&scene(4, 5), &scene(6, 1), AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::NoDifference, "{}", result.words);
}

#[test]
fn wakeups_across_cpus_tell_what_cpu_time_does_not() {
    let (apart, same) = (scene(4, 5), scene(5, 5));
    let result = verification(&apart, &same, AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::Better, "{}", result.words);
    assert!(result.words.starts_with("fewer wakeups across cpus"), "{}", result.words);
    let back = verification(&same, &apart, AlgorithmName::Auto);
    assert_eq!(back.result, MeasuredEffect::Worse, "{}", back.words);
    let accepted = verification(&same, &apart, AlgorithmName::NearConsumer);
    assert_eq!(accepted.result, MeasuredEffect::NoDifference, "{}", accepted.words);
}

/// What was observed, but with the protocol work of all packets on this CPU, wherever they are
/// polled.
fn processed_on(mut observation: Observation, cpu: u32) -> Observation {
    let cpu = CpuId(cpu);
    let attribution = &mut observation.attribution;
    attribution.consumption.iter_mut().for_each(|row| row.protocol_cpu = Some(cpu));
    attribution.wakeups.iter_mut().for_each(|row| row.waker_cpu = cpu);
    observation
}

#[test]
fn a_move_gives_what_was_expected_of_it() {
    let result = verification(&scene(0, 5), &scene(5, 5), AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::Better, "{}", result.words);
    assert_eq!(result.expected_locality, Some(1.0));
    assert!(result.words.contains("wakeups across cpus (expected 0)"), "{}", result.words);
    let words = "0% -> 100% of it on one llc (expected 100%)";
    assert!(result.words.ends_with(words), "{}", result.words);
}

/// The plan moves a queue to its readers, but something else decides where its packets are
/// processed.
#[test]
fn what_was_expected_and_did_not_come_is_a_reason_to_go_back() {
    let (far, near) = (scene(0, 5), scene(5, 5));
    let moves = |observations: [Observation; 2], algorithm| {
        let changes = vec![to(
            30,
            "eth0-TxRx-0",
            &far.netdevs[0].queues[0].cpus,
            &near.netdevs[0].queues[0].cpus,
        )];
        trial_of(&observations, changes, algorithm)
    };
    let elsewhere = || [far.observation(), processed_on(near.observation(), 1)];
    let result = moves(elsewhere(), AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::Worse, "{}", result.words);
    assert!(result.words.starts_with("the expected improvement did not come"), "{}", result.words);
    assert!(result.words.ends_with("0% -> 0% of it on one llc (expected 100%)"));
    let accepted = moves(elsewhere(), AlgorithmName::NearConsumer);
    assert_eq!(accepted.result, MeasuredEffect::NoDifference, "{}", accepted.words);
    // less CPU time is a gain, whatever caused it
    let mut cheaper = near.clone();
    cheaper.netdevs[0].queues[0].load = 0.1;
    let cheaper = [far.observation(), processed_on(cheaper.observation(), 1)];
    assert_eq!(moves(cheaper, AlgorithmName::Auto).result, MeasuredEffect::Better);
    // more than half of the improvement came
    let mut mixed = scene(5, 5);
    let far_reader = Reader {
        cpu: CpuId(1),
        bytes_per_s: 2_000_000,
        ..mixed.netdevs[0].queues[0].readers[0].clone()
    };
    mixed.netdevs[0].queues[0].readers.push(far_reader);
    let mostly = moves([far.observation(), mixed.observation()], AlgorithmName::Auto);
    assert_ne!(mostly.result, MeasuredEffect::Worse, "{}", mostly.words);
}

#[test]
fn nothing_is_expected_under_rps_or_of_knobs_that_no_count_estimates() {
    let rps = |at| {
        let mut scene = scene(at, 5);
        scene.netdevs[0].queues[0].rps_cpus = Some(CpuSet::from_cpu(CpuId(1)));
        scene
    };
    let result = verification(&rps(0), &rps(5), AlgorithmName::Auto);
    assert_eq!(result.result, MeasuredEffect::NoDifference, "{}", result.words);
    assert_eq!(result.expected_locality, Some(0.0), "RPS decides: {}", result.words);
    let flows = Target::from(knobs::RpsSockFlowEntries);
    let flows = Change::untyped(flows, Value::from(0u32), Value::from(4096u32), "a test").unwrap();
    let (far, near) = (scene(0, 5), scene(5, 5));
    let cpus = |scene: &Scene| scene.netdevs[0].queues[0].cpus.clone();
    let changes = vec![to(30, "eth0-TxRx-0", &cpus(&far), &cpus(&near)), flows];
    let observations = [far.observation(), near.observation()];
    let result = trial_of(&observations, changes, AlgorithmName::Auto);
    assert_eq!((result.expected_locality, result.expected_wakeups), (None, None));
}

/// A router: eth0's queue is on CPU `rx`, the completions of eth1 are on CPU `tx`.
fn router(rx: u32, tx: u32) -> Scene {
    let mut scene = scene(rx, 5);
    let queue = &mut scene.netdevs[0].queues[0];
    queue.readers.clear();
    let (to, bytes_per_s) = ("eth1".into(), 25_000_000);
    queue.forwards = vec![SceneForward { to, queue: 0, packets_per_s: 50_000, bytes_per_s }];
    let back =
        SceneQueue { irq: Some(40), cpus: CpuSet::from_cpu(CpuId(tx)), ..SceneQueue::default() };
    let (name, driver, queues) = ("eth1".into(), "igb".into(), vec![back]);
    scene.netdevs.push(SceneNetdev { name, driver, queues, ..SceneNetdev::default() });
    scene
}

/// The CPU that sends a packet is the one that polled it, so it says nothing about a placement.
#[test]
fn forwarding_is_judged_by_the_cpu_of_the_completions() {
    let cpu = |cpu| CpuSet::from_cpu(CpuId(cpu));
    let moves = |before: &Scene, after: &Scene, change| {
        let observations = [before.observation(), after.observation()];
        trial_of(&observations, vec![change], AlgorithmName::Auto)
    };
    let to_completions = to(30, "eth0-TxRx-0", &cpu(0), &cpu(4));
    let near = moves(&router(0, 4), &router(4, 4), to_completions.clone());
    assert!(near.words.ends_with("0% -> 100% of it on one llc (expected 100%)"), "{}", near.words);
    let away = moves(&router(4, 4), &router(0, 4), to(30, "eth0-TxRx-0", &cpu(4), &cpu(0)));
    assert_eq!(away.result, MeasuredEffect::Worse, "{}", away.words);
    let words = "transmissions are no longer completed under the cache where packets arrive";
    assert!(away.words.starts_with(words), "{}", away.words);
    // The moved queue sends through another queue, whose completions are on the old socket.
    let flipped = moves(&router(0, 4), &router(4, 0), to_completions);
    assert_eq!(flipped.result, MeasuredEffect::Worse, "{}", flipped.words);
    let words = "the expected improvement did not come, and nothing is gained";
    assert!(flipped.words.starts_with(words), "{}", flipped.words);
    // Completions that are moved to the packets.
    let completions = to(40, "eth1-TxRx-0", &cpu(4), &cpu(0));
    let near = moves(&router(0, 4), &router(0, 0), completions);
    assert!(near.words.ends_with("0% -> 100% of it on one llc (expected 100%)"), "{}", near.words);
}
