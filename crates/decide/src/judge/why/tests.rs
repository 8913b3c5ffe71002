use super::*;
use crate::judge::evidence::Measure;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::snapshot::attribution::{CpuTime, Poll};
use netsilo_model::snapshot::host::Softnet;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{
    Reader, Scene, SceneForward, SceneNetdev, SceneQueue, SceneThread,
};

fn queue(irq: u32, cpus: &str, packets_per_s: u64, load: f64) -> SceneQueue {
    SceneQueue {
        irq: Some(irq),
        cpus: CpuSet::parse_list(cpus).unwrap(),
        packets_per_s,
        load,
        readers: vec![Reader {
            comm: "redis".into(),
            cpu: CpuId(2),
            bytes_per_s: 1000,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    }
}

fn scene(queues: Vec<SceneQueue>) -> Scene {
    let netdev =
        SceneNetdev { name: "eth0".into(), driver: "igb".into(), queues, ..SceneNetdev::default() };
    Scene { grid: Grid { l2s: 4, ..Grid::default() }, netdevs: vec![netdev], ..Scene::default() }
}

fn explained(observation: &Observation, subject: &str) -> Why {
    why(&Analysis::new(observation, &Costs::default()), &subject.parse().unwrap()).unwrap()
}

fn reasons(cause: &LoadCause) -> String {
    cause.steps.iter().map(|step| step.text.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn causes_are_in_descending_order_of_cpu_time() {
    let observation =
        scene(vec![queue(30, "0", 1000, 0.1), queue(31, "0", 3000, 0.3)]).observation();
    let why = explained(&observation, "cpu0");
    let queues: Vec<&LoadCause> =
        why.causes.iter().filter(|cause| cause.name.starts_with("eth0")).collect();
    assert_eq!(
        queues.iter().map(|cause| cause.name.as_str()).collect::<Vec<_>>(),
        ["eth0 rx-1", "eth0 rx-0"]
    );
    assert!((queues[0].share.unwrap() - 0.3).abs() < 1e-9);
}

#[test]
fn kernel_threads_are_named_with_their_time_and_how_to_move_them() {
    let thread = |comm: &str, load, without_time| SceneThread {
        comm: comm.into(),
        cpus: CpuSet::from_cpu(CpuId(0)),
        load,
        without_time,
    };
    let threads = vec![
        thread("mt76-tx phy0", 0.2, false),
        thread("ksoftirqd/0", 0.2, false),
        thread("backlog_napi/0", 0.0, false),
        thread("napi/phy0-7", 0.4, true),
    ];
    let host = Scene { threads, ..scene(vec![queue(30, "0", 1000, 0.1)]) };
    let why = explained(&host.observation(), "cpu0");
    let mut threads = why.causes.iter().filter(|it| it.name.starts_with("kernel thread"));
    let [known, unknown] = [threads.next().unwrap(), threads.next().unwrap()];
    assert_eq!(
        (known.name.as_str(), known.share),
        ("kernel thread mt76-tx phy0 (pid 700)", Some(0.2))
    );
    assert!(reasons(known).ends_with(
        "it may run on cpu 0\nto move it: its affinity: netsilo plan --fix softirq-one-cpu"
    ));
    assert_eq!(
        (unknown.name.as_str(), unknown.share),
        ("kernel thread napi/phy0-7 (pid 703)", None)
    );
    assert!(reasons(unknown).contains("its time is not recorded"), "{unknown:?}");
    assert!(threads.next().is_none(), "no time of its own, or counted as softirqs");
}

#[test]
fn a_wide_affinity_is_explained_as_delivery_to_one_cpu() {
    let observation = scene(vec![queue(30, "0-3", 1000, 0.1)]).observation();
    let text = reasons(&explained(&observation, "cpu0").causes[0]);
    assert!(
        text.contains(
            "is requested on cpus 0-3: this is default_smp_affinity: nobody has changed it"
        ),
        "{text}"
    );
    assert!(text.contains("the interrupt controller delivers it to one of these: cpu 0"), "{text}");
    assert!(text.contains("adds the NAPI to its own poll list: NET_RX runs on cpu 0"), "{text}");
    assert!(text.contains("read by redis on cpu 2 (100%)"), "{text}");
}

#[test]
fn an_affinity_that_is_not_effective_yet_is_explained() {
    let mut observation = scene(vec![queue(30, "0", 1000, 0.1)]).observation();
    observation.after.irqs.get_mut(&Irq(30)).unwrap().requested = Some(CpuSet::from_cpu(CpuId(3)));
    let text = reasons(&explained(&observation, "irq30").causes[0]);
    assert!(
        text.contains(
            "its effective affinity is still cpu 0: it moves when the next interrupt arrives"
        ),
        "{text}"
    );
}

#[test]
fn a_kthread_polls_where_the_scheduler_runs_it() {
    let mut scene = scene(vec![SceneQueue {
        kthread_cpus: CpuSet::from_cpu(CpuId(1)),
        ..queue(30, "0", 1000, 0.1)
    }]);
    scene.netdevs[0].threaded = true;
    let text = reasons(&explained(&scene.observation(), "cpu1").causes[0]);
    assert!(text.contains("its kthread napi/eth0-8193 (pid 900) polls"), "{text}");
}

#[test]
fn an_rps_target_is_explained_by_the_queues_that_steer_to_it() {
    let steered = SceneQueue {
        rps_cpus: Some(CpuSet::parse_list("2-3").unwrap()),
        ..queue(30, "0", 1000, 0.2)
    };
    let mut observation = scene(vec![steered]).observation();
    let poll = Poll {
        napi: NapiId(0),
        netdev: String::new(),
        ifindex: 0,
        netns: 0,
        cpu: CpuId(2),
        polls: 100,
        packets: 5000,
        ns: None,
    };
    observation.attribution.polls.push(poll);
    let time = CpuTime { net_rx_ns: 4_000_000_000, ipis: 700, ..CpuTime::default() };
    observation.attribution.cpu_time.insert(CpuId(2), time);
    let softnet = Softnet { received_rps: 600, ..Softnet::default() };
    observation.after.cpus.get_mut(&CpuId(2)).unwrap().softnet = Some(softnet);
    let why = explained(&observation, "cpu2");
    let backlog = &why.causes[0];
    assert_eq!(
        (backlog.name.as_str(), backlog.share),
        ("backlog (RPS, loopback, veth)", Some(0.4))
    );
    assert!(reasons(backlog).contains("rps_cpus of eth0 rx-0 is cpus 2-3"), "{}", reasons(backlog));
    let evidence: Vec<_> = backlog.evidence.iter().map(|it| (&*it.quantity, &it.measure)).collect();
    assert_eq!(
        evidence,
        [
            ("packets polled from the backlog", &Measure::PerSecond(500.0)),
            ("wakeups from other cpus for RPS", &Measure::PerSecond(60.0)),
        ]
    );
    assert!(why.causes.iter().any(|cause| cause.name == "call-function IPIs"));
    let source = reasons(&explained(&observation, "cpu0").causes[0]);
    assert!(source.contains("RPS steers its packets to cpus 2-3 by their hash"), "{source}");
}

#[test]
fn a_queue_is_on_the_cpu_that_finds_its_packets_not_on_that_of_empty_polls() {
    let mut queue = queue(30, "0", 1000, 0.1);
    queue.readers[0].cpu = CpuId(1);
    let mut observation = scene(vec![queue]).observation();
    let of_queue = observation.attribution.polls[0].clone();
    let in_vain = Poll { cpu: CpuId(1), polls: 1_700_000, packets: 100, ns: None, ..of_queue };
    observation.attribution.polls.push(in_vain);
    let cause = &explained(&observation, "eth0").causes[0];
    assert!(cause.name.ends_with("on cpu 0"), "{}", cause.name);
    let why = reasons(cause);
    assert!(why.contains("on cpu 1, and hardly any of that in a softirq: a program"), "{why}");
    observation.attribution.cpu_time.entry(CpuId(1)).or_default().net_rx_ns = 10_000_000_000;
    let why = reasons(&explained(&observation, "eth0").causes[0]);
    assert!(why.contains("on cpu 1 with few packets: a reader there may busy-poll"), "{why}");
    observation.attribution.polls.last_mut().unwrap().polls = 1000;
    let why = reasons(&explained(&observation, "eth0").causes[0]);
    assert!(!why.contains("busy-poll"), "{why}");
}

#[test]
fn a_queue_that_is_polled_without_an_interrupt_is_explained_by_busy_polling() {
    let steps = |interrupts: u64, busy_poll: &str, reader: u32| {
        let mut queue = queue(30, "0", 1000, 0.1);
        queue.readers[0].cpu = CpuId(reader);
        let mut observation = scene(vec![queue]).observation();
        let counts = [(CpuId(0), interrupts), (CpuId(1), 500)].into();
        observation.after.irqs.get_mut(&Irq(30)).unwrap().counts = counts;
        let before = [(CpuId(0), 0), (CpuId(1), 0)].into();
        observation.before.irqs.get_mut(&Irq(30)).unwrap().counts = before;
        observation.after.net.sysctls.insert("net.core.busy_poll".into(), busy_poll.into());
        reasons(&explained(&observation, "cpu0").causes[0])
    };
    assert!(!steps(500, "50", 0).contains("no interrupt arrived here"), "{}", steps(500, "50", 0));
    for (busy_poll, reader, why) in [
        ("50", 0, "busy polling is on and a reader runs here"),
        ("0", 0, "its socket may busy-poll (SO_BUSY_POLL)"),
        ("50", 2, "no interrupt arrived here: the NAPI always found packets"),
    ] {
        let text = steps(0, busy_poll, reader);
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn only_softirqs_that_ran_are_a_cause() {
    let mut observation = scene(vec![queue(30, "0", 1000, 0.1)]).observation();
    for (snapshot, timer) in [(&mut observation.before, 100), (&mut observation.after, 350)] {
        let softirqs = [("NET_RX", timer), ("TIMER", timer), ("BLOCK", 70)];
        snapshot.cpus.get_mut(&CpuId(0)).unwrap().softirqs = softirqs.into();
    }
    let why = explained(&observation, "cpu0");
    let other = why.causes.iter().find(|cause| cause.name == "other softirqs").unwrap();
    let rates: Vec<_> = other.evidence.iter().map(|it| (&*it.quantity, &it.measure)).collect();
    assert_eq!(rates, [("TIMER", &Measure::PerSecond(25.0))]);
    assert!(!reasons(other).contains("BLOCK"), "{}", reasons(other));
}

#[test]
fn forwarding_runs_where_the_packets_are_polled() {
    let forward =
        SceneForward { to: "eth1".into(), queue: 2, packets_per_s: 500, bytes_per_s: 5000 };
    let observation =
        scene(vec![SceneQueue { forwards: vec![forward], ..queue(30, "0", 1000, 0.1) }])
            .observation();
    let text = reasons(&explained(&observation, "cpu0").causes[0]);
    assert!(text.contains("it forwards: 50% by eth1 tx-2"), "{text}");
}

#[test]
fn an_error_for_a_missing_subject_lists_the_existing_ones() {
    let observation = scene(vec![queue(30, "0", 1000, 0.1)]).observation();
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let refused = |text: &str| why(&analysis, &text.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(refused("udp"), "expected cpu3, irq27, eth0, eth0/rx-3 or a process, found \"udp\"");
    assert_eq!(refused("cpu9"), "cpu 9 is not online: the online cpus are 0-3");
    assert_eq!(
        refused("eth7"),
        "no finding (netsilo explain) and no netdev (eth0) is called \"eth7\", and no process of \
         this name was seen to read"
    );
    assert_eq!(refused("eth0/rx-4"), "eth0 has no rx-4: its rx queues are 0");
    assert_eq!(
        refused("irq99"),
        "irq 99 does not exist: netsilo show lists the interrupts of netdevs"
    );
}

#[test]
fn a_netdev_is_explained_queue_by_queue() {
    let observation = scene(vec![queue(30, "0", 1000, 0.1), queue(31, "1", 0, 0.0)]).observation();
    let why = explained(&observation, "eth0");
    assert_eq!(
        why.causes.iter().map(|cause| cause.name.as_str()).collect::<Vec<_>>(),
        ["eth0 rx-0 on cpu 0", "eth0 rx-1 idle"]
    );
    assert!(why.cpu.is_none());
}

#[test]
fn a_netdev_without_hardware_is_explained_by_those_below_it() {
    let netdev = |name: &str, driver: &str, rps: &str| SceneNetdev {
        name: name.into(),
        driver: driver.into(),
        software: true,
        queues: vec![SceneQueue {
            rps_cpus: Some(CpuSet::parse_list(rps).unwrap()),
            ..SceneQueue::default()
        }],
        ..SceneNetdev::default()
    };
    let mut host = scene(vec![queue(30, "0", 1000, 0.1)]);
    host.netdevs[0].master = Some("bond0".into());
    let in_bridge = SceneNetdev { master: Some("br0".into()), ..netdev("tap0", "tun", "") };
    host.netdevs.extend([
        netdev("bond0", "bonding", "1"),
        in_bridge,
        netdev("br0", "bridge", "1-2"),
        netdev("veth0", "veth", "3"),
        netdev("ifb0", "ifb", "1"),
        netdev("lo", "", "2"),
        netdev("macvlan0", "macvlan", "1"),
        netdev("gre0", "gretap", ""),
        netdev("wg0", "wireguard", ""),
        netdev("macvtap0", "macvtap", ""),
    ]);
    let observation = host.observation();
    let of = |name: &str| reasons(&explained(&observation, name).causes[0]);
    assert!(of("eth0").contains("bond0 takes its packets on the same cpu"), "{}", of("eth0"));
    let bond = of("bond0");
    assert!(bond.contains("that receive for eth0 continue with its packets in the same"), "{bond}");
    assert!(bond.contains("its RPS onto cpu 1 does nothing"), "{bond}");
    let bridge = of("br0");
    assert!(bridge.contains("that receive for tap0 bridge its packets"), "{bridge}");
    assert!(bridge.contains("RPS steers what it delivers to this host to cpus 1-2"), "{bridge}");
    let tap = of("tap0/rx-0");
    assert!(tap.contains("the program that writes a packet into it"), "{tap}");
    assert!(tap.contains("br0 bridges its packets"), "{tap}");
    let veth = of("veth0");
    assert!(veth.contains("adds the packet to its own backlog"), "{veth}");
    assert!(veth.contains("RPS steers its packets to cpu 3"), "{veth}");
    let ifb = of("ifb0");
    assert!(ifb.contains("a tasklet") && ifb.contains("its RPS onto cpu 1 does nothing"), "{ifb}");
    let lo = of("lo");
    assert!(lo.contains("adds the packet to its own backlog"), "{lo}");
    assert!(lo.contains("RPS steers its packets to cpu 2"), "{lo}");
    let macvlan = of("macvlan0");
    assert!(macvlan.contains("; multicasts and broadcasts, and packets of other"), "{macvlan}");
    assert!(macvlan.contains("the kernel never reads it, save for multicasts"), "{macvlan}");
    let gre = of("gre0");
    assert!(gre.contains("polls its GRO cell") && gre.contains("no poll of it"), "{gre}");
    assert!(of("wg0").contains("workers decrypt its packets"), "{}", of("wg0"));
    assert!(of("macvtap0").contains("into a queue, from which a program"), "{}", of("macvtap0"));
    let unknown =
        why(&Analysis::new(&observation, &Costs::default()), &"tap0/rx-7".parse().unwrap());
    assert!(matches!(unknown, Err(SubjectError::NoQueue(..))), "{unknown:?}");
}

#[test]
fn a_process_is_explained_by_the_queues_whose_data_it_reads() {
    let mut observation =
        scene(vec![queue(30, "0", 1000, 0.1), queue(31, "1", 3000, 0.3)]).observation();
    let pid = observation.attribution.consumption[0].consumer.tgid;
    for row in &mut observation.attribution.consumption {
        if row.consumer.tgid != pid {
            row.consumer.comm = "other".into();
        }
    }
    for subject in ["redis".to_owned(), format!("pid{pid}")] {
        let why = explained(&observation, &subject);
        let names: Vec<&str> = why.causes.iter().map(|cause| cause.name.as_str()).collect();
        assert_eq!(
            names.len(),
            observation.attribution.consumption.iter().filter(|it| it.consumer.tgid == pid).count(),
            "{names:?}"
        );
        let read = &why.causes[0].evidence[0];
        assert!(read.quantity.contains("reads on cpus 2"), "{read:?}");
        assert_eq!(read.measure, Measure::BytesPerSecond(1000.0));
        assert!(reasons(&why.causes[0]).contains("read by redis"), "{why:?}");
    }
    let nobody = "nobody".parse().unwrap();
    let error = why(&Analysis::new(&observation, &Costs::default()), &nobody).unwrap_err();
    assert!(error.to_string().contains("no process of this name was seen to read"), "{error}");
}
