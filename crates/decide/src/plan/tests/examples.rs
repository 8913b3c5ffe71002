//! Plans of single scenes.

use netsilo_model::change::{Target, Value, apply_to};
use netsilo_model::machine::cpu_owner::CpuOwner;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{CoreKind, Distance};
use netsilo_model::snapshot::host::Writable;
use netsilo_model::snapshot::netdev::Confidence;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{
    CpuLoad, Reader, Scene, SceneForward, SceneNetdev, SceneQueue,
};

use super::*;

/// A router of virtio's shape: the CPUs of each half or quarter of the machine send through a tx
/// queue of their own. Moving the receiving queue to the completions changes the egress queue, and
/// with it the completions.
#[test]
fn forwarding_under_xps_settles_in_one_plan() {
    let goal = Goal::default();
    let two_queues = [([0, 1], [4, 2]), ([4, 5], [4, 2]), ([0, 4], [4, 0])];
    let four_queues = [([0, 1, 2, 3], [4, 2, 6, 0]), ([0, 0, 0, 0], [4, 5, 6, 7])];
    let two = two_queues.iter().map(|(eth0, eth1)| (&eth0[..], &eth1[..]));
    let four = four_queues.iter().map(|(eth0, eth1)| (&eth0[..], &eth1[..]));
    for ((eth0, eth1), two_way) in two.chain(four).flat_map(|it| [(it, false), (it, true)]) {
        let scene = router(eth0, eth1, two_way);
        let first = plan(&scene.observation(), &goal);
        let settings = apply_to(&scene.settings(), &first.changes);
        let observation = scene.observe(&settings);
        let again = plan(&observation, &goal).changes;
        let of = format!("eth0 on {eth0:?}, eth1 on {eth1:?}, two ways: {two_way}");
        assert_eq!(again, vec![], "{of}, after {first:#?}");
        for forwarded in &observation.attribution.forwarded {
            let egress = settings.netdevs.iter().find(|it| it.name == forwarded.egress).unwrap();
            let tx = &egress.tx_queues[forwarded.tx_queue as usize];
            let completes = settings.irqs[&tx.irq.as_ref().unwrap().to].effective.clone().unwrap();
            let completes = completes.single().unwrap();
            let distance = settings.topology.distance(forwarded.poll_cpu, completes);
            assert!(distance < Distance::Remote, "{of}: {forwarded:?} is completed on {completes}");
        }
    }
}

/// Two netdevs with both interrupts of each pair of queues on one of these CPUs; eth0 forwards to
/// eth1, and eth1 to eth0 if asked for.
fn router(eth0: &[u32], eth1: &[u32], two_way: bool) -> Scene {
    let device = |name: &str, irq: u32, cpus: &[u32], to: Option<&str>| {
        let width = 8 / cpus.len() as u32;
        let queue = |(at, cpu): (u32, &u32)| SceneQueue {
            irq: Some(irq + at),
            tx_irq: Some(irq + at + FIRST_TX_IRQ),
            cpus: CpuSet::from_cpu(CpuId(*cpu)),
            tx_cpus: CpuSet::from_cpu(CpuId(*cpu)),
            xps_cpus: Some((at * width..(at + 1) * width).map(CpuId).collect()),
            packets_per_s: if to.is_some() { 50_000 } else { 0 },
            load: if to.is_some() { 0.16 } else { 0.0 },
            forwards: Vec::from_iter(to.map(|to| SceneForward {
                to: to.into(),
                queue: 0,
                packets_per_s: 50_000,
                bytes_per_s: 5_000_000,
            })),
            ..SceneQueue::default()
        };
        SceneNetdev {
            name: name.into(),
            driver: "virtio_net".into(),
            queues: (0..).zip(cpus).map(queue).collect(),
            ..SceneNetdev::default()
        }
    };
    let netdevs = vec![
        device("eth0", 30, eth0, Some("eth1")),
        device("eth1", 40, eth1, two_way.then_some("eth0")),
    ];
    let grid = Grid { nodes: 2, l2s: 2, threads: 2, ..Grid::default() };
    Scene { grid, netdevs, ..Scene::default() }
}

/// Where the completions of eth1 tx-0, now on this CPU, go if queues of eth0 on CPU 0 and 2 send
/// this many packets through it; `left`, if any, is not placed.
fn completes_on(present: u32, on: &[u32], packets: &[u64], left: Option<u32>) -> u32 {
    let mut scene = router(on, &[present, 4], false);
    for (queue, packets_per_s) in scene.netdevs[0].queues.iter_mut().zip(packets) {
        queue.packets_per_s = *packets_per_s;
        queue.forwards[0].packets_per_s = *packets_per_s;
        queue.load = 0.45 / packets.len() as f64;
    }
    let leave = |queue: u32| Override {
        netdev: "eth0".into(),
        queues: Some(CpuSet::from_cpu(CpuId(queue))),
        leave: true,
        ..Override::default()
    };
    let overrides = left.map(leave).into_iter().collect();
    let observation = scene.observation();
    let plan = plan(&observation, &Goal { overrides, ..Goal::default() });
    let place = |label: &str| {
        let moved = plan.placements.iter().find(|it| it.label.to_string() == label);
        moved.map(|it| it.cpus.single().unwrap().0)
    };
    for (queue, cpu) in on.iter().enumerate() {
        let cpu = Some(*cpu).filter(|_| left != Some(queue as u32));
        assert_eq!(place(&format!("eth0 rx-{queue}")), cpu, "{plan:#?}");
    }
    place("eth1 tx-0").unwrap_or(present)
}

#[test]
fn completions_leave_a_senders_cpu_for_one_that_sends_more_than_twice_as_much() {
    let from = |present: u32, packets: [u64; 2]| completes_on(present, &[0, 2], &packets, None);
    for packets in [[50_000, 50_000], [50_000, 40_000], [50_000, 90_000], [50_000, 30_000]] {
        assert_eq!([0, 2].map(|cpu| from(cpu, packets)), [0, 2], "{packets:?}");
    }
    assert_eq!([0, 2].map(|cpu| from(cpu, [50_000, 110_000])), [2, 2]);
    assert_eq!([0, 2].map(|cpu| from(cpu, [50_000, 20_000])), [0, 0]);
    assert_eq!([1, 5].map(|cpu| from(cpu, [50_000, 60_000])), [2, 2]);
    assert_eq!(from(1, [50_000, 50_000]), 0, "of equal ones the first");
    // what queues of one CPU send counts together
    assert_eq!(completes_on(1, &[0, 2, 2], &[50_000, 30_000, 30_000], None), 2);
}

#[test]
fn completions_do_not_leave_a_sender_that_is_not_placed_and_do_not_follow_it() {
    let from = |present: u32, left: u64| completes_on(present, &[0, 2], &[50_000, left], Some(1));
    assert_eq!([from(2, 90_000), from(2, 30_000), from(2, 20_000)], [2, 2, 0]);
    assert_eq!([from(1, 90_000), from(1, 40_000)], [1, 0]);
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
    observation.after.machine.architecture = Some("x86_64".into());
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
    observation.after.machine.architecture = Some("ppc64le".into());
    assert_eq!(
        plan(&observation, &goal).changes.len(),
        1,
        "other architectures have no such limit"
    );
    let edge = observation.after.netdevs[0].rx_queues[0].irq.as_mut().unwrap();
    edge.confidence = Confidence::Guess;
    let guessed = plan(&observation, &goal);
    assert!(guessed.changes.is_empty(), "{guessed:#?}");
    assert!(guessed.unchanged.iter().any(|it| it.reason.contains("is a guess")), "{guessed:#?}");
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

/// Alone it gains too little for a write; if another moves too, the write costs nothing.
#[test]
fn a_queue_with_little_to_gain_goes_to_its_reader_only_with_others() {
    let queue = |irq, packets_per_s, reader| SceneQueue {
        irq: Some(irq),
        cpus: CpuSet::from_cpu(CpuId(0)),
        packets_per_s,
        packets_per_poll: 1,
        load: packets_per_s as f64 * 2e-6,
        wakeups_per_s: packets_per_s,
        readers: vec![Reader {
            comm: "worker".into(),
            cpu: CpuId(reader),
            bytes_per_s: packets_per_s * 100,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let moved = |queues| {
        let netdev = SceneNetdev { name: "eth0".into(), queues, ..SceneNetdev::default() };
        let grid = Grid { nodes: 2, l2s: 4, ..Grid::default() };
        let observation = Scene { grid, netdevs: vec![netdev], ..Scene::default() }.observation();
        let plan = plan(&observation, &Goal::default());
        plan.changes.iter().map(Change::from_to).map(|(_, new)| new).collect::<Vec<_>>()
    };
    let light = || queue(30, 60, 5);
    assert_eq!(moved(vec![light()]), [""; 0]);
    assert_eq!(moved(vec![light(), queue(31, 5000, 6)]), ["5", "6"]);
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

#[test]
fn rps_off_covers_veths_beside_a_nic() {
    let netdev = |name: &str, driver: &str, irq| {
        let rps_cpus = Some(CpuSet::first(2));
        let queue = SceneQueue { irq, rps_cpus, ..SceneQueue::default() };
        let (name, driver) = (name.into(), driver.into());
        SceneNetdev { name, driver, queues: vec![queue], ..SceneNetdev::default() }
    };
    let netdevs = vec![netdev("eth0", "igb", Some(30)), netdev("veth0", "veth", None)];
    let scene = Scene { grid: Grid { l2s: 4, ..Grid::default() }, netdevs, ..Scene::default() };
    let observation = scene.observation();
    let written = |rps: CpuSet, netdevs: &[&str]| -> Vec<String> {
        let netdevs = netdevs.iter().map(|it| (*it).to_owned()).collect();
        let made = plan(&observation, &Goal { rps: Some(rps), netdevs, ..Goal::default() });
        let rps = made.changes.iter().filter_map(|it| match &it.target {
            Target::RpsCpus(knob) => Some(knob.netdev.name.clone()),
            _ => None,
        });
        rps.collect()
    };
    assert_eq!(written(CpuSet::new(), &[]), ["eth0", "veth0"]);
    assert_eq!(written(CpuSet::new(), &["eth0"]), ["eth0"]);
    assert_eq!(written(CpuSet::first(3), &[]), ["eth0"], "to spread is chosen by name");
}

/// Two queues on CPU 0. A container that owns CPU 1 and 2 reads this share of rx-0 there; the rest
/// and rx-1 another process on CPU 0 reads.
fn owned_cpus(claims_queues: bool, percent: u64) -> Scene {
    let reader = |cpu, bytes_per_s, cgroup: Option<&str>| Reader {
        comm: format!("reader{cpu}"),
        cpu: CpuId(cpu),
        bytes_per_s,
        cgroup: cgroup.map(Into::into),
        ..Reader::default()
    };
    let queue = |irq, readers| SceneQueue {
        irq: Some(irq),
        cpus: CpuSet::from_cpu(CpuId(0)),
        packets_per_s: 50_000,
        load: 0.3,
        readers,
        ..SceneQueue::default()
    };
    let of_pod = reader(1, percent * 10_000, Some("/kubepods.slice/crio-a.scope/sub"));
    let queues = vec![
        queue(30, vec![of_pod, reader(0, (100 - percent) * 10_000, None)]),
        queue(31, vec![reader(0, 1_000_000, None)]),
    ];
    let owner = CpuOwner {
        cgroup: "crio-a.scope".into(),
        name: "shop/web-1/nginx".into(),
        cpus: CpuSet::parse_list("1-2").unwrap(),
        why: "irq-load-balancing.crio.io: disable".into(),
        claims_queues,
    };
    Scene {
        grid: Grid { l2s: 4, ..Grid::default() },
        cpu_owners: vec![owner],
        netdevs: vec![SceneNetdev { name: "eth0".into(), queues, ..SceneNetdev::default() }],
        ..Scene::default()
    }
}

#[test]
fn an_exclusive_cpu_takes_an_interrupt_only_if_it_is_named() {
    let observation = owned_cpus(false, 90).observation();
    let cpus = |goal: &Goal| -> Vec<String> {
        let made = plan(&observation, goal);
        made.placements.iter().map(|it| it.cpus.to_string()).collect()
    };
    let goal = Goal { algorithm: AlgorithmName::Spread, ..Goal::default() };
    let placed = cpus(&goal);
    assert!(placed.len() == 2 && placed.iter().all(|it| ["0", "3"].contains(&&**it)), "{placed:?}");
    let why = "cpus 1-2 are exclusive to shop/web-1/nginx (irq-load-balancing.crio.io: disable): \
               nothing is placed there unless --cpus names them";
    let made = plan(&observation, &goal);
    assert!(made.unchanged.iter().any(|it| it.reason == why), "{made:#?}");
    assert_eq!(cpus(&Goal { cpus: Some(CpuSet::from_cpu(CpuId(1))), ..goal }), ["1", "1"]);
}

#[test]
fn a_pod_that_claims_its_queues_gets_those_that_it_mostly_reads() {
    let placed = |scene: &Scene, goal: &Goal| -> Vec<CpuId> {
        let made = plan(&scene.observation(), goal);
        made.placements.iter().map(|it| it.cpus.lowest().unwrap()).collect()
    };
    let near = Goal { algorithm: AlgorithmName::NearConsumer, ..Goal::default() };
    let own = [CpuId(1), CpuId(2)];
    let claimed = placed(&owned_cpus(true, 90), &near);
    assert!(own.contains(&claimed[0]) && !own.contains(&claimed[1]), "{claimed:?}");
    for (claims, percent) in [(false, 90), (true, 40), (true, 0)] {
        let placed = placed(&owned_cpus(claims, percent), &near);
        assert!(!placed.iter().any(|it| own.contains(it)), "{claims} {percent} {placed:?}");
    }
    let mut tickless = owned_cpus(true, 90);
    tickless.nohz_full = CpuSet::parse_list("1-2").unwrap();
    assert!(!placed(&tickless, &near).iter().any(|it| own.contains(it)));
    let excluded = Goal { exclude: CpuSet::parse_list("1-2").unwrap(), ..near };
    assert!(!placed(&owned_cpus(true, 90), &excluded).iter().any(|it| own.contains(it)));
}

#[test]
fn only_queues_that_the_goals_readers_mostly_read_are_placed() {
    let reader = |comm: &str, bytes_per_s| Reader {
        comm: comm.into(),
        cpu: CpuId(1),
        bytes_per_s,
        ..Reader::default()
    };
    let queue = |irq, redis, nginx| SceneQueue {
        irq: Some(irq),
        cpus: CpuSet::from_cpu(CpuId(2)),
        packets_per_s: 1000,
        load: 0.1,
        readers: vec![reader("redis", redis), reader("nginx", nginx)],
        ..SceneQueue::default()
    };
    let queues = vec![queue(30, 60, 40), queue(31, 40, 60)];
    let netdev = SceneNetdev { name: "eth0".into(), queues, ..SceneNetdev::default() };
    let scene = Scene {
        grid: Grid { l2s: 3, ..Grid::default() },
        netdevs: vec![netdev],
        ..Scene::default()
    };
    let made = |names: &[&str]| {
        let readers = names.iter().map(|name| (*name).to_owned()).collect();
        let algorithm = AlgorithmName::SameCpu;
        plan(&scene.observation(), &Goal { algorithm, readers, ..Goal::default() })
    };
    let placed = |names: &[&str]| made(names).placements.len();
    assert_eq!([placed(&[]), placed(&["redis"]), placed(&["redis", "nginx"])], [2, 1, 2]);
    let left = made(&["redis"]).unchanged;
    let why = "40% of its data was read by redis: less than half";
    assert!(left.iter().any(|it| it.reason == why), "{left:#?}");
    let nobody = made(&["memcached"]);
    assert_eq!(nobody.placements, []);
    let why = "0% of its data was read by memcached: less than half";
    assert!(nobody.unchanged.iter().any(|it| it.reason == why), "{nobody:#?}");
}

/// Two CPUs, as busy as this. The kthread of a busy reader's queue is on the reader's CPU, and
/// waits for this share of the time.
fn kthread_on_its_readers_cpu(busy: [f64; 2], waited: Option<f64>) -> Plan {
    let queue = SceneQueue {
        cpus: CpuSet::from_cpu(CpuId(1)),
        kthread_cpus: CpuSet::from_cpu(CpuId(1)),
        packets_per_s: 80_000,
        packets_per_poll: 48,
        load: 0.08,
        kthread_waited: waited,
        readers: vec![Reader { cpu: CpuId(1), bytes_per_s: 80_000, ..Reader::default() }],
        wakeups_per_s: 1200,
        ..SceneQueue::default()
    };
    let name = "eth0".into();
    let netdev = SceneNetdev { name, threaded: true, queues: vec![queue], ..Default::default() };
    let busy =
        [0, 1].map(|cpu| CpuLoad { cpus: CpuSet::from_cpu(CpuId(cpu)), usr: busy[cpu as usize] });
    let grid = Grid { cores: 2, ..Grid::default() };
    let scene = Scene { grid, busy: busy.into(), netdevs: vec![netdev], ..Scene::default() };
    plan(&scene.observation(), &Goal::default())
}

#[test]
fn a_kthread_that_waits_behind_its_reader_leaves_the_readers_cpu() {
    let to = |plan: &Plan| match plan.changes.as_slice() {
        [change] => change.new.clone(),
        changes => panic!("{changes:?}"),
    };
    let full = kthread_on_its_readers_cpu([0.6, 0.92], Some(0.9));
    assert_eq!(to(&full), Value::Cpus(CpuSet::from_cpu(CpuId(0))), "{full:#?}");
    let soon = kthread_on_its_readers_cpu([0.6, 0.92], Some(0.02));
    assert_eq!(to(&soon), Value::Cpus(CpuSet::from_cpu(CpuId(0))), "that CPU is full all the same");
    let at_once = kthread_on_its_readers_cpu([0.6, 0.3], Some(0.02));
    assert_eq!(at_once.changes, [], "it waits for less than elsewhere");
    let unknown = kthread_on_its_readers_cpu([0.6, 0.3], None);
    assert_eq!(unknown.changes, [], "nothing is known of its wait");
}
