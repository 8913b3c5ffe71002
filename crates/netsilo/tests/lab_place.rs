//! Placement on a real kernel if nobody reads (a router, a bridge), and if every process reads from
//! all queues (a proxy).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::collections::BTreeSet;

use netsilo_decide::plan::Plan;
use netsilo_decide::report::Report;
use netsilo_lab::{Kernel, Lab, Nic, NicModel, PeerJob, Spec, until};
use netsilo_model::change::Target;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
/// Weights a hundred times larger than usual, because there are few packets under emulation.
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

/// Starts sixteen flows from the peer of one NIC to an address that the peer of the other one has.
fn through(lab: &Lab, from: usize, address: &str) -> [PeerJob; 2] {
    let receive = "receive --mode udp-unconnected --port 7000 --ports 16 --flows 16 --idle 60";
    let receiver = lab.peer(1 - from).unwrap().exact(receive).unwrap();
    let send = format!(
        "send --udp --dest {address} --port 7000 --ports 16 --flows 16 \
         --bytes 40000000 --rate 3000"
    );
    [lab.peer(from).unwrap().exact(&send).unwrap(), receiver]
}

/// The CPU that forwards a packet chooses the tx queue by XPS. So it also determines the CPU of the
/// completion.
#[test]
#[ignore = "a minute: make test-long"]
fn forwarding_under_xps_settles_in_one_plan() {
    if !netsilo_lab::skip().unwrap() {
        settles(&virtio_router(), 2, &[(0, "10.77.1.1")]);
    }
}

/// A guest that routes between two virtio NICs.
fn virtio_router() -> Lab {
    let nics = vec![Nic::from(NicModel::VirtioNet); 2];
    let lab = Lab::boot(&Spec { nics, ..Spec::new(Kernel::V6_1, NicModel::VirtioNet) }).unwrap();
    lab.sh(&format!("echo '{COSTS}' >/tmp/costs.json")).unwrap();
    lab.route().unwrap();
    lab
}

#[test]
#[ignore = "a minute: make test-long"]
fn a_nat_and_a_bridge_settle_in_one_plan_both_ways() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = virtio_router();
    lab.nat().unwrap();
    settles(&lab, 4, &[(0, "10.77.1.1"), (1, "10.77.0.1")]);
    lab.end_nat().unwrap();
    lab.bridge().unwrap();
    settles(&lab, 2, &[(0, "10.77.0.3"), (1, "10.77.0.1")]);
}

/// Binds an AF_XDP socket to queue 2 of eth0 (`include/uapi/linux/if_xdp.h`); with copies, which
/// needs nothing of the driver.
const HOLDER: &str = r#"
import ctypes, mmap, socket, struct, time
UMEM_REG, FILL_RING, COMPLETION_RING, RX_RING, COPY = 4, 5, 6, 2, 2
chunk, chunks = 4096, 64
memory = mmap.mmap(-1, chunk * chunks)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
holder = socket.socket(44, socket.SOCK_RAW)
umem = struct.pack("QQIIII", start, chunk * chunks, chunk, 0, 0, 0)
holder.setsockopt(283, UMEM_REG, umem)
for ring in FILL_RING, COMPLETION_RING, RX_RING:
    holder.setsockopt(283, ring, chunks)
address = struct.pack("HHIII", 44, COPY, socket.if_nametoindex("eth0"), 2, 0)
libc = ctypes.CDLL(None, use_errno=True)
if libc.bind(holder.fileno(), address, len(address)):
    raise OSError(ctypes.get_errno(), "bind")
open("/tmp/bound", "w").close()
time.sleep(600)
"#;

#[test]
#[ignore = "half a minute: make test-long"]
fn a_queue_that_an_af_xdp_socket_holds_is_not_changed() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::Newest, NicModel::VirtioNet)).unwrap();
    let goal = "--interval 1s --no-bpf --cpus 6 --algorithm spread";
    let plan: Plan =
        lab.json(&format!("{NETSILO} plan --json {goal} | tee /tmp/plan.json")).unwrap();
    let of = |queue: &str, plan: &Plan| {
        let is_it = |target: &Target| match target {
            Target::IrqAffinity(it) => it.action.ends_with(queue),
            _ => false,
        };
        plan.changes.iter().filter(|it| is_it(&it.target)).count()
    };
    let held = "input.2";
    assert_eq!((of("input.1", &plan), of(held, &plan)), (1, 1), "{plan:#?}");
    lab.sh(&format!("cat >/tmp/holder.py <<'END'\n{HOLDER}\nEND")).unwrap();
    let holder = lab.spawn("python3 /tmp/holder.py").unwrap();
    lab.sh("until [ -e /tmp/bound ]; do sleep 0.1; done").unwrap();
    let before = lab.sh(AFFINITIES).unwrap();
    let old = lab.run(&format!("{NETSILO} apply --plan /tmp/plan.json --yes")).unwrap();
    assert_ne!(old.status, 0, "{}", old.text());
    assert!(String::from_utf8_lossy(&old.stderr).contains("AF_XDP"), "{old:?}");
    assert_eq!(lab.sh(AFFINITIES).unwrap(), before);
    let plan: Plan = lab.json(&format!("{NETSILO} plan --json {goal}")).unwrap();
    assert_eq!((of("input.1", &plan), of(held, &plan)), (1, 0), "{plan:#?}");
    lab.sh(&format!("{NETSILO} apply --yes {goal}")).unwrap();
    let file = format!("/proc/irq/$(grep -l -- -{held} /sys/kernel/irq/*/actions | cut -d/ -f5)");
    let mask = lab.sh(&format!("grep -H . {file}/smp_affinity")).unwrap();
    assert!(before.contains(&mask), "{mask} of {before}");
    assert_ne!(lab.sh(AFFINITIES).unwrap(), before, "the others move");
    lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(lab.sh(AFFINITIES).unwrap(), before);
    holder.stop().unwrap();
}

/// Receives eth0 on the first CPUs and eth1 on both sockets. Each half or quarter of the CPUs sends
/// through its own queue. After one plan nothing more moves, and packets are received and completed
/// on one socket.
fn settles(lab: &Lab, queues: u32, flows: &[(usize, &str)]) {
    let (width, eth1) = (8 / queues, ["4 2", "4 2 6 0"][usize::from(queues == 4)]);
    let set = format!(
        "pin() {{ echo $3 >/proc/irq/$(grep -lx \"$1-$2\" /sys/kernel/irq/*/actions | \
                  cut -d/ -f5)/smp_affinity_list; }}; \
         for eth in eth0 eth1; do \
             ethtool -L $eth combined {queues} 2>&1 | grep -v unmodified; \
             virtio=$(basename $(readlink /sys/class/net/$eth/device)); q=0; \
             [ $eth = eth0 ] && cpus='0 1 2 3' || cpus='{eth1}'; \
             for cpu in $(echo $cpus | cut -d' ' -f1-{queues}); do \
                 printf '%x' $(((1 << {width}) - 1 << q * {width})) \
                     >/sys/class/net/$eth/queues/tx-$q/xps_cpus; \
                 pin $virtio input.$q $cpu; pin $virtio output.$q $cpu; q=$((q + 1)); \
             done; \
         done"
    );
    lab.sh(&set).unwrap();
    let traffic: Vec<_> = flows.iter().map(|(from, to)| through(lab, *from, to)).collect();
    let options = "--interval 3s --costs /tmp/costs.json";
    let applied = lab.run(&format!("{NETSILO} apply --yes {options}")).unwrap();
    assert_eq!(applied.status, 0, "{applied:?}");
    let again: Plan = lab.json(&format!("{NETSILO} plan -j {options}")).unwrap();
    let report: Report = lab.json(&format!("{NETSILO} show --interval 3s -j")).unwrap();
    let short: Report = lab.json(&format!("{NETSILO} show --interval 1s -j")).unwrap();
    traffic.into_iter().flatten().for_each(|job| _ = job.stop().unwrap());
    assert_eq!(again.changes, [], "after {}", applied.text());
    let completes_on = |netdev: &str, queue: u32| {
        let netdev = report.netdevs.iter().find(|it| it.name == netdev)?;
        let tx = netdev.tx_irqs.iter().find(|tx| tx.queue == queue)?;
        tx.effective.as_ref()?.single()
    };
    let (mut together, mut apart) = (0.0, 0.0);
    let all = report.netdevs.iter().flat_map(|it| &it.queues).flat_map(|silo| &silo.forwards);
    for it in all.filter(|it| it.egress.starts_with("eth")) {
        let completes = completes_on(&it.egress, it.tx_queue).unwrap();
        let sum = if it.cpu.0 / 4 == completes.0 / 4 { &mut together } else { &mut apart };
        *sum += it.packets_per_s;
    }
    assert!(
        together > 100.0 && apart < together * 0.05,
        "{queues} queues, {flows:?}: {together} packets/s together, {apart} apart: {}",
        applied.text()
    );
    all_is_of_one_window(&short, flows);
    lab.sh(&format!("{NETSILO} undo")).unwrap();
}

/// Polls and forwarded packets are counted in one window, however short, so nearly all polled
/// packets are forwarded. A poll at the edge of the window counts as a whole.
fn all_is_of_one_window(report: &Report, flows: &[(usize, &str)]) {
    const MOST_IN_A_POLL: f64 = 64.0; // NAPI_POLL_WEIGHT
    for (from, _) in flows {
        let name = format!("eth{from}");
        let receives = report.netdevs.iter().find(|it| it.name == name).unwrap();
        let polled: f64 = receives.queues.iter().filter_map(|silo| silo.packets_per_s).sum();
        let forwards = receives.queues.iter().flat_map(|silo| &silo.forwards);
        let forwarded: f64 = forwards.map(|it| it.packets_per_s).sum();
        let cut = MOST_IN_A_POLL * receives.queues.len() as f64 / report.attribution.elapsed_s;
        assert!(
            polled > 4.0 * cut && (polled - forwarded).abs() < 0.1 * polled + cut,
            "{name}: {polled} packets/s polled, {forwarded} forwarded, {cut} may be cut"
        );
    }
}

/// Four servers that answer all the time, and their clients. No interrupt is moved twice. If each
/// queue has one server, the first plan is the last. On igb each queue has flows of several
/// servers, and a later plan may make moves whose gain is only slightly above the minimum.
#[test]
#[ignore = "three minutes: make test-long"]
fn successive_plans_under_a_steady_load_move_nothing_twice_on_igb_and_on_32_cpus() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let igb = Spec::new(Kernel::V6_12, NicModel::Igb);
    let nics = vec![Nic { queues: 8, ..Nic::from(NicModel::VirtioNet) }];
    let big = Spec { cpus: 32, nics, ..Spec::new(Kernel::V6_1, NicModel::VirtioNet) };
    for (spec, cpus, one_each) in [(igb, "1,2,5,6", false), (big, "1,9,17,25", true)] {
        let lab = Lab::boot(&spec).unwrap();
        let address = Lab::guest_address(0);
        let bench = netsilo_lab::bench_of(NETSILO);
        let server = format!("{bench} serve --bind {address} --workers 4 --cpus {cpus}");
        let server = lab.spawn(&format!("exec {server}")).unwrap();
        let peer = lab.peer(0).unwrap();
        peer.until_open(address, 12870..=12870).unwrap();
        let load = "-t TCP_RR -n 16 --instances-as multiplexed --duration 900s";
        let client = peer.spawn(&format!("exec {bench} run {address} {load}")).unwrap();
        let received = || {
            let text = lab.sh("cat /sys/class/net/eth0/statistics/rx_packets").unwrap();
            text.trim().parse::<u64>().unwrap()
        };
        let mut moved = BTreeSet::new();
        for round in 0..5 {
            let before = received();
            let plan = format!("{NETSILO} plan --interval 4s -j | tee /tmp/plan.json");
            let plan: Plan = lab.json(&plan).unwrap();
            assert!(received() > before + 500, "the load is not steady");
            assert!(round == 0 || !one_each || plan.changes.is_empty(), "{plan:#?}");
            for change in &plan.changes {
                assert!(moved.insert(change.target.to_string()), "after {moved:?}: {plan:#?}");
            }
            lab.sh(&format!("{NETSILO} apply --yes --plan /tmp/plan.json")).unwrap();
        }
        assert!(!one_each || !moved.is_empty());
        client.stop().unwrap();
        server.stop().unwrap();
    }
}

fn forwarding(lab: &Lab) {
    lab.route().unwrap();
    pin(lab, "eth0", 0);
    pin(lab, "eth1", 6);
    let before = lab.sh(AFFINITIES).unwrap();
    let traffic = through(lab, 0, "10.77.1.1");
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
        // If a NAPI has hardly any packets, its queue is unknown, and so is the affinity.
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
    // Two queues and many flows, because the hash key is random, and so is the queue of each flow.
    lab.sh("ethtool -L eth0 combined 2").unwrap();
    // Little traffic, because emulated times are long, and crowding is not tested here.
    let worker = |(n, cpu)| {
        let receive = format!(
            "receive --mode udp-unconnected --cpus {cpu} --port 71{n}0 --flows 64 --idle 60"
        );
        let to = format!("--dest {} --port 71{n}0 --flows 64", Lab::guest_address(0));
        let receiver = lab.exact(&receive).unwrap();
        let send = format!("send --udp {to} --bytes 4000000 --rate 60");
        (lab.peer(0).unwrap().exact(&send).unwrap(), receiver)
    };
    let workers: Vec<_> = [1, 2, 5, 6].into_iter().enumerate().map(worker).collect();
    let who_reads = || {
        let report: Report = lab.json(&format!("{NETSILO} show --interval 2s -j")).unwrap();
        report
            .cpus
            .iter()
            .filter(|cpu| !cpu.consumers.is_empty())
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
    for (client, receiver) in workers {
        client.stop().unwrap();
        receiver.stop().unwrap();
    }
    assert!(
        plan.advice.iter().any(|advice| advice.subject == "eth0"
            && advice.text.contains("moving interrupts gains nothing")),
        "{plan:#?}"
    );
    assert_eq!(plan.changes, [], "{plan:#?}");
    lab.sh(&format!("{NETSILO} undo")).unwrap();
}
