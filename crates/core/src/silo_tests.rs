//! Claims about silos, on scenes.

use std::time::Duration;

use super::*;
use crate::attribution::{Consumer, Resolved};
use crate::grid::Grid;
use crate::host::EdgeSource;
use crate::rates::rates;
use crate::scene::{Reader, Scene, SceneNetdev, SceneQueue};

fn set(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

/// A 2 x 2 x 2 machine; two queues of a virtio device on cpu 0, the first one read on cpus 2 and 5.
fn scene() -> Scene {
    let queue = |irq| SceneQueue { irq: Some(irq), cpus: set("0"), ..SceneQueue::default() };
    let reader = |comm: &str, cpu, bytes_per_s| Reader { comm: comm.into(), cpu: CpuId(cpu), bytes_per_s };
    let readers = vec![reader("redis", 2, 750), reader("iperf", 5, 250)];
    let first = SceneQueue { packets_per_s: 300, load: 0.3, readers, ..queue(30) };
    let queues = vec![first, SceneQueue { packets_per_s: 100, load: 0.1, ..queue(32) }];
    let netdev = SceneNetdev { name: "eth0".into(), driver: "virtio_net".into(), queues, ..SceneNetdev::default() };
    Scene { grid: Grid { nodes: 2, l2s: 2, threads: 2, ..Grid::default() }, netdevs: vec![netdev], ..Scene::default() }
}

fn silos_of(observation: &Observation) -> Silos {
    silos(observation, &rates(&observation.before, &observation.after))
}

#[test]
fn a_queue_knows_its_consumers_heaviest_first_and_how_far_they_are() {
    let silo = &silos_of(&scene().observation()).queues[0];
    assert_eq!(silo.bytes_per_s, Some(1000.0));
    let consumers: Vec<_> = silo.consumers.iter().map(|c| (c.comm.as_str(), c.share)).collect();
    assert_eq!(consumers, [("redis", 0.75), ("iperf", 0.25)]);
    assert_eq!(silo.locality.shares, [(Distance::Llc, 0.75), (Distance::Remote, 0.25)].into());
    assert_eq!(silo.read_on(), [(CpuId(2), 750.0), (CpuId(5), 250.0)].into());
}

#[test]
fn a_cpus_polling_time_is_shared_out_by_packets() {
    let silos = silos_of(&scene().observation());
    let own: Vec<f64> = silos.queues.iter().map(|silo| silo.own_share[&CpuId(0)]).collect();
    assert!((own[0] - 0.3).abs() < 1e-9 && (own[1] - 0.1).abs() < 1e-9, "{own:?}");
    assert_eq!(silos.queues[0].softirq, Some(SoftirqShare { cpu: CpuId(0), share: 0.4, measured: true }));
}

#[test]
fn without_ebpf_interrupts_stand_for_packets_and_consumers_are_unknown() {
    let silos = silos_of(&Scene { without_bpf: true, ..scene() }.observation());
    let silo = &silos.queues[0];
    assert_eq!((silo.packets_per_s, silo.bytes_per_s), (None, None));
    assert!(silo.has_traffic());
    assert!((silo.own_share[&CpuId(0)] - 0.3).abs() < 1e-3, "{:?}", silo.own_share);
    assert!(!silo.softirq.unwrap().measured);
}

#[test]
fn a_napi_is_the_queues_whose_packets_came_through_it() {
    let mut scene = scene();
    scene.netdevs[0].napis_unknown = true;
    let silos = silos_of(&scene.observation());
    let napi = silos.queues[0].napi.clone().unwrap();
    assert_eq!((napi.to, napi.source), (NapiId(8193), EdgeSource::Observed));
    assert_eq!(silos.queues[1].packets_per_s, None, "nothing read of it: its napi is not known");
    assert_eq!(silos.queues[2].label(), "eth0 napi 8194");
    assert_eq!(silos.queues[2].packets_per_s, Some(100.0));
}

#[test]
fn what_is_local_foreign_or_unresolved_is_no_silos() {
    let mut observation = scene().observation();
    let row = |napi, resolved, bytes| Consumption {
        napi,
        rx_queue: None,
        resolved,
        poll_cpu: None,
        protocol_cpu: None,
        consumer_cpu: CpuId(1),
        consumer: Consumer { tgid: 7, comm: "x".into(), cgroup: None, netns: 0 },
        protocol: Protocol::Udp,
        bytes,
        events: 1,
        approximate: false,
    };
    let foreign = Poll { napi: NapiId(9999), netns: 1, ..observation.attribution.polls[0].clone() };
    observation.attribution.polls.push(foreign);
    observation.attribution.consumption.extend([
        row(None, Resolved::Local, 10),
        row(None, Resolved::Unresolved, 20),
        row(Some(NapiId(9999)), Resolved::Direct, 30),
    ]);
    let silos = silos_of(&observation);
    let elsewhere = [&silos.local, &silos.unresolved, &silos.foreign].map(|e| e.bytes_per_s);
    assert_eq!(elsewhere, [1.0, 2.0, 3.0]);
    assert_eq!(silos.queues.len(), 2, "a device of the same name and index in another namespace is not ours");
    assert_eq!(silos.queues[0].bytes_per_s, Some(1000.0));
}

#[test]
fn locality_is_reckoned_from_the_cpu_that_ran_the_protocol() {
    let mut scene = scene();
    scene.netdevs[0].queues[0].rps_cpus = Some(set("3"));
    let silo = &silos_of(&scene.observation()).queues[0];
    assert_eq!(silo.polls.keys().copied().collect::<CpuSet>(), set("0"));
    assert_eq!(silo.protocol_cpus.keys().copied().collect::<CpuSet>(), set("3"));
    assert_eq!(silo.locality.shares[&Distance::Smt], 0.75);
}

#[test]
fn queues_of_one_interrupt_name_each_other() {
    let mut scene = scene();
    scene.netdevs[0].queues[1].irq = Some(30);
    let silos = silos_of(&scene.observation());
    assert_eq!(silos.queues[0].shares_irq_with, ["rx-1", "tx-0", "tx-1"]);
}

#[test]
fn a_device_without_known_interrupts_still_has_silos() {
    let mut scene = scene();
    scene.netdevs[0].queues[0].irq = None;
    let silo = &silos_of(&scene.observation()).queues[0];
    assert_eq!((silo.irq.clone(), silo.writable.clone(), silo.interrupts_per_s.clone()), (None, None, None));
}

#[test]
fn a_window_of_no_length_has_no_rates() {
    let mut observation = scene().observation();
    observation.attribution.elapsed = Duration::ZERO;
    let silo = &silos_of(&observation).queues[0];
    assert_eq!(silo.bytes_per_s, None);
    assert!(silo.own_share.values().all(|share| share.is_finite()));
}
