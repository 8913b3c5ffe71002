//! What the ledger of loss counts, and what it counts once.

use std::time::Duration;

use super::*;
use netsilo_model::cost::weights::Costs;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::attribution::Hook;
use netsilo_model::snapshot::drops::{DroppedPackets, QUANTITY};
use netsilo_model::snapshot::namespaces::{Namespace, NamespaceCounters, Namespaces};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::sockets::LosingSocket;
use netsilo_model::synthetic::scene::Scene;
use netsilo_model::synthetic::scene::SceneNetdev;

fn ledger_of(observation: &Observation) -> Ledger {
    ledger(&Analysis::new(observation, &Costs::default()))
}

fn host() -> Observation {
    let netdev =
        SceneNetdev { name: "eth0".into(), driver: "igb".into(), ..SceneNetdev::default() };
    Scene { netdevs: vec![netdev], ..Scene::default() }.observation()
}

#[test]
fn several_counters_of_one_subject_count_one_loss() {
    let mut host = host();
    for (counter, lost) in [("rx_missed_errors", 0), ("rx_fifo_errors", 40), ("rx_over_errors", 50)]
    {
        host.before.netdevs[0].statistics.insert(counter.into(), 1000);
        host.after.netdevs[0].statistics.insert(counter.into(), 1000 + lost);
    }
    let ledger = ledger_of(&host);
    let ring = ledger.stage(LossStage::Ring).unwrap();
    assert_eq!((ring.count, ring.since_boot, ring.per_s), (50, 1050, 5.0));
    assert_eq!(ledger.most_lost().unwrap().stage, LossStage::Ring);
    assert!(ledger.next.unwrap().starts_with("eth0: find the cpus that poll it"));
}

#[test]
fn the_next_step_is_for_the_stage_that_loses_most_not_for_the_first() {
    let mut host = host();
    for (counter, lost) in [("rx_crc_errors", 3), ("rx_fifo_errors", 997)] {
        host.before.netdevs[0].statistics.insert(counter.into(), 0);
        host.after.netdevs[0].statistics.insert(counter.into(), lost);
    }
    let ledger = ledger_of(&host);
    assert_eq!(ledger.most_lost().unwrap().stage, LossStage::Ring);
    let next = ledger.next.unwrap();
    assert!(next.starts_with("eth0: find the cpus that poll it"), "{next}");
    assert!(next.ends_with("(99% of all losses: ring: no free descriptor)"), "{next}");
    host.after.netdevs[0].statistics.insert("rx_crc_errors".into(), 997);
    assert_eq!(
        ledger_of(&host).most_lost().unwrap().stage,
        LossStage::Wire,
        "the earlier of two equal stages"
    );
}

#[test]
fn a_squeeze_is_counted_but_not_as_a_loss() {
    let mut host = host();
    host.after.cpus.get_mut(&CpuId(0)).unwrap().softnet.as_mut().unwrap().time_squeeze = 70;
    let ledger = ledger_of(&host);
    assert_eq!(ledger.stage(LossStage::Squeeze).unwrap().count, 70);
    assert_eq!((ledger.most_lost(), &ledger.next), (None, &None));
}

#[test]
fn a_sockets_drops_are_part_of_its_protocols_count() {
    let mut host = host();
    host.before.protocols = [("UdpRcvbufErrors".to_owned(), 5)].into();
    host.after.protocols = [("UdpRcvbufErrors".to_owned(), 35)].into();
    let socket = LosingSocket {
        kind: SocketKind::Udp,
        port: 53,
        inode: 7,
        drops: 29,
        queued: 0,
        limit: None,
        holder: None,
    };
    (host.before.losing_sockets, host.after.losing_sockets) = (Some(vec![]), Some(vec![socket]));
    let ledger = ledger_of(&host);
    let stage = ledger.stage(LossStage::Socket).unwrap();
    assert_eq!((stage.count, stage.lines.len()), (30, 2));
    assert_eq!(
        stage.grown_counters(&Subject::Port(SocketKind::Udp, 53)).next().unwrap().count,
        Some(29)
    );
}

#[test]
fn a_loss_in_another_namespace_is_one_row_and_added_once() {
    let mut host = host();
    let namespaces = |lost: u64, drops: u64, at: Duration| {
        let protocols = [("UdpRcvbufErrors".to_owned(), lost)].into();
        let losing_sockets = match drops {
            0 => Vec::new(),
            drops => vec![LosingSocket {
                kind: SocketKind::Udp,
                port: 53,
                inode: 7,
                drops,
                queued: 0,
                limit: None,
                holder: None,
            }],
        };
        let counters = NamespaceCounters { at, protocols, losing_sockets, ..Default::default() };
        let namespace = Namespace {
            inode: 9,
            mount: Some("/run/netns/blue".into()),
            processes: 1,
            process: None,
            cgroup: None,
            pod: None,
            counters: Reading::Value(counters),
        };
        Some(Namespaces { all: vec![namespace], hidden: 0 })
    };
    host.before.namespaces = namespaces(2, 0, host.before.at);
    host.after.namespaces = namespaces(32, 30, host.after.at);
    let by_counters = ledger_of(&host);
    let stage = by_counters.stage(LossStage::Socket).unwrap();
    assert_eq!((stage.count, stage.elsewhere, stage.by_counters(Some(9))), (30, 30, 30));
    let next = by_counters.next.as_ref().unwrap();
    assert!(next.starts_with("udp in netns blue: packets arrive faster"), "{next}");
    let line = &by_counters.namespaces.as_ref().unwrap()[0];
    assert_eq!((line.name.as_str(), line.lost, &line.not_counted), ("blue", 30, &None));

    let hook = Hook { quantity: QUANTITY.into(), hook: "kfree_skb".into(), refused: None };
    host.attribution.hooks = vec![hook];
    host.attribution.drops = vec![DroppedPackets {
        reason: "SOCKET_RCVBUFF".into(),
        netns: 9,
        packets: 31,
        ..DroppedPackets::default()
    }];
    let both = ledger_of(&host);
    let stage = both.stage(LossStage::Socket).unwrap();
    assert_eq!((stage.count, stage.elsewhere, stage.by_event), (31, 31, Some(0)));
    let row = &both.dropped.as_ref().unwrap()[0];
    assert_eq!((row.netns, row.namespace.as_deref()), (Some(9), Some("blue")));
    assert_eq!(both.namespaces.unwrap()[0].lost, 31);
}

#[test]
fn drops_of_a_backlog_are_in_its_counter_whatever_their_namespace() {
    let mut host = host();
    host.after.cpus.get_mut(&CpuId(0)).unwrap().softnet.as_mut().unwrap().dropped = 70;
    let hook = Hook { quantity: QUANTITY.into(), hook: "kfree_skb".into(), refused: None };
    host.attribution.hooks = vec![hook];
    host.attribution.drops = vec![DroppedPackets {
        reason: "CPU_BACKLOG".into(),
        netns: host.after.machine.netns + 1,
        packets: 70,
        ..DroppedPackets::default()
    }];
    assert_eq!(ledger_of(&host).stage(LossStage::Backlog).unwrap().count, 70);
}

#[test]
fn a_counter_that_was_reset_has_no_count() {
    let mut host = host();
    host.before.netdevs[0].statistics.insert("rx_missed_errors".into(), 9);
    host.after.netdevs[0].statistics.insert("rx_missed_errors".into(), 2);
    let ledger = ledger_of(&host);
    assert_eq!((ledger.stage(LossStage::Nic).unwrap().count, ledger.most_lost()), (0, None));
}
