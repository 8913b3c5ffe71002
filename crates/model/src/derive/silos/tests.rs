//! Tests of silos, on scenes.

use std::time::Duration;

use super::*;
use crate::derive::rates::rates;
use crate::derive::thread_share::ThreadShare;
use crate::machine::cpuset::CpuSet;
use crate::machine::topology::Distance;
use crate::snapshot::attribution::{Consumer, QueueResolution};
use crate::snapshot::netdev::{AssociationSource, Confidence};
use crate::synthetic::grid::Grid;
use crate::synthetic::scene::{Reader, Scene, SceneForward, SceneNetdev, SceneQueue, SceneThread};

fn set(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

/// A 2 x 2 x 2 machine; two queues of a virtio device on cpu 0, the first one read on cpus 2 and 5.
pub(in crate::derive) fn scene() -> Scene {
    let queue = |irq| SceneQueue { irq: Some(irq), cpus: set("0"), ..SceneQueue::default() };
    let reader = |comm: &str, cpu, bytes_per_s| Reader {
        comm: comm.into(),
        cpu: CpuId(cpu),
        bytes_per_s,
        ..Reader::default()
    };
    let readers = vec![reader("redis", 2, 750), reader("iperf", 5, 250)];
    let first = SceneQueue { packets_per_s: 300, load: 0.3, readers, ..queue(30) };
    let queues = vec![first, SceneQueue { packets_per_s: 100, load: 0.1, ..queue(32) }];
    let netdev = SceneNetdev {
        name: "eth0".into(),
        driver: "virtio_net".into(),
        queues,
        ..SceneNetdev::default()
    };
    Scene {
        grid: Grid { nodes: 2, l2s: 2, threads: 2, ..Grid::default() },
        netdevs: vec![netdev],
        ..Scene::default()
    }
}

pub(in crate::derive) fn silos_of(observation: &Observation) -> Silos {
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
fn a_reader_is_as_far_as_the_nearest_cpu_that_ran_the_protocol() {
    let observation = scene().observation();
    let mut silo = silos_of(&observation).queues[0].clone();
    let distance =
        |silo: &Silo, cpu| silo.distance_to_reader(CpuId(cpu), &observation.after.topology);
    assert_eq!(distance(&silo, 0), Some(Distance::SameCpu));
    assert_eq!(distance(&silo, 5), Some(Distance::Remote));
    silo.protocol_cpus = [(CpuId(0), 0.5), (CpuId(4), 0.5)].into();
    assert_eq!(distance(&silo, 5), Some(Distance::Smt));
    (silo.protocol_cpus, silo.polls) = Default::default();
    assert_eq!(distance(&silo, 5), None, "polls were counted, and there were none");
    silo.packets_per_s = None;
    silo.interrupts_per_s = Some([(CpuId(6), 3.0)].into());
    assert_eq!((silo.polling_cpus(), distance(&silo, 5)), (set("6"), Some(Distance::Llc)));
}

#[test]
fn a_cpus_polling_time_is_divided_by_the_time_of_polls_where_that_was_measured() {
    let mut scene = scene();
    for (queue, load) in scene.netdevs[0].queues.iter_mut().zip([0.1, 0.4]) {
        (queue.load, queue.poll_time) = (load, true);
    }
    let silos = silos_of(&scene.observation());
    let own: Vec<f64> = silos.queues.iter().map(|silo| silo.own_share[&CpuId(0)]).collect();
    assert!((own[0] - 0.1).abs() < 1e-6 && (own[1] - 0.4).abs() < 1e-6, "{own:?}");
}

#[test]
fn a_cpus_polling_time_is_divided_by_packets() {
    let silos = silos_of(&scene().observation());
    let own: Vec<f64> = silos.queues.iter().map(|silo| silo.own_share[&CpuId(0)]).collect();
    assert!((own[0] - 0.3).abs() < 1e-9 && (own[1] - 0.1).abs() < 1e-9, "{own:?}");
    assert_eq!(
        silos.queues[0].softirq,
        Some(SoftirqShare { cpu: CpuId(0), share: 0.4, measured: true })
    );
}

#[test]
fn the_load_of_a_kthread_is_the_time_that_it_ran() {
    let mut scene = scene();
    scene.netdevs[0].threaded = true;
    for (queue, load) in scene.netdevs[0].queues.iter_mut().zip([0.1, 0.05]) {
        (queue.load, queue.kthread_waited) = (load, Some(0.2));
        queue.kthread_cpus = set("0");
    }
    // %sys is of everything that runs on the CPU, and packets say nothing of the time
    let silos = silos_of(&scene.observation());
    let own: Vec<f64> = silos.queues.iter().map(|silo| silo.own_share[&CpuId(0)]).collect();
    assert!((own[0] - 0.1).abs() < 1e-9 && (own[1] - 0.05).abs() < 1e-9, "{own:?}");
    assert_eq!(silos.queues[0].kthread_time, Some(ThreadShare { ran: 0.1, waited: 0.2 }));
    scene.netdevs[0].queues.iter_mut().for_each(|queue| queue.kthread_waited = None);
    let silos = silos_of(&scene.observation());
    let own: Vec<f64> = silos.queues.iter().map(|silo| silo.own_share[&CpuId(0)]).collect();
    assert!(own[0] > 0.11, "{own:?}: in proportion to packets");
    assert_eq!(silos.queues[0].kthread_time, None);
}

#[test]
fn without_ebpf_a_queue_is_polled_where_its_kthread_ran_and_not_where_it_is_woken() {
    let mut scene = Scene { without_bpf: true, ..scene() };
    scene.netdevs[0].threaded = true;
    for queue in &mut scene.netdevs[0].queues {
        (queue.kthread_waited, queue.kthread_cpus) = (Some(0.0), set("3"));
    }
    let silo = &silos_of(&scene.observation()).queues[0];
    assert_eq!(silo.interrupts_per_s.as_ref().unwrap().keys().next(), Some(&CpuId(0)));
    assert_eq!((silo.polling_cpus(), silo.own_share[&CpuId(3)]), (set("3"), 0.3));
}

#[test]
fn interrupts_without_softirqs_only_wake_a_kthread_if_there_is_one_of_no_netdev() {
    let only_wakes = |comm: &str, softirqs: bool| {
        let thread =
            SceneThread { comm: comm.into(), cpus: set("1"), load: 0.5, without_time: false };
        let mut scene = Scene { without_bpf: true, threads: vec![thread], ..scene() };
        scene.netdevs[0].queues[0].packets_per_s = 3000;
        let mut host = scene.observation();
        if !softirqs {
            let before = host.before.cpus.clone();
            for (cpu, counters) in &mut host.after.cpus {
                counters.softirqs = before[cpu].softirqs.clone();
            }
        }
        let silo = silos_of(&host).queues[0].clone();
        assert_eq!(silo.polling_cpus().is_empty(), silo.only_wakes);
        silo.only_wakes
    };
    assert!(only_wakes("napi/phy0-7", false));
    assert!(!only_wakes("napi/phy0-7", true), "its handler schedules a NAPI");
    assert!(!only_wakes("ksoftirqd/1", false), "nothing else is known to poll");
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
fn a_napi_belongs_to_the_queue_of_its_packets() {
    let mut scene = scene();
    scene.netdevs[0].napis_unknown = true;
    let silos = silos_of(&scene.observation());
    let napi = silos.queues[0].napi.clone().unwrap();
    assert_eq!((napi.to, napi.source), (NapiId(8193), AssociationSource::Observed));
}

/// All packets of both NAPIs say that they came on queue 0.
fn packets_of_queue_0() -> Observation {
    let mut scene = scene();
    scene.netdevs[0].napis_unknown = true;
    let mut observation = scene.observation();
    let rows = &mut observation.attribution.consumption;
    rows.iter_mut().for_each(|row| row.rx_queue = Some(0));
    let others = rows.clone().into_iter();
    rows.extend(others.map(|row| Consumption { napi: Some(NapiId(8194)), bytes: 7, ..row }));
    observation
}

fn queues_and_napis(observation: &Observation) -> Vec<(Option<u32>, NapiId)> {
    let queues = silos_of(observation).queues;
    queues.iter().filter_map(|silo| Some((silo.queue, silo.napi.clone()?.to))).collect()
}

/// Linux 6.18, TCP on a veth with two queues.
#[test]
fn the_napis_of_a_veth_are_those_of_its_queues_in_order_whatever_its_packets_say() {
    let mut observation = packets_of_queue_0();
    for snapshot in [&mut observation.before, &mut observation.after] {
        (snapshot.netdevs[0].driver, snapshot.netdevs[0].device_path) = (Some("veth".into()), None);
    }
    let in_order = [(Some(0), NapiId(8193)), (Some(1), NapiId(8194))];
    assert_eq!(queues_and_napis(&observation), in_order);

    // One of its NAPIs was not seen: the other one may belong to either queue.
    observation.attribution.polls.retain(|poll| poll.napi == NapiId(8194));
    assert_eq!(queues_and_napis(&observation), [(None, NapiId(8194))]);
}

#[test]
fn of_two_napis_with_packets_of_one_queue_the_one_with_most_belongs_to_it() {
    let observation = packets_of_queue_0();
    // The other one by its interrupt.
    let expected = [(Some(0), NapiId(8193)), (Some(1), NapiId(8194))];
    assert_eq!(queues_and_napis(&observation), expected);
}

/// The case of vmxnet3 without a known RSS hash.
#[test]
fn a_napi_belongs_to_the_only_open_queue_whose_interrupt_is_on_its_cpu() {
    let mut scene = scene();
    scene.netdevs[0].napis_unknown = true;
    let silos = silos_of(&scene.observation());
    let queue = &silos.queues[1];
    let napi = queue.napi.clone().unwrap();
    assert_eq!((napi.to, napi.confidence), (NapiId(8194), Confidence::Guess));
    assert_eq!(queue.packets_per_s, Some(100.0));
    assert!(!silos.may_receive_nothing(queue));

    let mut observation = scene.observation();
    observation.attribution.consumption.clear();
    let silos = silos_of(&observation);
    assert_eq!(silos.queues[1].napi, None, "two open queues have interrupts on that cpu");
    assert_eq!(silos.queues[2].label(), "eth0 napi 8193");
    assert!(silos.may_receive_nothing(&silos.queues[1]));
}

/// WireGuard's only queue, and a tap of two, whose NAPIs have no id.
#[test]
fn polls_without_an_id_are_of_the_netdev_that_they_name() {
    let mut observation = scene().observation();
    let Observation { before, after, attribution } = &mut observation;
    let netdev = &mut after.netdevs[0];
    let thread = NapiThread { pid: 77, comm: "napi/wg0-0".into(), start_time: 1, cpus: set("1") };
    (netdev.driver, netdev.device_path, netdev.napis) =
        (Some("tun".into()), None, vec![Napi { id: NapiId(0), irq: None, thread: Some(thread) }]);
    netdev.rx_queues.iter_mut().for_each(|queue| (queue.napi, queue.irq) = (None, None));
    let poll = |poll: &Poll| Poll { napi: NapiId(0), ..poll.clone() };
    attribution.polls = attribution.polls.iter().map(poll).collect();
    attribution.consumption.clear();
    before.netdevs = after.netdevs.clone();
    let polled = |observation: &Observation| -> Vec<(Option<u32>, Option<u32>, f64)> {
        let polled = silos_of(observation).queues.into_iter();
        let row = |it: Silo| Some((it.queue, it.kthread.map(|it| it.pid), it.packets_per_s?));
        polled.filter_map(row).filter(|it| it.2 > 0.0).collect()
    };
    assert_eq!(polled(&observation), [(None, None, 400.0)]);
    let netdev = &mut observation.after.netdevs[0];
    (netdev.driver, netdev.threaded) = (Some("wireguard".into()), Some(1));
    netdev.rx_queues.truncate(1);
    assert_eq!(polled(&observation), [(Some(0), Some(77), 400.0)]);
}

#[test]
fn local_foreign_and_unresolved_data_belongs_to_no_silo() {
    let mut observation = scene().observation();
    let row = |napi, resolved, bytes| Consumption {
        napi,
        rx_queue: None,
        resolved,
        poll_cpu: None,
        protocol_cpu: None,
        consumer_cpu: CpuId(1),
        consumer: Consumer { tgid: 7, comm: "x".into(), work: false, cgroup: None, netns: 0 },
        protocol: Protocol::Udp,
        bytes,
        events: 1,
        first_reads: 0,
        approximate: false,
        connected: None,
    };
    let foreign = Poll { napi: NapiId(9999), netns: 1, ..observation.attribution.polls[0].clone() };
    observation.attribution.polls.push(foreign);
    observation.attribution.consumption.extend([
        row(None, QueueResolution::Local, 10),
        row(None, QueueResolution::Unresolved, 20),
        row(Some(NapiId(9999)), QueueResolution::Direct, 30),
    ]);
    let silos = silos_of(&observation);
    let elsewhere = [&silos.local, &silos.unresolved, &silos.foreign].map(|e| e.bytes_per_s);
    assert_eq!(elsewhere, [1.0, 2.0, 3.0]);
    assert_eq!(
        silos.queues.len(),
        2,
        "a device of the same name and index in another namespace is not ours"
    );
    assert_eq!(silos.queues[0].bytes_per_s, Some(1000.0));
}

/// The case of a stranger: a program whose queue was not found, while one queue's reader was not
/// seen. All that is known of both is that their packets were handled on one CPU.
#[test]
fn data_of_unknown_origin_is_given_to_no_queue_however_few_there_are() {
    let mut scene = scene();
    scene.netdevs[0].queues.truncate(1);
    let mut observation = scene.observation();
    observation.attribution.consumption.iter_mut().for_each(|row| {
        (row.napi, row.rx_queue, row.resolved) = (None, None, QueueResolution::Unresolved);
        (row.protocol_cpu, row.events) = (Some(CpuId(0)), 1);
    });
    for netns in [0, 1] {
        let mut observation = observation.clone();
        let rows = observation.attribution.consumption.iter_mut();
        rows.for_each(|row| row.consumer.netns = netns);
        let silos = silos_of(&observation);
        let silo = &silos.queues[0];
        assert_eq!((&silo.consumers, silo.bytes_per_s), (&Vec::new(), None));
        assert_eq!((silo.unknown_share, silo.readers_are_known()), (1.0, false));
        assert_eq!(silos.unresolved.bytes_per_s, 1000.0);
    }
}

/// The case of a router between namespaces: its NIC is a veth, and the reader is behind it.
#[test]
fn data_of_unknown_origin_is_of_a_queue_if_as_much_arrived_there_where_its_protocol_ran() {
    let mut scene = scene();
    scene.netdevs[0].queues.truncate(1);
    let packets = scene.observation().attribution.polls.iter().map(|poll| poll.packets).sum();
    let read: u64 = scene.observation().attribution.consumption.iter().map(|row| row.bytes).sum();
    let unresolved = |bytes: u64, change: &dyn Fn(&mut Observation)| {
        let counters = [("rx_bytes", bytes + 66 * packets), ("rx_packets", packets)];
        let mut scene = scene.clone();
        scene.netdevs[0].per_s = counters.map(|(name, rate)| (name.to_owned(), rate)).into();
        let mut observation = scene.observation();
        let rows = observation.attribution.consumption.iter_mut();
        let each = packets / rows.len() as u64;
        for row in observation.attribution.consumption.iter_mut() {
            (row.napi, row.rx_queue, row.resolved) = (None, None, QueueResolution::Unresolved);
            (row.protocol_cpu, row.events) = (Some(CpuId(0)), each);
        }
        change(&mut observation);
        let silos = silos_of(&observation);
        (silos.unresolved.bytes_per_s, silos.queues[0].approximate_share)
    };
    let nothing = |_: &mut Observation| {};
    assert_eq!(unresolved(read, &nothing), (0.0, 1.0), "it is marked as probable");
    // ten times as much arrived: the reader of most of it is not seen, and this may be another's
    assert_eq!(unresolved(10 * read + 600 * packets, &nothing), (1000.0, 0.0));
    let other_cpu = |it: &mut Observation| {
        it.attribution.consumption.iter_mut().for_each(|row| row.protocol_cpu = Some(CpuId(1)));
    };
    assert_eq!(unresolved(read, &other_cpu).0, 1000.0);
    let other_queue = |it: &mut Observation| {
        let foreign = Poll { napi: NapiId(9999), netns: 1, ..it.attribution.polls[0].clone() };
        it.attribution.polls.push(foreign);
    };
    assert_eq!(unresolved(read, &other_queue).0, 1000.0);
    for events in [0, 1 << 40] {
        let other_reads = |it: &mut Observation| {
            it.attribution.consumption.iter_mut().for_each(|row| row.events = events);
        };
        assert_eq!(unresolved(read, &other_reads).0, 1000.0, "{events} reads");
    }
    let steered = |it: &mut Observation| {
        it.after.netdevs[0].rx_queues[0].rps_cpus = Some(set("3"));
    };
    assert_eq!(unresolved(read, &steered).0, 1000.0);
}

#[test]
fn a_queue_number_alone_is_of_no_netdev_even_if_there_is_only_one() {
    let mut observation = scene().observation();
    // the NAPI of a netdev that was not polled in this window
    let rows = observation.attribution.consumption.iter_mut();
    rows.for_each(|row| (row.napi, row.rx_queue) = (Some(NapiId(9999)), Some(0)));
    assert_eq!(silos_of(&observation).unresolved.bytes_per_s, 1000.0);
    let rows = observation.attribution.consumption.iter_mut();
    rows.for_each(|row| (row.napi, row.resolved) = (None, QueueResolution::Toeplitz));
    assert_eq!(silos_of(&observation).queues[0].bytes_per_s, Some(1000.0), "it was computed");
}

#[test]
fn copies_are_read_where_nobody_else_reads() {
    let consumers = |change: &dyn Fn(&mut Observation)| {
        let mut observation = scene().observation();
        observation.attribution.consumption[0].protocol = Protocol::Packet;
        change(&mut observation);
        silos_of(&observation).queues[0].consumers.len()
    };
    let all = silos_of(&scene().observation()).queues[0].consumers.len();
    assert_eq!(consumers(&|_| {}), all - 1);
    let to_packet = |host: &mut Observation| {
        let rows = host.attribution.consumption.iter_mut();
        rows.for_each(|row| row.protocol = Protocol::Packet);
    };
    assert_eq!(consumers(&to_packet), all);
}

#[test]
fn locality_starts_at_the_cpu_that_ran_the_protocol() {
    let mut scene = scene();
    scene.netdevs[0].queues[0].rps_cpus = Some(set("3"));
    let silo = &silos_of(&scene.observation()).queues[0];
    assert_eq!(silo.polls.keys().copied().collect::<CpuSet>(), set("0"));
    assert_eq!(silo.protocol_cpus.keys().copied().collect::<CpuSet>(), set("3"));
    assert_eq!(silo.locality.shares[&Distance::Smt], 0.75);
    // Where a kernel does not tell it, as of UDP on some, it is not the CPU that polled.
    let mut observation = scene.observation();
    observation.attribution.consumption.iter_mut().for_each(|row| row.protocol_cpu = None);
    let silo = &silos_of(&observation).queues[0];
    assert!(silo.protocol_cpus.is_empty(), "{:?}", silo.protocol_cpus);
    assert!((silo.locality.unknown - 1.0).abs() < 1e-9, "{:?}", silo.locality);
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
    assert_eq!(
        (silo.irq.clone(), silo.writable.clone(), silo.interrupts_per_s.clone()),
        (None, None, None)
    );
}

#[test]
fn a_window_of_no_length_has_no_rates() {
    let mut observation = scene().observation();
    observation.attribution.elapsed = Duration::ZERO;
    let silo = &silos_of(&observation).queues[0];
    assert_eq!(silo.bytes_per_s, None);
    assert!(silo.own_share.values().all(|share| share.is_finite()));
}

#[test]
fn wakeups_are_counted_by_the_cpu_where_the_reader_slept() {
    let mut scene = scene();
    scene.netdevs[0].queues[0].wakeups_per_s = 400;
    let silo = &silos_of(&scene.observation()).queues[0];
    let woken: Vec<_> =
        silo.consumers.iter().map(|c| (c.wakeups_per_s, c.wakeups_on.clone())).collect();
    let expected =
        [(Some(300.0), [(CpuId(2), 300.0)].into()), (Some(100.0), [(CpuId(5), 100.0)].into())];
    assert_eq!(woken, expected);
}

#[test]
fn uncounted_wakeups_are_absent_and_not_zero() {
    let silo = &silos_of(&scene().observation()).queues[0];
    assert_eq!(silo.consumers[0].wakeups_per_s, None);
}

/// They are counted by process: of several together, and of the kernel's work, they are not known.
#[test]
fn only_a_process_has_wakeups() {
    let mut scene = scene();
    scene.netdevs[0].queues[0].wakeups_per_s = 400;
    let mut observation = scene.observation();
    let reader = |observation: &Observation| {
        let silos = silos_of(observation);
        let consumer = &silos.queues[0].consumers[0];
        (consumer.kind, consumer.wakeups_per_s.is_some(), consumer.label())
    };
    let (kind, counted, label) = reader(&observation);
    assert_eq!((kind, counted), (ReaderKind::Process, true), "{label}");
    for row in &mut observation.attribution.consumption {
        row.consumer.tgid = 0;
        row.consumer.comm = "dns".into();
    }
    let several = (ReaderKind::Processes, false, "dns (processes not told apart)".into());
    assert_eq!(reader(&observation), several);
    for row in &mut observation.attribution.consumption {
        row.consumer.comm.clear();
    }
    assert_eq!(reader(&observation), (ReaderKind::Kernel, false, "softirq (kernel)".into()));
    for row in &mut observation.attribution.consumption {
        row.consumer.comm = "xs_stream_data_receive_workfn [sunrpc]".into();
        row.consumer.work = true;
    }
    let work = "xs_stream_data_receive_workfn [sunrpc] (kernel)".into();
    assert_eq!(reader(&observation), (ReaderKind::Kernel, false, work));
}

#[test]
fn queues_of_one_cpu_share_a_readers_wakeups_by_its_reads() {
    let mut scene = scene();
    scene.netdevs[0].queues[0].wakeups_per_s = 400;
    scene.netdevs[0].queues[1].readers =
        vec![Reader { comm: "redis".into(), cpu: CpuId(2), bytes_per_s: 1, ..Reader::default() }];
    let mut observation = scene.observation();
    let reads =
        observation.attribution.consumption.iter_mut().filter(|row| row.consumer.comm == "redis");
    reads.zip([200, 100]).for_each(|(row, events)| row.events = events);
    let silos = silos_of(&observation);
    let woken = [0, 1].map(|queue| silos.queues[queue].consumers[0].wakeups_per_s);
    assert_eq!(woken, [Some(200.0), Some(100.0)]);
}

/// A scene whose second queue forwards unread packets to a second device.
fn forwarding() -> Scene {
    let mut scene = scene();
    let forward = |queue, packets_per_s| SceneForward {
        to: "eth1".into(),
        queue,
        packets_per_s,
        bytes_per_s: packets_per_s * 100,
    };
    scene.netdevs[0].queues[1].forwards = vec![forward(0, 20), forward(3, 60)];
    scene.netdevs.push(SceneNetdev { name: "eth1".into(), ..SceneNetdev::default() });
    scene
}

#[test]
fn a_queue_knows_where_its_packets_leave_heaviest_first() {
    let silos = silos_of(&forwarding().observation());
    let forwards = &silos.queues[1].forwards;
    let labels: Vec<_> = forwards.iter().map(|to| (to.label(), to.share, to.cpu)).collect();
    assert_eq!(labels, [("eth1 tx-3".into(), 0.6, CpuId(0)), ("eth1 tx-0".into(), 0.2, CpuId(0))]);
    assert_eq!((silos.forwarded.packets_per_s, silos.forwarded.bytes_per_s), (80.0, 8000.0));
    assert_eq!((silos.queues[0].forwards.len(), silos.forwarded.from_no_queue.len()), (0, 0));
}

#[test]
fn a_napi_belongs_to_the_queue_of_its_forwarded_packets() {
    let mut scene = forwarding();
    scene.netdevs[0].napis_unknown = true;
    let silos = silos_of(&scene.observation());
    let napis: Vec<_> =
        silos.queues.iter().map(|silo| silo.napi.clone().map(|napi| napi.to)).collect();
    assert_eq!(napis, [Some(NapiId(8193)), Some(NapiId(8194))]);
    assert_eq!(silos.queues[1].packets_per_s, Some(100.0));
}

#[test]
fn packets_of_a_container_are_forwarded_from_no_queue() {
    let mut observation = forwarding().observation();
    let row = Forwarded {
        napi: None,
        rx_queue: None,
        packets: 200,
        ..observation.attribution.forwarded[0].clone()
    };
    observation.attribution.forwarded.push(row);
    let forwarded = silos_of(&observation).forwarded;
    assert_eq!((forwarded.packets_per_s, forwarded.from_no_queue[0].share), (100.0, 0.2));
}
