//! The choice between two remedies of a finding, or between a finding and none, in addition to
//! `cases/check`.

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpu_owner::CpuOwner;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::audit::{Audit, Connection, Connections, Qdisc};
use netsilo_model::snapshot::ethtool::{
    Coalesce, Ethtool, Feature, FlowType, HashFields, Limit, Rings,
};
use netsilo_model::snapshot::flow::Outer;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::sockets::{LosingSocket, SocketKind};
use netsilo_model::synthetic::arrivals::{SceneFlow, SceneRss};
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{CpuLoad, Reader, Scene, SceneNetdev, SceneQueue};

use super::*;
use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::judged::Judged;

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// Four CPUs under one last-level cache. Queue N of eth0 has the Nth of these CPUs and loads.
fn scene(queues: &[(&str, f64)]) -> Scene {
    let queue = |(at, (cpus, load)): (usize, &(&str, f64))| SceneQueue {
        irq: Some(30 + at as u32),
        cpus: set(cpus),
        kthread_cpus: set(cpus),
        rps_cpus: Some(CpuSet::new()),
        packets_per_s: 100_000,
        load: *load,
        ..SceneQueue::default()
    };
    let eth0 = SceneNetdev {
        name: "eth0".into(),
        driver: "igb".into(),
        queues: queues.iter().enumerate().map(queue).collect(),
        ..SceneNetdev::default()
    };
    Scene { grid: Grid { l2s: 4, ..Grid::default() }, netdevs: vec![eth0], ..Scene::default() }
}

fn with_judged<T>(observation: &Observation, then: impl FnOnce(&Judged<'_>) -> T) -> T {
    let costs = Costs::default();
    then(&Judged::new(&Analysis::new(observation, &costs)))
}

/// The finding with this id.
fn found(observation: &Observation, id: FindingId) -> Option<Finding> {
    let check = check(&Analysis::new(observation, &Costs::default()));
    check.findings.into_iter().find(|finding| finding.id == id)
}

/// The value of an evidence.
fn measured<'a>(finding: &'a Finding, quantity: &str) -> &'a Measure {
    let is_it = |it: &&Evidence| it.quantity == quantity;
    &finding.evidence.iter().find(is_it).unwrap_or_else(|| panic!("{finding:#?}")).measure
}

/// Changes both snapshots. The first argument is 0 for the snapshot before, 1 for the one after.
fn with(mut observation: Observation, change: impl Fn(u64, &mut Snapshot)) -> Observation {
    change(0, &mut observation.before);
    change(1, &mut observation.after);
    observation
}

#[test]
fn an_owned_cpu_names_its_owner_and_may_poll_what_the_owner_claims() {
    let mut scene = scene(&[("3", 0.2), ("3", 0.2)]);
    let cgroup = Some("/kubepods.slice/crio-a.scope".into());
    let reader = Reader { cpu: CpuId(3), bytes_per_s: 1_000_000, cgroup, ..Reader::default() };
    scene.netdevs[0].queues[0].readers = vec![reader];
    scene.cpu_owners = vec![CpuOwner {
        cgroup: "crio-a.scope".into(),
        name: "shop/web-1/nginx".into(),
        cpus: set("3"),
        why: "irq-load-balancing.crio.io: disable".into(),
        claims_queues: false,
    }];
    let title =
        |scene: &Scene| Some(found(&scene.observation(), FindingId::ReceiveOnIsolatedCpu)?.title);
    let owner = "this cpu is exclusive to shop/web-1/nginx (irq-load-balancing.crio.io: disable";
    assert_eq!(title(&scene), Some(format!("{owner}), but polls eth0 rx-0, eth0 rx-1")));
    scene.cpu_owners[0].claims_queues = true;
    let claims = format!("{owner}, but takes the queues that it reads), but polls eth0 rx-1");
    assert_eq!(title(&scene), Some(claims));
    scene.netdevs[0].queues.pop();
    assert_eq!(title(&scene), None);
    scene.nohz_full = set("3");
    assert!(title(&scene).is_some_and(|it| it.contains("tickless")), "no claim holds there");
}

#[test]
fn a_cpu_of_an_isolated_partition_is_isolated_as_one_of_the_boot_list_is() {
    let mut scene = scene(&[("3", 0.2)]);
    assert!(found(&scene.observation(), FindingId::ReceiveOnIsolatedCpu).is_none());
    scene.isolated_partitions = set("3");
    let finding = found(&scene.observation(), FindingId::ReceiveOnIsolatedCpu).unwrap();
    assert_eq!(finding.title, "this cpu is isolated by a cpuset partition, but polls eth0 rx-0");
    assert!(finding.writable().is_some(), "{:?}", finding.remedies);
}

#[test]
fn a_larger_mtu_is_advised_for_full_packets_only() {
    let of_bytes = |bytes: u64| {
        let mut scene = scene(&[("0", 0.7)]);
        scene.netdevs[0].per_s =
            [("rx_packets".into(), 100_000), ("rx_bytes".into(), 100_000 * bytes)].into();
        found(&scene.observation(), FindingId::MtuSmall).is_some()
    };
    assert_eq!([1440, 1200, 1199, 100].map(of_bytes), [true, true, false, false]);
}

#[test]
fn one_cpu_gets_no_advice_that_needs_another_one() {
    let on = |cpus: u32| {
        let mut scene = scene(&[("0", 0.96), ("0", 0.0)]);
        scene.grid.l2s = cpus;
        scene.netdevs[0].flows =
            vec![SceneFlow { outer: Some(Outer::Gre), packets: 20_000, ..SceneFlow::default() }];
        scene.netdevs[0].rss = Some(SceneRss { entries: 128, ..SceneRss::default() });
        let observation = scene.observation();
        let relief = with_judged(&observation, |judged| {
            relief::spread(judged, &CpuWork::of(judged.analysis, CpuId(0))).gain
        });
        (found(&observation, FindingId::TunnelOneQueue).is_some(), relief)
    };
    assert_eq!(on(1), (false, Gain::Nothing("there is no other cpu".into())));
    let (tunnel, relief) = on(2);
    assert!(tunnel && relief != on(1).1, "{relief:?}");
}

#[test]
fn where_reads_were_not_counted_tcp_info_tells_that_segments_could_be_merged() {
    let with_received_by =
        |netdev: &str| found(&without_gro(&bulk(&[("0", 0.6)]), netdev), FindingId::GroOff);
    let off = with_received_by("eth0").unwrap();
    let tcp = off.evidence.iter().find(|it| it.source == "tcp_info").unwrap();
    assert_eq!(tcp.measure, Measure::Share(120.0 / 145.0));
    assert_eq!(with_received_by("eth1"), None, "what another netdev received says nothing");
}

/// A scene whose eth0 receives full packets.
fn bulk(queues: &[(&str, f64)]) -> Scene {
    let mut scene = scene(queues);
    scene.netdevs[0].per_s =
        [("rx_packets".into(), 100_000), ("rx_bytes".into(), 145_000_000)].into();
    scene
}

/// An observation in which GRO of eth0 is off, and one connection received 120 MB/s from a netdev.
fn without_gro(scene: &Scene, netdev: &str) -> Observation {
    let feature = Feature {
        name: "rx-gro".into(),
        available: true,
        requested: false,
        active: false,
        never_changed: false,
    };
    with(scene.observation(), |at, snapshot| {
        snapshot.netdevs[0].ethtool = Some(Ethtool {
            features: Reading::Value(vec![feature.clone()]),
            ..Ethtool::unavailable("not asked")
        });
        let connection = Connection {
            cookie: netdev.len() as u64,
            netdev: Some(netdev.into()),
            bytes_received: at * 1_200_000_000,
            ..Connection::default()
        };
        let connections = Reading::Value(Connections { seen: 1, busiest: vec![connection] });
        snapshot.audit = Some(audit(connections, Vec::new()));
    })
}

#[test]
fn without_ebpf_the_interrupts_tell_which_cpu_polls() {
    let mut scene = bulk(&[("1", 0.6)]);
    scene.without_bpf = true;
    let mtu = found(&scene.observation(), FindingId::MtuSmall).unwrap();
    assert_eq!(*measured(&mtu, "time of cpu1 in softirqs"), Measure::Share(0.6));
    let source = &mtu.evidence.last().unwrap().source;
    assert_eq!(source, "/proc/stat; interrupts by /proc/interrupts");
    assert!(found(&without_gro(&scene, "eth0"), FindingId::GroOff).is_some());

    let mut one_queue = scene.clone();
    one_queue.netdevs[0].driver = "virtio_net".into();
    let observation = with(one_queue.observation(), |_, snapshot| {
        let mut audit = audit(Reading::Absent("not asked".into()), Vec::new());
        audit.netdevs.entry("eth0".into()).or_default().virtio_features = Some(vec![0, 1]);
        snapshot.audit = Some(audit);
    });
    assert!(found(&observation, FindingId::VirtioOneQueue).is_some());
}

#[test]
fn without_ebpf_no_cpu_polls_for_a_kthread_or_for_the_lesser_of_two_netdevs() {
    let fires = |change: fn(&mut Scene)| {
        let mut scene = bulk(&[("0", 0.7)]);
        scene.without_bpf = true;
        change(&mut scene);
        found(&scene.observation(), FindingId::MtuSmall).is_some()
    };
    assert!(fires(|_| ()));
    assert!(fires(|scene| add_eth1(scene, 90_000)));
    assert!(!fires(|scene| add_eth1(scene, 110_000)), "eth1 may take most of the cpu's time");
    assert!(!fires(|scene| scene.netdevs[0].threaded = true), "a kthread is no softirq");
}

/// Adds eth1, with its interrupt on the CPU of eth0's.
fn add_eth1(scene: &mut Scene, packets: u64) {
    let mut eth1 = scene.netdevs[0].clone();
    eth1.name = "eth1".into();
    eth1.queues[0].irq = Some(90);
    eth1.per_s = [("rx_packets".into(), packets), ("rx_bytes".into(), packets * 64)].into();
    scene.netdevs.push(eth1);
}

fn audit(connections: Reading<Connections>, qdiscs: Vec<Qdisc>) -> Audit {
    Audit {
        netdevs: [("eth0".into(), Default::default())].into(),
        napis: Default::default(),
        qdiscs: Reading::Value(qdiscs),
        connections,
        cpus: Default::default(),
        machine: Default::default(),
    }
}

#[test]
fn a_cpu_is_relieved_by_the_kthreads_of_its_queues_that_move() {
    let mut scene = scene(&[("0", 0.5), ("0", 0.46), ("1", 0.1)]);
    scene.netdevs[0].threaded = true;
    let observation = scene.observation();
    let (remedy, planned) = with_judged(&observation, |judged| {
        let remedy = relief::spread(judged, &CpuWork::of(judged.analysis, CpuId(0)));
        (remedy, judged.plan.changes.clone())
    });
    let pid = |change: &Change| match &change.target {
        Target::NapiThread(knob) => Some(knob.pid),
        _ => None,
    };
    let pids: Vec<u32> = remedy.changes.iter().filter_map(pid).collect();
    assert!(matches!(pids[..], [900 | 901]), "{pids:?} of {planned:#?}");
    assert_eq!(remedy.what, format!("move eth0 rx-{} to another cpu", pids[0] - 900));
}

#[test]
fn rps_is_set_from_the_present_value_of_that_queue() {
    let mut scene = scene(&[("0", 0.6), ("1", 0.6)]);
    scene.netdevs[0].queues[0].rps_cpus = Some(set("2"));
    let observation = scene.observation();
    let netdev = &observation.after.netdevs[0];
    for (queue, present) in [(0, "2"), (1, "")] {
        let remedy = with_judged(&observation, |it| rss::rps(it, netdev, queue, "why"));
        assert_eq!(remedy.changes[0].old, Value::Cpus(set(present)), "rx-{queue}");
    }
}

#[test]
fn rps_takes_cpus_that_are_at_least_half_idle() {
    let mut scene = scene(&[("0", 0.9)]);
    scene.busy =
        [("1", 0.48), ("2-3", 0.52)].map(|(cpus, usr)| CpuLoad { cpus: set(cpus), usr }).into();
    let observation = scene.observation();
    let netdev = &observation.after.netdevs[0];
    let remedy = with_judged(&observation, |it| rss::rps(it, netdev, 0, ""));
    assert_eq!(remedy.changes[0].new, Value::Cpus(set("1")));
}

#[test]
fn udp_ports_are_not_hashed_from_1_percent_of_fragments_on() {
    let changes = |fragments: u64| {
        let mut scene = scene(&[("0", 0.1), ("1", 0.1)]);
        let flows = |count, packets, fragments| SceneFlow {
            outer: Some(Outer::Udp),
            hash: Some(1),
            count,
            packets,
            fragments,
            ..SceneFlow::default()
        };
        let fields = [(FlowType::Udp4, HashFields::ADDRESSES)].into();
        scene.netdevs[0].rss = Some(SceneRss { entries: 128, fields, ..SceneRss::default() });
        scene.netdevs[0].flows = vec![flows(9, 1000, false), flows(1, fragments, true)];
        let found = found(&scene.observation(), FindingId::UdpOneQueue).unwrap();
        let by_ports = found.remedies.iter().find(|it| it.what.starts_with("hash UDP ports"));
        by_ports.unwrap().changes.len()
    };
    assert_eq!([80, 100].map(changes), [1, 0]);
}

#[test]
fn an_uneven_table_names_the_queue_with_most_packets() {
    let mut scene = scene(&[("0", 0.1), ("1", 0.1), ("2", 0.4), ("3", 0.1)]);
    let flows = |hash, hash_step, count, packets| SceneFlow {
        outer: Some(Outer::Tcp),
        hash: Some(hash),
        hash_step,
        count,
        packets,
        ..SceneFlow::default()
    };
    scene.netdevs[0].rss = Some(SceneRss { entries: 128, ..SceneRss::default() });
    scene.netdevs[0].flows = vec![flows(2, 4, 8, 1000), flows(0, 1, 60, 50)];
    let skew = found(&scene.observation(), FindingId::RssTableSkew).unwrap();
    assert!(skew.title.starts_with("rx-2 receives 3.2 times the mean"), "{}", skew.title);
    let Gain::Unknown(of) = &skew.remedies[0].gain else { panic!("{skew:#?}") };
    assert!(of.contains("of cpu 2's time"), "{of}");
}

/// An observation of eth0 with these disciplines, each with the packets it sent and dropped.
fn with_qdiscs(scene: &Scene, qdiscs: &[(&str, u32, u32, u64, u32)]) -> Observation {
    with(scene.observation(), |at, snapshot| {
        let qdisc = |(kind, handle, parent, packets, drops): &(&str, u32, u32, u64, u32)| Qdisc {
            ifindex: 2,
            kind: (*kind).into(),
            handle: *handle,
            parent: *parent,
            packets: at * packets,
            drops: at as u32 * drops,
            ..Qdisc::default()
        };
        let none = Connections { seen: 0, busiest: Vec::new() };
        let qdiscs = qdiscs.iter().map(qdisc).collect();
        snapshot.audit = Some(audit(Reading::Value(none), qdiscs));
    })
}

#[test]
fn a_drop_in_a_child_discipline_is_counted_once() {
    let qdiscs =
        [("prio", 0x1_0000, Qdisc::ROOT, 400_000, 4000), ("pfifo", 0, 0x1_0001, 400_000, 4000)];
    let drops = found(&with_qdiscs(&scene(&[("0", 0.3)]), &qdiscs), FindingId::QdiscDrops).unwrap();
    assert_eq!(drops.title, "pfifo drops packets");
    assert_eq!(*measured(&drops, "packets dropped"), Measure::PerSecond(400.0));
}

#[test]
fn two_tx_queues_are_enough_to_wait_for_one_lock() {
    let qdiscs = [("pfifo", 0, Qdisc::ROOT, 5_000_000, 0)];
    let locked = |queues: &[(&str, f64)]| {
        found(&with_qdiscs(&scene(queues), &qdiscs), FindingId::QdiscOneLock).is_some()
    };
    assert!(locked(&[("0", 0.1), ("1", 0.1)]) && !locked(&[("0", 0.1)]));
}

#[test]
fn a_ring_is_enlarged_unless_the_driver_shows_that_it_had_free_descriptors() {
    let advice = |driver: &str, counter: &str| {
        let mut scene = scene(&[("0", 0.3)]);
        scene.netdevs[0].driver = driver.into();
        let observation = with(scene.observation(), |at, snapshot| {
            let rx = Some(Limit { current: 256, max: 4096 });
            snapshot.netdevs[0].ethtool = Some(Ethtool {
                rings: Reading::Value(Rings { rx, rx_mini: None, rx_jumbo: None, tx: None }),
                stats: Reading::Value(vec![(counter.into(), at * 5000)]),
                ..Ethtool::unavailable("not asked")
            });
        });
        found(&observation, FindingId::NicDrops).unwrap().remedies[0].what.clone()
    };
    let larger = "a receive ring of 512 descriptors instead of 256";
    // the buffer of this NIC overflows while it waits for descriptors
    assert_eq!(advice("igb", "rx_missed_errors"), larger);
    assert_eq!(advice("mlx5_core", "rx_out_of_buffer"), larger);
    let before = advice("mlx5_core", "rx_discards_phy");
    assert!(before.starts_with("the ring had free descriptors"), "{before}");
}

#[test]
fn a_wait_that_fills_the_ring_is_shortened_before_the_ring_is_enlarged() {
    let fix = |coalesce: Option<u32>, timer: Option<u64>| {
        let mut scene = scene(&[("0", 0.3)]);
        scene.netdevs[0].driver = "atlantic".into();
        let observation = with(scene.observation(), |at, snapshot| {
            let rx = Some(Limit { current: 256, max: 4096 });
            let waits = |usecs| Coalesce { rx_coalesce_usecs: usecs, ..Coalesce::default() };
            let netdev = &mut snapshot.netdevs[0];
            netdev.ethtool = Some(Ethtool {
                rings: Reading::Value(Rings { rx, rx_mini: None, rx_jumbo: None, tx: None }),
                coalesce: coalesce
                    .map_or(Reading::Absent("no".into()), |it| Reading::Value(waits(it))),
                ..Ethtool::unavailable("not asked")
            });
            (netdev.gro_flush_timeout, netdev.napi_defer_hard_irqs) = (timer, Some(2));
            netdev.statistics.insert("rx_fifo_errors".into(), at * 5000);
        });
        let remedy = found(&observation, FindingId::NicDrops).unwrap().remedies.swap_remove(0);
        remedy.changes.iter().map(|it| format!("{}: {}", it.target, it.new)).collect::<Vec<_>>()
    };
    // 100 packets come in each millisecond
    let ring = ["eth0 rings: rx=512"];
    assert_eq!(fix(Some(1200), None), ring, "120 of 256");
    assert!(fix(Some(1400), None)[0].contains("rx-usecs=320"), "140 of 256");
    assert_eq!(fix(None, Some(1_400_000)), ["eth0 gro_flush_timeout: 320000"]);
    assert_eq!(fix(None, None), ring);
}

#[test]
fn a_maximum_that_allows_the_larger_buffer_is_not_written() {
    let written = |table: Option<u32>, max: u64| {
        let observation = with(scene(&[("0", 0.2)]).observation(), |at, snapshot| {
            snapshot.protocols = [("UdpRcvbufErrors".into(), at * 9000)].into();
            let socket = LosingSocket {
                kind: SocketKind::Udp,
                port: 53,
                inode: 31337,
                drops: 9000,
                queued: 212_992,
                limit: None,
                holder: None,
            };
            snapshot.losing_sockets = Some((0..at).map(|_| socket.clone()).collect());
            let sysctls =
                [("net.core.rmem_default", 212_992), ("net.core.rmem_max", max)].into_iter();
            snapshot.net.sysctls =
                sysctls.map(|(name, value)| (name.to_owned(), value.to_string())).collect();
            snapshot.net.rps_sock_flow_entries = table;
        });
        let overflow = found(&observation, FindingId::SocketBufferOverflow).unwrap();
        let changes = overflow.remedies.iter().flat_map(|it| &it.changes);
        changes.map(|it| it.target.to_string()).collect::<Vec<_>>()
    };
    let both = ["net.core.rmem_default", "net.core.rmem_max"];
    assert_eq!(written(Some(0), 425_983), both);
    assert_eq!(written(Some(0), 425_984), both[..1], "it would be set to the value that it has");
    assert_eq!(written(Some(0), 1_000_000), both[..1], "it would be lowered");
    assert!(written(None, 425_983).is_empty(), "another namespace than the first cannot");
}

#[test]
fn the_finding_with_the_highest_count_leads_those_of_its_kind() {
    let observation = with(scene(&[("0", 0.2)]).observation(), |at, snapshot| {
        snapshot.protocols = [("UdpRcvbufErrors".into(), at * 902)].into();
        let socket = |(port, drops): (u16, u64)| LosingSocket {
            kind: SocketKind::Udp,
            port,
            inode: u32::from(port),
            drops,
            queued: 0,
            limit: None,
            holder: None,
        };
        let lost = [(53, 2), (5353, 900)].into_iter().filter(|_| at > 0);
        snapshot.losing_sockets = Some(lost.map(socket).collect());
    });
    let overflow = found(&observation, FindingId::SocketBufferOverflow).unwrap();
    assert!(overflow.subject.to_string().contains("port 5353"), "{}", overflow.subject);
}
