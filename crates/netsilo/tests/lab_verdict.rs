//! RPS in a guest whose CPUs are busy with a service: compares the verdict with the counts after
//! RPS was switched on.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so, and figures are shown"
)]

use netsilo_decide::plan::Plan;
use netsilo_decide::report::Report;
use netsilo_lab::{Kernel, Lab, Nic, NicModel, Spec, until};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
/// Raises netsilo's priority: beside servers that use all CPU time it would wait for minutes.
const FIRST: &str = "nice -n -20";
/// Weights a hundred times larger than usual, because emulated packets are few.
const COSTS: &str = r#"{ "ipi_ns": { "same_cpu": 0, "smt": 500000, "l2": 500000,
    "llc": 500000, "node": 500000, "remote": 500000 } }"#;
/// CPUs to which RPS steers work; the interrupt is on CPU 1.
const TARGETS: [u32; 3] = [0, 2, 3];

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
    let server =
        lab.traffic("rr-server --proto tcp --port 7000 --cpus 0,1,2,3 --work-usecs 4000").unwrap();
    let to = format!(
        "--dest {} --port 7000 --ports 4 --connections 64 --duration 900",
        Lab::guest_address(0)
    );
    let client = lab.peer(0).unwrap().traffic(&format!("rr-client --proto tcp {to}")).unwrap();

    let goal = "--no-irqs --rps 0,2-3 --costs /tmp/costs.json";
    let plan =
        || lab.json::<Plan>(&format!("{FIRST} {NETSILO} plan {goal} --interval 4s -j")).unwrap();
    let hurts = |plan: &Plan| plan.changes.iter().any(|change| change.reason.contains("(hurts: "));
    until("the plan states that RPS hurts", plan, hurts).unwrap();
    let before = report(&lab);

    lab.sh(&format!("{FIRST} {NETSILO} apply --yes {goal} --interval 1s")).unwrap();
    let arrives = |report: &Report| {
        TARGETS.iter().all(|cpu| of(report, *cpu, |line| line.received_rps_per_s) > 0.0)
    };
    let after = until("all target cpus get packets from RPS", || report(&lab), arrives).unwrap();

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
    let all = [0, 1, 2, 3];
    let received =
        [&before, &after].map(|report| per_packet(report, |line| line.received_rps_per_s, &all));
    let softirqs =
        [&before, &after].map(|report| per_packet(report, |line| line.net_rx_per_s, &all));
    let ipis = [&before, &after].map(|report| per_packet(report, |line| line.cal_per_s, &TARGETS));
    let seen = format!(
        "per packet, before and after: received_rps {received:?}, NET_RX {softirqs:?}, CAL {ipis:?}"
    );
    println!("{seen}");
    assert!(received[0] == 0.0 && received[1] > 0.05 && received[1] <= 1.05, "{seen}");
    assert!(softirqs[1] > softirqs[0], "{seen}");
    assert!(ipis[1] > ipis[0], "{seen}");

    lab.sh(&format!("{FIRST} {NETSILO} undo")).unwrap();
    assert_eq!(
        lab.sh("cat /sys/class/net/eth0/queues/rx-0/rps_cpus")
            .unwrap()
            .trim_matches(['0', ',', '\n']),
        ""
    );
    drop((client, server));
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
