//! Plans that leave some CPUs alone.

use netsilo_model::snapshot::host::{IrqBans, KnobOwner, OwnedKnob, Snapshot};
use netsilo_model::synthetic::scene::SceneThread;

use super::*;
use crate::plan::isolate::isolate;

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// The plan that isolates these CPUs.
fn isolated(observation: &Observation, cpus: &CpuSet) -> Plan {
    isolate(&Analysis::new(observation, &Costs::default()), cpus, false)
}

/// All CPUs that interrupts, RPS and kthreads may use, of those that can be moved.
fn in_use(settings: &Snapshot) -> CpuSet {
    let movable = settings.irqs.values().filter(|it| it.writable == Writable::Yes);
    let irqs = movable.filter_map(|it| it.requested.clone());
    let netdevs = || settings.netdevs.iter();
    let rps = netdevs().flat_map(|it| &it.rx_queues).filter_map(|it| it.rps_cpus.clone());
    let threads = netdevs().flat_map(|it| &it.napis).filter_map(|it| it.thread.as_ref());
    let threads = threads.map(|it| it.cpus.clone());
    let masks = [&settings.default_smp_affinity, &settings.net.rps_default_mask];
    let masks = masks.into_iter().filter_map(|it| it.clone());
    irqs.chain(rps).chain(threads).chain(masks).fold(CpuSet::new(), |all, it| all.or(&it))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn isolated_cpus_are_left_alone_by_one_plan_and_nothing_else_changes(
        scene in scenes(),
        pattern in prop::array::uniform8(any::<bool>()),
        rps in prop::array::uniform8(any::<bool>()),
    ) {
        let mut scene = scene;
        let possible = scene.settings().topology.possible.clone();
        let of = |pattern: &[bool; 8]| -> CpuSet {
            possible.iter().filter(|cpu| pattern[cpu.0 as usize % 8]).collect()
        };
        let (cpus, mask) = (of(&pattern), of(&rps));
        scene.rps_default_mask = Some(mask.clone());
        for queue in scene.netdevs.iter_mut().flat_map(|netdev| &mut netdev.queues) {
            queue.rps_cpus = Some(mask.clone());
        }
        let observation = scene.observation();
        let topology = &observation.after.topology;
        let plan = isolated(&observation, &cpus);
        let open = topology.online.minus(&cpus).minus(&topology.isolated_or_tickless());
        if open.is_empty() || !cpus.intersects(&topology.online) {
            prop_assert!(plan.changes.is_empty() && plan.refusals.len() == 1, "{:?}", plan);
            return Ok(());
        }
        prop_assert_eq!(plan.refused_on(&observation.after), vec![], "of its own plan");
        for change in &plan.changes {
            prop_assert_eq!(change.target.value_in(&observation.after), Some(change.old.clone()));
            let (Value::Cpus(old), Value::Cpus(new)) = (&change.old, &change.new) else {
                return Err(TestCaseError::fail(format!("{change:?}")));
            };
            prop_assert!(old.intersects(&cpus) && !new.intersects(&cpus), "{:?}", change);
            prop_assert!(!new.is_empty(), "{:?}", change);
            let kept = old.minus(&cpus);
            let is_xps = matches!(change.target, Target::XpsCpus(_));
            let may_get = if kept.intersects(&open) || is_xps { &kept } else { &open };
            prop_assert!(new.is_subset(may_get), "{:?}", change);
        }
        let after = apply_to(&observation.after, &plan.changes);
        prop_assert!(!in_use(&after).intersects(&cpus), "{:?}", plan);
        let again = isolated(&Observation { after, ..observation.clone() }, &cpus);
        prop_assert_eq!(again.changes, vec![]);
    }
}

/// Two nodes of four CPUs. eth0 of the second node has a queue on each of CPUs 3 to 5.
fn host() -> Scene {
    let queue = |at: u32| SceneQueue {
        irq: Some(30 + at),
        cpus: CpuSet::from_cpu(CpuId(3 + at)),
        packets_per_s: 1000,
        load: 0.1,
        rps_cpus: Some(set("4-5")),
        xps_cpus: Some([set("0-4"), set("5"), set("6-7")][at as usize].clone()),
        ..SceneQueue::default()
    };
    let eth0 = SceneNetdev {
        name: "eth0".into(),
        node: Some(1),
        queues: (0..3).map(queue).collect(),
        ..SceneNetdev::default()
    };
    let grid = Grid { nodes: 2, cores: 4, ..Grid::default() };
    Scene { grid, netdevs: vec![eth0], ..Scene::default() }
}

fn changes(plan: &Plan) -> Vec<String> {
    plan.changes.iter().map(|it| format!("{}: {} -> {}", it.target, it.old, it.new)).collect()
}

#[test]
fn a_mask_without_other_cpus_gets_those_near_the_device_and_own_tx_queues_stay() {
    let mut scene = host();
    let thread =
        SceneThread { comm: "mt76-tx phy0".into(), cpus: set("0-7"), ..Default::default() };
    scene.threads = vec![thread];
    let plan = isolated(&scene.observation(), &set("4-5"));
    let expected = [
        "default_smp_affinity: 0-7 -> 0-3,6-7",
        "irq 31 (eth0-TxRx-1): 4 -> 6-7",
        "irq 32 (eth0-TxRx-2): 5 -> 6-7",
        "eth0 rx-0 rps_cpus: 4-5 -> 6-7",
        "eth0 rx-1 rps_cpus: 4-5 -> 6-7",
        "eth0 rx-2 rps_cpus: 4-5 -> 6-7",
        "eth0 tx-0 xps_cpus: 0-4 -> 0-3",
        "kthread mt76-tx phy0 (pid 700): 0-7 -> 0-3,6-7",
    ];
    let mut planned = changes(&plan);
    planned.sort();
    let mut expected = expected.map(str::to_owned);
    expected.sort();
    assert_eq!(planned, expected);
    assert_eq!(plan.unchanged[0].subject, "eth0 tx-1");
}

#[test]
fn interrupts_of_disks_move_and_what_cannot_is_named_with_what_would_move_it() {
    let mut observation = host().observation();
    let irq = |action: &str, cpus: &str, writable| IrqState {
        actions: vec![action.into()],
        requested: Some(set(cpus)),
        writable,
        ..IrqState::default()
    };
    for (at, state) in [
        irq("virtio1-req.0", "0-7", Writable::Yes),
        irq("nvme0q1", "4", Writable::Managed),
        irq("nvme0q2", "5", Writable::Managed),
        irq("nvme0q0", "0", Writable::Managed),
        irq("arch_timer", "0-7", Writable::Unsupported),
        IrqState { actions: vec!["unread".into()], ..IrqState::default() },
    ]
    .into_iter()
    .enumerate()
    {
        observation.after.irqs.insert(Irq(50 + at as u32), state);
    }
    let plan = isolated(&observation, &set("4-5"));
    assert!(changes(&plan).contains(&"irq 50 (virtio1-req.0): 0-7 -> 0-3,6-7".to_owned()));
    let left = |subject: &str| {
        let found = plan.unchanged.iter().find(|it| it.subject == subject);
        found.unwrap_or_else(|| panic!("{subject}: {:?}", plan.unchanged)).reason.as_str()
    };
    assert!(left("irqs 51-52 (nvme0q1, nvme0q2)").contains("isolcpus=managed_irq,4-5 at boot"));
    assert!(left("irq 54 (arch_timer)").contains("cannot direct it"));
    assert!(left("irq 55 (unread)").starts_with("not known"));
    let advice: Vec<&str> = plan.advice.iter().map(|it| it.subject.as_str()).collect();
    assert_eq!(advice, ["threads", "timers, RCU", "workers", "netsilo"]);
    assert!(
        plan.advice[2].text.contains("read where they may run: cf in "),
        "{}",
        plan.advice[2].text
    );
}

#[test]
fn irqbalance_gets_all_interrupts_that_it_could_put_there() {
    let bans = IrqBans { start_time: 9, irqs: BTreeSet::new(), most_bytes: 499 };
    let mut owner = KnobOwner {
        name: "irqbalance".into(),
        pid: 812,
        writes: vec![OwnedKnob::IrqAffinity],
        bans: Some(bans),
    };
    let plan = |owner: &KnobOwner| {
        let scene = Scene { knob_owners: vec![owner.clone()], ..host() };
        isolated(&scene.observation(), &set("4-5"))
    };
    let told = plan(&owner);
    let bans = |plan: &Plan| -> Vec<BTreeSet<Irq>> {
        let irqs = |it: &Change| match &it.target {
            Target::IrqbalanceBan(ban) => Some(ban.irqs.clone()),
            _ => None,
        };
        plan.changes.iter().filter_map(irqs).collect()
    };
    let all = vec![BTreeSet::from([Irq(30), Irq(31), Irq(32)])];
    assert_eq!(bans(&told), all);
    assert!(told.advice.iter().any(|it| it.text.contains("IRQBALANCE_BANNED_CPULIST=4-5")));
    // none of them is on CPU 0 now, and irqbalance may put each there
    let scene = Scene { knob_owners: vec![owner.clone()], ..host() };
    let elsewhere = isolated(&scene.observation(), &set("0"));
    let moves = |it: &&Change| matches!(it.target, Target::IrqAffinity(_));
    assert_eq!(elsewhere.changes.iter().filter(moves).count(), 0, "{elsewhere:?}");
    assert_eq!(bans(&elsewhere), all);
    owner.bans = None;
    let silent = plan(&owner);
    assert_eq!(silent.refusals[0].cause, RefusalCause::OtherOwner);
    assert!(!silent.changes.iter().any(|it| matches!(it.target, Target::IrqAffinity(_))));
}

#[test]
fn some_online_cpu_must_remain_that_may_take_work() {
    let refused = |scene: Scene, cpus: &str| {
        let plan = isolated(&scene.observation(), &set(cpus));
        assert!(plan.changes.is_empty(), "{plan:?}");
        (plan.refusals[0].cause, plan.refusals[0].reason.clone())
    };
    assert_eq!(
        refused(host(), "0-7"),
        (
            RefusalCause::EmptyMask,
            "these are all online cpus: leave at least one for interrupts".into()
        )
    );
    let offline = Scene { offline: set("6-7"), ..host() };
    assert_eq!(refused(offline, "6-7").1, "not online; online are 0-5");
    let others = Scene { isolated: set("4-7"), ..host() };
    assert_eq!(refused(others, "0-3").1, "the others, cpus 4-7, are all isolated or tickless");
}
