//! Verdicts on a machine of which one CPU polls all there is.

use super::*;
use crate::judge::verdict::look::NetdevLook;

/// Eight CPUs with one queue: CPU 0 has this load, the others are idle.
fn saturated(load: f64) -> Observation {
    saturated_scene(load).observation()
}

fn saturated_scene(load: f64) -> Scene {
    let queue = SceneQueue {
        irq: Some(30),
        cpus: set("0"),
        rps_cpus: Some(CpuSet::new()),
        packets_per_s: 400_000,
        packets_per_poll: 32,
        load,
        readers: vec![Reader {
            comm: "server".into(),
            cpu: CpuId(5),
            bytes_per_s: 1000,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let netdev = SceneNetdev {
        name: "eth0".into(),
        driver: "virtio_net".into(),
        queues: vec![queue],
        most_queues: Some(8),
        ..SceneNetdev::default()
    };
    Scene {
        grid: Grid { l2s: 8, ..Grid::default() },
        netdevs: vec![netdev],
        virtual_machine: Some(false),
        ..Scene::default()
    }
}

#[test]
fn rps_helps_one_saturated_cpu_with_many_flows_but_not_with_one_or_unknown_flows() {
    let rps = |observation: &Observation| eth0(observation)[&RemedyName::Rps].clone();
    let many = rps(&with_flows(saturated(0.95), 500));
    assert_eq!(many.claim, Claim::Help, "{many:?}");
    assert_eq!(many.changes.len(), 1);
    let mut heavy = with_flows(saturated(0.95), 500);
    heavy.attribution.flows[0].packets = 20_000_000;
    for one in [with_flows(saturated(0.95), 1), heavy] {
        let one = rps(&one);
        assert_eq!(one.claim, Claim::NoClearChange, "{one:?}");
        assert!(one.reason.contains("RPS can at best split"), "{}", one.reason);
    }
    assert_eq!(rps(&saturated(0.95)).claim, Claim::Unknown);
    let queues = |observation: &Observation| eth0(observation)[&RemedyName::MoreQueues].clone();
    let many = queues(&with_flows(saturated(0.95), 500));
    assert_eq!(many.claim, Claim::Help, "{many:?}");
    assert_eq!(queues(&with_flows(saturated(0.95), 1)).claim, Claim::NoClearChange);
}

#[test]
fn one_flow_dominates_from_90_percent_of_the_packets_on() {
    let dominates = |share: f64| {
        let mut observation = with_flows(saturated(0.95), 500);
        observation.attribution.flows[0].packets = (share / (1.0 - share) * 499_000.0) as u64;
        eth0(&observation)[&RemedyName::Rps].reason.starts_with("one flow carries nearly all")
    };
    assert_eq!([0.89, 0.91].map(dominates), [false, true]);
}

#[test]
fn rps_targets_cpus_that_are_at_least_a_quarter_idle() {
    let busy = |idle: f64| [100.0 - idle, 0.0, 0.0, idle];
    let mut cpus = [busy(24.0); 8];
    (cpus[0], cpus[1]) = ([0.0, 0.0, 95.0, 5.0], busy(26.0));
    let observation = with_flows(with_shares(saturated(0.95), &cpus), 500);
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let look = Look::new(&analysis);
    let look = NetdevLook::new(&look, &observation.after.netdevs[0]).unwrap();
    assert_eq!(packet_steering::targets(&look), set("1"));
}

#[test]
fn more_queues_do_not_help_where_one_has_80_percent_of_the_work() {
    let on_one_queue = |share: f64| {
        let mut scene = saturated_scene(0.95);
        let queues = &mut scene.netdevs[0].queues;
        queues.push(SceneQueue { irq: Some(31), ..queues[0].clone() });
        for (queue, share) in queues.iter_mut().zip([share, 1.0 - share]) {
            (queue.load, queue.packets_per_s) = (0.95 * share, (400_000.0 * share) as u64);
        }
        let observation = with_flows(scene.observation(), 500);
        eth0(&observation)[&RemedyName::MoreQueues].reason.starts_with("one of 2 queues carries")
    };
    assert_eq!([0.79, 0.81].map(on_one_queue), [false, true]);
}

#[test]
fn a_larger_budget_is_considered_from_1_percent_of_squeezed_runs_on() {
    let is_squeezed = |share: f64| {
        let mut observation = saturated(0.95);
        let [before, after] = [&observation.before, &observation.after]
            .map(|snapshot| snapshot.cpus[&CpuId(0)].softirqs.get("NET_RX").unwrap());
        let squeezes = (after - before) as f64 * share;
        let softnet = &mut observation.after.cpus.get_mut(&CpuId(0)).unwrap().softnet;
        softnet.as_mut().unwrap().time_squeeze += squeezes as u32;
        !eth0(&observation)[&RemedyName::BiggerBudget].reason.starts_with("almost no softirq run")
    };
    assert_eq!([0.009, 0.011].map(is_squeezed), [false, true]);
}

#[test]
fn rps_hurts_onto_a_cpu_that_a_pinned_reader_fills() {
    let mut cpus = [[0.0, 0.0, 0.0, 100.0]; 8];
    (cpus[0], cpus[5]) = ([0.0, 0.0, 95.0, 5.0], [60.0, 30.0, 0.0, 10.0]);
    let mut observation = with_flows(with_shares(saturated(0.95), &cpus), 500);
    let onto_5 = |observation: &Observation| {
        let costs = Costs::default();
        let analysis = Analysis::new(observation, &costs);
        rps_onto(&Look::new(&analysis), &observation.after.netdevs[0], &set("5")).unwrap()
    };
    assert_ne!(onto_5(&observation).claim, Claim::Hurt, "the reader can go elsewhere");
    let reader = observation.attribution.consumption[0].consumer.tgid;
    observation.attribution.pinned = [(reader, set("5"))].into();
    assert_eq!(onto_5(&observation).claim, Claim::Hurt);
    observation.attribution.pinned = [(reader, set("4-5"))].into();
    assert_ne!(onto_5(&observation).claim, Claim::Hurt, "it has another CPU");
}

#[test]
fn a_napi_that_takes_hardly_any_interrupt_still_polls_for_each_64_packets() {
    let ipis = |interrupts: u64| {
        let mut observation = saturated(0.95);
        observation.attribution = Default::default();
        for (snapshot, seconds) in [(&mut observation.before, 0), (&mut observation.after, 10)] {
            snapshot.netdevs[0].statistics = [("rx_packets".to_owned(), seconds * 400_000)].into();
            for irq in snapshot.irqs.values_mut() {
                irq.counts = [(CpuId(0), seconds * interrupts)].into();
            }
        }
        let rps = &eth0(&observation)[&RemedyName::Rps];
        let of_ipis = rps.reasons.iter().find(|it| it.quantity == "ipis that it would send");
        of_ipis.unwrap().measure.clone()
    };
    assert_eq!(ipis(1), ipis(400_000 / 64));
    assert_ne!(ipis(1), ipis(400_000 / 32));
}

#[test]
fn all_softirqs_on_one_cpu_at_low_load_cause_no_verdict() {
    let verdicts = eth0(&with_flows(saturated(0.1), 500));
    for verdict in verdicts.values() {
        assert!(![Claim::Help, Claim::Hurt].contains(&verdict.claim), "{verdict:?}");
    }
    // the flows were counted, so nothing is unknown
    for remedy in [RemedyName::Rps, RemedyName::MoreQueues] {
        assert_eq!(verdicts[&remedy].claim, Claim::NoClearChange, "{:?}", verdicts[&remedy]);
    }
}

#[test]
fn busy_polling_is_on_if_either_sysctl_is_not_0() {
    let judged = |load: f64, sysctl: &str, value: &str| {
        let mut observation = saturated(load);
        observation.after.net.sysctls.insert(sysctl.into(), value.into());
        eth0(&observation)[&RemedyName::BusyPoll].reason.clone()
    };
    for sysctl in ["net.core.busy_poll", "net.core.busy_read"] {
        assert_eq!(judged(0.3, sysctl, "50\n"), format!("it is on ({sysctl})"));
        let off = judged(0.3, sysctl, "0\n");
        assert!(!off.contains("it is on"), "{off}");
    }
}

#[test]
fn rps_helps_where_most_of_the_sampled_softirq_can_move_and_hurts_where_almost_none_can() {
    let with = |driver, protocol| {
        let mut observation = with_flows(saturated(0.95), 500);
        let cpus = [(
            CpuId(0),
            [(ReceiveStage::DriverGro, driver), (ReceiveStage::LocalDelivery, protocol)].into(),
        )]
        .into();
        observation.attribution.stages =
            Some(StageSamples { per_s: 499, cpus, ..StageSamples::default() });
        eth0(&observation)[&RemedyName::Rps].clone()
    };
    let (much, little) = (with(1000, 3000), with(3900, 100));
    assert_eq!((much.claim, little.claim), (Claim::Help, Claim::Hurt), "{much:?}\n{little:?}");
}

#[test]
fn an_overflowing_ring_is_enlarged_only_if_its_cpu_has_idle_time() {
    let with = |load, lost: u64| {
        let mut observation = saturated(load);
        let rings = netsilo_model::snapshot::ethtool::Rings {
            rx: Some(netsilo_model::snapshot::ethtool::Limit { current: 256, max: 4096 }),
            rx_mini: None,
            rx_jumbo: None,
            tx: None,
        };
        for (snapshot, count) in [(&mut observation.before, 0), (&mut observation.after, lost)] {
            snapshot.netdevs[0].statistics.insert("rx_missed_errors".into(), count);
            snapshot.netdevs[0].ethtool.as_mut().unwrap().rings =
                netsilo_model::machine::reading::Reading::Value(rings);
        }
        eth0(&observation)[&RemedyName::BiggerRing].clone()
    };
    let helped = with(0.3, 1000);
    assert_eq!((helped.claim, helped.changes.len()), (Claim::Help, 1), "{helped:?}");
    assert_eq!(
        (with(0.3, 0).claim, with(0.95, 1000).claim),
        (Claim::NoClearChange, Claim::NoClearChange)
    );
}

#[test]
fn unmeasured_quantities_are_unknown_and_an_idle_netdev_has_no_verdict() {
    assert!(verdicts_without_traffic(&saturated(0.5)).is_empty());
    let mut observation = saturated(0.95);
    observation.attribution = Default::default();
    for snapshot in [&mut observation.before, &mut observation.after] {
        snapshot.netdevs[0].statistics.clear();
    }
    let verdicts = eth0(&observation);
    assert_eq!(verdicts[&RemedyName::BiggerRing].claim, Claim::Unknown);
    assert_eq!(verdicts[&RemedyName::Rfs].claim, Claim::Unknown, "who reads is not known");
}

fn verdicts_without_traffic(observation: &Observation) -> Vec<RemedyVerdict> {
    let still = Observation { before: observation.after.clone(), ..observation.clone() };
    judged(&still).into_values().collect()
}
