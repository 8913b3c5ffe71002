//! Verdicts on netdevs without hardware.

use super::*;

/// A netdev with this driver that receives packets, with one rx queue.
fn netdev(name: &str, driver: &str) -> SceneNetdev {
    let queue = SceneQueue { rps_cpus: Some(CpuSet::new()), ..SceneQueue::default() };
    SceneNetdev {
        name: name.into(),
        driver: driver.into(),
        software: true,
        queues: vec![queue],
        per_s: BTreeMap::from([("rx_packets".to_owned(), 50_000)]),
        ..SceneNetdev::default()
    }
}

/// A real NIC with traffic, a port of `master`.
fn port(name: &str, irq: u32, master: &str) -> SceneNetdev {
    let queue = SceneQueue {
        irq: Some(irq),
        cpus: set("0"),
        packets_per_s: 50_000,
        load: 0.2,
        rps_cpus: Some(CpuSet::new()),
        ..SceneQueue::default()
    };
    SceneNetdev {
        software: false,
        master: Some(master.into()),
        queues: vec![queue],
        ..netdev(name, "igb")
    }
}

fn host(netdevs: Vec<SceneNetdev>) -> Observation {
    Scene { grid: Grid { l2s: 4, ..Grid::default() }, netdevs, ..Scene::default() }.observation()
}

fn of(observation: &Observation, netdev: &str, remedy: RemedyName) -> RemedyVerdict {
    judged(observation).remove(&(netdev.to_owned(), remedy)).unwrap()
}

#[test]
fn rps_on_a_bond_or_vlan_does_nothing_because_the_kernel_never_reads_it() {
    let observation = host(vec![
        port("eth0", 30, "bond0"),
        port("eth1", 31, "bond0"),
        netdev("bond0", "bonding"),
        netdev("bond0.5", "802.1Q VLAN Support"),
        netdev("ifb0", "ifb"),
    ]);
    let redirected = of(&observation, "ifb0", RemedyName::Rps);
    assert!(redirected.reason.contains("a tasklet gives its packets back"), "{redirected:?}");
    for (name, below, function) in [
        ("bond0", "eth0, eth1", "bond_handle_frame"),
        ("bond0.5", "the netdev below it", "vlan_do_receive"),
    ] {
        for remedy in [RemedyName::Rps, RemedyName::Rfs] {
            let verdict = of(&observation, name, remedy);
            assert_eq!(verdict.claim, Claim::NoClearChange, "{verdict:?}");
            let reason = &verdict.reason;
            assert!(reason.contains("never reads") && reason.contains(function), "{reason}");
            assert!(reason.contains(&format!("the pass of {below} (")), "{reason}");
            assert_eq!(verdict.changes, []);
        }
        let threaded = of(&observation, name, RemedyName::ThreadedNapi);
        assert_eq!(threaded.claim, Claim::NoClearChange);
        assert!(threaded.reason.contains("no NAPI"), "{}", threaded.reason);
    }
    // Its ports are real NICs, and are judged as such, together.
    assert!(of(&observation, "bond0 eth0 eth1", RemedyName::Rps).reason.len() > 10);
}

#[test]
fn rps_on_a_bridge_or_tun_moves_what_is_not_measured_apart() {
    let in_bridge = SceneNetdev { master: Some("br0".into()), ..netdev("veth0", "veth") };
    let observation = host(vec![in_bridge, netdev("br0", "bridge"), netdev("tap0", "tun")]);
    let bridge = of(&observation, "br0", RemedyName::Rps);
    assert_eq!(bridge.claim, Claim::Unknown);
    assert!(bridge.reason.contains("after veth0 received and bridged it"), "{}", bridge.reason);
    let tap = of(&observation, "tap0", RemedyName::Rps);
    assert_eq!(tap.claim, Claim::Unknown);
    assert!(tap.reason.contains("the program that writes its packets"), "{}", tap.reason);
}

#[test]
fn a_bridge_without_traffic_and_hardware_have_no_such_verdict() {
    let quiet = SceneNetdev { per_s: BTreeMap::new(), ..netdev("br0", "bridge") };
    let hardware = SceneNetdev { software: false, ..netdev("eth0", "tun") };
    assert_eq!(judged(&host(vec![quiet])), BTreeMap::new());
    let verdict = of(&host(vec![hardware]), "eth0", RemedyName::Rps);
    assert_eq!(verdict.claim, Claim::Unknown);
    assert!(verdict.reason.starts_with("which cpus poll it is not known"), "{}", verdict.reason);
}

/// A tap with `IFF_NAPI`: its NAPI instance has no id.
#[test]
fn a_netdev_that_a_napi_without_id_polls_is_judged_by_its_polls() {
    let mut observation = host(vec![netdev("tap0", "tun")]);
    assert!(of(&observation, "tap0", RemedyName::ThreadedNapi).reason.contains("no NAPI"));
    let ifindex = observation.after.netdevs[0].ifindex;
    observation.attribution.polls.push(Poll {
        napi: NapiId(0),
        netdev: "tap0".into(),
        ifindex,
        netns: observation.after.machine.netns,
        cpu: CpuId(1),
        polls: 50_000,
        packets: 50_000,
        ns: Some(50_000_000),
    });
    let verdicts = judged(&observation);
    let says = |it: &RemedyVerdict| it.reason.contains("no NAPI") || it.reason.contains("writes");
    assert!(verdicts.values().all(|it| !says(it)), "{verdicts:#?}");
}
