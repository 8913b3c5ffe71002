//! Placement on a real kernel where nobody reads (a router), and where everybody reads from all
//! queues (a proxy).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

use netsilo_decide::plan::Plan;
use netsilo_decide::report::Report;
use netsilo_lab::{Kernel, Lab, Nic, NicModel, PeerJob, Spec, until};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
/// Weights a hundred times larger than usual, because emulated packets are few.
const COSTS: &str = r#"{ "line_ns": {
    "same_cpu": 0, "smt": 1000, "l2": 2500, "llc": 5000, "node": 8500, "remote": 100000 } }"#;
/// Lists the interrupts of a netdev's queues.
const IRQS: &str = "grep -lE '^ETH-TxRx' /sys/kernel/irq/*/actions | cut -d/ -f5";
const AFFINITIES: &str = "grep -H . /proc/irq/*/smp_affinity";

#[test]
fn forwarding_is_placed_on_one_socket_and_restored_and_moving_a_proxy_gains_nothing() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let nics = vec![Nic::from(NicModel::Igb); 2];
    let lab = Lab::boot(&Spec { nics, ..Spec::new(Kernel::V6_12, NicModel::Igb) }).unwrap();
    lab.sh(&format!(
        "echo '{COSTS}' >/tmp/costs.json; \
         for eth in eth0 eth1; do ethtool -N $eth rx-flow-hash udp4 sdfn; done"
    ))
    .unwrap();
    forwarding(&lab);
    proxy(&lab);
}

fn pin(lab: &Lab, netdev: &str, cpu: u32) {
    let irqs = IRQS.replace("ETH", netdev);
    lab.sh(&format!(
        "for irq in $({irqs}); do echo {:x} >/proc/irq/$irq/smp_affinity; done",
        1 << cpu
    ))
    .unwrap();
}

/// Starts sixteen flows from the peer of eth0 to the peer of eth1.
fn through(lab: &Lab) -> [PeerJob; 2] {
    let consume = "consume --mode udp-unconnected --port 7000 --ports 16 --flows 16 --idle 60";
    let consumer = lab.peer(1).unwrap().traffic(consume).unwrap();
    let produce = "produce --proto udp --dest 10.77.1.1 --port 7000 --ports 16 --flows 16 \
                   --bytes 40000000 --rate 3000";
    [lab.peer(0).unwrap().traffic(produce).unwrap(), consumer]
}

fn forwarding(lab: &Lab) {
    lab.sh("echo 1 > /proc/sys/net/ipv4/ip_forward").unwrap();
    for (peer, other) in [(0, 1), (1, 0)] {
        let route = format!("ip route replace 10.77.{other}.0/24 via {}", Lab::guest_address(peer));
        lab.peer(peer.into()).unwrap().sh(&route).unwrap();
    }
    pin(lab, "eth0", 0);
    pin(lab, "eth1", 6);
    let before = lab.sh(AFFINITIES).unwrap();
    let traffic = through(lab);
    let apply =
        format!("{NETSILO} apply --yes --interval 3s --costs /tmp/costs.json --algorithm auto");
    let applied = lab.run(&apply).unwrap();
    assert!(applied.status == 0 && applied.text().contains("forwarding: "), "{applied:?}");
    let report: Report = lab.json(&format!("{NETSILO} show --interval 3s -j")).unwrap();
    for job in traffic {
        job.stop().unwrap();
    }
    let silos = |netdev: &str| {
        report.netdevs.iter().find(|line| line.name == netdev).unwrap().queues.clone()
    };
    let sends = silos("eth1");
    let socket = |cpu: u32| cpu / 4;
    let (mut together, mut apart) = (0.0, 0.0);
    for silo in silos("eth0") {
        // The queue of a NAPI with hardly any packets is unknown, and so is its affinity.
        let Some(receives) = silo.requested.as_ref().and_then(|cpus| cpus.single()) else {
            continue;
        };
        for forward in silo.forwards.iter().filter(|forward| forward.egress == "eth1") {
            let completes = sends.iter().find(|silo| silo.queue == Some(forward.tx_queue)).unwrap();
            let completes = completes.requested.clone().unwrap().single().unwrap();
            let sum =
                if socket(receives.0) == socket(completes.0) { &mut together } else { &mut apart };
            *sum += forward.packets_per_s;
        }
    }
    assert!(
        together > 100.0 && apart < together * 0.05,
        "{together} packets/s together, {apart} apart: {}",
        applied.text()
    );
    lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(lab.sh(AFFINITIES).unwrap(), before);
}

fn proxy(lab: &Lab) {
    // Two queues and many flows: the hash key is random, and so is the queue of each flow.
    lab.sh("ethtool -L eth0 combined 2").unwrap();
    // Little traffic: emulated times are long, and crowding is not tested here.
    let worker = |(n, cpu)| {
        let consume = format!(
            "consume --mode udp-unconnected --cpus {cpu} --port 71{n}0 --flows 64 --idle 60"
        );
        let to = format!("--dest {} --port 71{n}0 --flows 64", Lab::guest_address(0));
        let consumer = lab.traffic(&consume).unwrap();
        let produce = format!("produce --proto udp {to} --bytes 4000000 --rate 60");
        (lab.peer(0).unwrap().traffic(&produce).unwrap(), consumer)
    };
    let workers: Vec<_> = [1, 2, 5, 6].into_iter().enumerate().map(worker).collect();
    let who_reads = || {
        let report: Report = lab.json(&format!("{NETSILO} show --interval 2s -j")).unwrap();
        report
            .cpus
            .iter()
            .filter(|cpu| !cpu.readers.is_empty())
            .map(|cpu| cpu.cpu.0)
            .collect::<Vec<_>>()
    };
    let all = |cpus: &Vec<u32>| [1, 2, 5, 6].iter().all(|cpu| cpus.contains(cpu));
    if let Err(error) = until("all workers read", who_reads, all) {
        let outputs: Vec<_> =
            workers.into_iter().map(|(client, worker)| (client.stop(), worker.stop())).collect();
        let show = lab.sh(&format!(
            "{NETSILO} show --interval 2s; ip -s link show eth0; ethtool eth0; cat /proc/net/udp"
        ));
        panic!("{error}: {outputs:#?}\n{}", show.unwrap());
    }
    // On other CPUs than the workers, so that crowding is no reason to move.
    let pool = "--netdev eth0 --cpus 0,3,4,7 --interval 6s";
    lab.sh(&format!("{NETSILO} apply --yes {pool} --algorithm spread")).unwrap();
    let plan: Plan = lab.json(&format!("{NETSILO} plan {pool} -j")).unwrap();
    for (client, consumer) in workers {
        client.stop().unwrap();
        consumer.stop().unwrap();
    }
    assert!(
        plan.advice.iter().any(|advice| advice.subject == "eth0"
            && advice.text.contains("moving interrupts gains nothing")),
        "{plan:#?}"
    );
    assert_eq!(plan.changes, [], "{plan:#?}");
    lab.sh(&format!("{NETSILO} undo")).unwrap();
}
