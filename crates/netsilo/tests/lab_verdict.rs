//! RPS in guests, on a NIC whose CPUs are busy with a service and on netdevs without hardware.
//! Compares the verdict with the counts after RPS was switched on.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so, and figures are shown"
)]

use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::verdict::{Claim, RemedyName, RemedyVerdict};
use netsilo_decide::plan::Plan;
use netsilo_decide::report::Report;
use netsilo_lab::{Job, Kernel, Lab, Nic, NicModel, Spec, until};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
/// Raises netsilo's priority. Without this it would wait for minutes, because the servers use all
/// CPU time.
const FIRST: &str = "nice -n -20";
/// Weights a hundred times larger than usual, because there are few packets under emulation.
const COSTS: &str = r#"{ "ipi_ns": { "same_cpu": 0, "smt": 500000, "l2": 500000,
    "llc": 500000, "node": 500000, "remote": 500000 } }"#;
/// CPUs to which RPS steers work; the interrupt is on CPU 1.
const TARGETS: [u32; 3] = [0, 2, 3];
/// How often RPS is turned on and off. Means over rounds are compared, because the rates of a busy
/// guest vary from one interval to the next.
const ROUNDS: usize = 3;

#[test]
#[ignore = "too slow for make test: make test-long"]
fn rps_on_a_busy_guest_has_the_verdict_hurts_and_adds_the_predicted_interrupts() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let nics = vec![Nic { queues: 1, ..Nic::from(NicModel::VirtioNet) }];
    let lab = Lab::boot(&Spec { nics, cpus: 4, ..Spec::new(Kernel::V6_12, NicModel::VirtioNet) })
        .unwrap();
    lab.sh(&format!(
        "echo '{COSTS}' >/tmp/costs.json; \
         echo 2 >/proc/irq/$(grep -lE '^virtio[0-9]+-input.0$' \
         /sys/kernel/irq/*/actions | cut -d/ -f5)/smp_affinity"
    ))
    .unwrap();
    let server = serve(&lab, "0-3", "--workers 4 --work-usecs 4000");
    let (peer, address) = (lab.peer(0).unwrap(), Lab::guest_address(0));
    peer.until_open(address, 12870..=12870).unwrap();
    let load = "-t TCP_RR -n 64 --instances-as multiplexed --duration 900s";
    let bench = netsilo_lab::bench_of(NETSILO);
    let client = peer.spawn(&format!("exec {bench} run {address} {load}")).unwrap();

    let goal = "--no-irqs --rps 0,2-3 --costs /tmp/costs.json";
    let plan =
        || lab.json::<Plan>(&format!("{FIRST} {NETSILO} plan {goal} --interval 4s -j")).unwrap();
    let hurts = |plan: &Plan| plan.changes.iter().any(|change| change.reason.contains("(hurts: "));
    until("the plan states that RPS hurts", plan, hurts).unwrap();
    let by_rps = |report: &Report, cpu| of(report, cpu, |line| line.received_rps_per_s) > 0.0;
    let rounds: Vec<[Report; 2]> = (0..ROUNDS)
        .map(|_| {
            let none = |report: &Report| !TARGETS.iter().any(|cpu| by_rps(report, *cpu));
            let before = until("no cpu gets packets from RPS", || report(&lab), none).unwrap();
            lab.sh(&format!("{FIRST} {NETSILO} apply --yes {goal} --interval 1s")).unwrap();
            let all = |report: &Report| TARGETS.iter().all(|cpu| by_rps(report, *cpu));
            let after =
                until("all target cpus get packets from RPS", || report(&lab), all).unwrap();
            lab.sh(&format!("{FIRST} {NETSILO} undo")).unwrap();
            [before, after]
        })
        .collect();

    let per_packet = |report: &Report,
                      what: fn(&netsilo_decide::report::CpuLine) -> Option<f64>,
                      cpus: &[u32]| {
        let packets = report
            .netdevs
            .iter()
            .find(|line| line.name == "eth0")
            .and_then(|line| line.rx_packets_per_s);
        cpus.iter().map(|cpu| of(report, *cpu, what)).sum::<f64>() / packets.unwrap()
    };
    let means = |what: fn(&netsilo_decide::report::CpuLine) -> Option<f64>, cpus: &[u32]| {
        [0, 1].map(|side: usize| {
            let sum: f64 = rounds.iter().map(|round| per_packet(&round[side], what, cpus)).sum();
            sum / ROUNDS as f64
        })
    };
    let all = [0, 1, 2, 3];
    let received = means(|line| line.received_rps_per_s, &all);
    let softirqs = means(|line| line.net_rx_per_s, &all);
    let ipis = means(|line| line.cal_per_s, &TARGETS);
    let seen = format!(
        "per packet, before and after: received_rps {received:?}, NET_RX {softirqs:?}, CAL {ipis:?}"
    );
    println!("{seen}");
    assert!(received[0] == 0.0 && received[1] > 0.05 && received[1] <= 1.05, "{seen}");
    assert!(softirqs[1] > softirqs[0], "{seen}");
    assert!(ipis[1] > ipis[0], "{seen}");

    assert_eq!(
        lab.sh("cat /sys/class/net/eth0/queues/rx-0/rps_cpus")
            .unwrap()
            .trim_matches(['0', ',', '\n']),
        ""
    );
    drop((client, server));
}

/// Netdevs of the guest, each above a veth whose other end is in the namespace `far`. The addresses
/// at both ends differ in the last number.
const SOFTWARE: &str = "modprobe -a bonding 8021q bridge; ip netns add far; \
    for n in 0 1 2; do \
        ip link add near$n type veth peer name far$n netns far; \
        ip -n far link set far$n up; \
    done; \
    ip link add bond0 type bond mode active-backup; ip link set near0 master bond0; \
    ip link add link near1 name near1.5 type vlan id 5; \
    ip -n far link add link far1 name far1.5 type vlan id 5; ip -n far link set far1.5 up; \
    ip link add br0 type bridge; ip link set near2 master br0; \
    n=0; for netdev in bond0 near1.5 br0; do \
        ip address add 10.80.$n.1/24 dev $netdev; ip link set $netdev up; n=$((n + 1)); \
    done; \
    for n in 0 1 2; do ip link set near$n up; done; \
    ip -n far address add 10.80.0.2/24 dev far0; ip -n far address add 10.80.1.2/24 dev far1.5; \
    ip -n far address add 10.80.2.2/24 dev far2";

/// The kernel uses the RPS of a bridge, but never that of a bond or VLAN.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn rps_steers_what_a_bridge_delivers_and_nothing_of_a_bond_or_vlan() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab =
        Lab::boot(&Spec { cpus: 4, ..Spec::new(Kernel::V6_12, NicModel::VirtioNet) }).unwrap();
    lab.sh(SOFTWARE).unwrap();
    let server = serve(&lab, "1", "--workers 1");
    let bench = netsilo_lab::bench_of(NETSILO);
    lab.peer(0).unwrap().until_open(Lab::guest_address(0), 12870..=12870).unwrap();
    // counted once for each IPI (`rps_trigger_softirq`)
    let steered = || {
        let text = lab.sh("cut -d' ' -f10 /proc/net/softnet_stat").unwrap();
        text.lines().map(|count| u64::from_str_radix(count, 16).unwrap()).sum::<u64>()
    };
    let cpus = |netdev: &str| lab.sh(&format!("cat /sys/class/net/{netdev}/queues/rx-0/rps_cpus"));
    for (n, netdev, steers) in [(0, "bond0", false), (1, "near1.5", false), (2, "br0", true)] {
        let client = format!(
            "exec ip netns exec far taskset -c 0 {bench} run 10.80.{n}.1 -t UDP_RR -n 4 \
             --instances-as multiplexed --workers 1 --resend --duration 300s"
        );
        let client = lab.spawn(&client).unwrap();
        let verdict = || {
            let check: Check = lab.json(&format!("{NETSILO} check --interval 2s -j")).unwrap();
            let of = |it: &RemedyVerdict| {
                it.subject.to_string() == netdev && it.remedy == RemedyName::Rps
            };
            check.verdicts.into_iter().find(of)
        };
        let found = until(&format!("a verdict on {netdev}"), verdict, Option::is_some).unwrap();
        let verdict = found.unwrap();
        println!("{netdev}: {:?}: {}", verdict.claim, verdict.reason);
        assert_eq!(verdict.reason.contains("never reads"), !steers, "{verdict:?}");
        let expected = if steers { Claim::Unknown } else { Claim::NoClearChange };
        assert_eq!(verdict.claim, expected, "{verdict:?}");

        let goal = format!("--netdev {netdev} --no-irqs --rps 2-3 --interval 1s");
        let applied = lab.run(&format!("{NETSILO} apply --yes {goal}")).unwrap();
        let written = cpus(netdev).unwrap();
        assert_eq!(written.trim(), if steers { "c" } else { "0" }, "{}", applied.text());
        if !steers {
            assert!(applied.text().contains("name those instead"), "{}", applied.text());
            lab.sh(&format!("echo c >/sys/class/net/{netdev}/queues/rx-0/rps_cpus")).unwrap();
        }
        let before = steered();
        let received = || lab.sh(&format!("cat /sys/class/net/{netdev}/statistics/rx_packets"));
        let count = |text: String| text.trim().parse::<u64>().unwrap();
        let packets_before = count(received().unwrap());
        let many = |packets: &u64| *packets > packets_before + 1000;
        let packets = until("a thousand packets", || count(received().unwrap()), many).unwrap();
        let steered = steered() - before;
        println!(
            "{netdev}: RPS woke cpus {steered} times for {} packets",
            packets - packets_before
        );
        assert_eq!(steered > 100, steers, "{netdev}: {steered}");
        assert!(steers || steered == 0, "{netdev}: {steered}");
        client.stop().unwrap();
        if steers {
            lab.sh(&format!("{NETSILO} undo")).unwrap();
            assert_eq!(cpus(netdev).unwrap().trim(), "0");
        }
    }
    server.stop().unwrap();
}

/// Starts a server whose threads run on these CPUs only.
fn serve(lab: &Lab, cpus: &str, options: &str) -> Job {
    let bench = netsilo_lab::bench_of(NETSILO);
    lab.spawn(&format!("exec {bench} serve --bind 0.0.0.0 --cpus {cpus} {options}")).unwrap()
}

fn report(lab: &Lab) -> Report {
    lab.json(&format!("{FIRST} {NETSILO} show --interval 4s -j")).unwrap()
}

fn of(
    report: &Report,
    cpu: u32,
    what: impl Fn(&netsilo_decide::report::CpuLine) -> Option<f64>,
) -> f64 {
    report.cpus.iter().find(|line| line.cpu.0 == cpu).and_then(what).unwrap_or(0.0)
}
