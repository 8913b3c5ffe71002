//! What the published experiments show beyond single figures, and what the model must explain.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use netsilo_model::machine::cpuset::CpuId;
use netsilo_predict::file::{self, Described};
use netsilo_predict::limit::Limit;
use netsilo_predict::parameters::Table;
use netsilo_predict::predict;
use netsilo_predict::prediction::Prediction;

const REQUESTS: &str = include_str!("../../../cases/predict/request-response.toml");
const GUEST: &str = include_str!("../../../cases/predict/service-in-a-guest.toml");
const FORWARD: &str = include_str!("../../../cases/predict/forward.toml");

fn described(text: &str, changes: &[(&str, &str)]) -> Described {
    let changes: Vec<_> = changes.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    file::parse(text, &changes, &[]).unwrap()
}

fn predicted(described: &Described, setting: &str) -> Prediction {
    let values = Table::built_in().unwrap().values();
    predict(&described.scenario, &described.settings[setting], &values)
}

fn requests(kind: &str, bytes: &str, instances: &str) -> Described {
    let changes = [("load.kind", kind), ("load.bytes", bytes), ("load.instances", instances)];
    described(REQUESTS, &changes)
}

fn gain(described: &Described, setting: &str, other: &str) -> f64 {
    predicted(described, setting).rate / predicted(described, other).rate - 1.0
}

#[test]
fn answers_of_256_bytes_over_tcp_meet_the_wire() {
    let load = requests("tcp-rr", "256", "1500");
    // 346 bytes for each on the wire, at 1 Gbit/s.
    let most = 1e9 / (8.0 * 346.0);
    for setting in ["rps_rfs", "irq_affinity", "irq_affinity+rps_rfs"] {
        let out = predicted(&load, setting);
        assert_eq!(out.limit, Limit::Link(String::new()), "{setting}");
        assert!((0.98..=1.001).contains(&(out.rate / most)), "{setting}: {}", out.rate);
    }
    assert_eq!(predicted(&load, "none").limit, Limit::Cpu(CpuId(0)));
}

#[test]
fn udp_arrives_on_one_queue_and_affinity_alone_costs_4_to_11_percent() {
    for bytes in ["1", "256"] {
        for instances in ["100", "500", "1500"] {
            let load = requests("udp-rr", bytes, instances);
            let cost = -gain(&load, "irq_affinity", "none");
            assert!((0.04..=0.11).contains(&cost), "{bytes} B x {instances}: {cost}");
            let out = predicted(&load, "irq_affinity");
            assert_eq!(out.limit, Limit::Cpu(CpuId(1)), "{bytes} B x {instances}");
        }
    }
}

#[test]
fn rps_and_rfs_on_top_of_affinity_add_nothing_for_tcp_and_much_for_udp() {
    let tcp = gain(&requests("tcp-rr", "1", "1500"), "irq_affinity+rps_rfs", "irq_affinity");
    assert!((-0.1..=0.03).contains(&tcp), "{tcp}");
    let udp = gain(&requests("udp-rr", "1", "1500"), "irq_affinity+rps_rfs", "irq_affinity");
    assert!(udp >= 0.5, "{udp}");
}

#[test]
fn rps_on_a_saturated_guest_lowers_its_work_and_doubles_its_time_in_softirqs() {
    let guest = described(GUEST, &[]);
    let (before, after) = (predicted(&guest, "none"), predicted(&guest, "rps"));
    assert!(after.rate < before.rate, "{} {}", after.rate, before.rate);
    let softirq = |out: &Prediction| out.cpus.iter().map(|cpu| cpu.softirq).sum::<f64>();
    let ratio = softirq(&after) / softirq(&before);
    assert!((1.7..=2.3).contains(&ratio), "{ratio}");
}

#[test]
fn rps_takes_forwarded_packets_to_other_cpus() {
    let rps = ("settings.A_all_irqs_cpu0.rps", "0-1");
    let text = FORWARD.replace("mbit = 166\n", "packets = 600000\n");
    let without = predicted(&described(&text, &[]), "A_all_irqs_cpu0");
    let with = predicted(&described(&text, &[rps]), "A_all_irqs_cpu0");
    assert!(without.cpus[1].softirq == 0.0 && with.cpus[1].softirq > 0.1, "{with:?}");
    assert!(with.rate > 1.1 * without.rate, "{} {}", with.rate, without.rate);
    assert!(with.ipis.is_some_and(|ipis| ipis > 0.0) && without.ipis == Some(0.0));
}

#[test]
fn forwarding_uses_all_queues_up_to_the_link() {
    let text = FORWARD.replace("mbit = 166\n", "packets = 3000000\n");
    let more = [("machine.cores", "16"), ("nic.queues", "8"), ("machine.kernel", "6.1")];
    let rate = |irq, gbit| {
        let changes = [&more[..], &[("settings.A_all_irqs_cpu0.irq", irq), ("nic.gbit", gbit)]];
        predicted(&described(&text, &changes.concat()), "A_all_irqs_cpu0")
    };
    let (one, each, link) = (rate("0", "10"), rate("0-15", "10"), rate("0-15", "1"));
    assert!(each.rate > 4.0 * one.rate, "{} {}", each.rate, one.rate);
    assert_eq!(link.limit, Limit::Link(String::new()));
    assert!((link.rate * 84.0 * 8.0 / 1e9 - 1.0).abs() < 0.001, "{}", link.rate);
}

#[test]
fn a_service_on_idle_cpus_loses_nothing_and_no_cpu_does_more_than_it_has_time_for() {
    let load = |softirq| {
        let part = [("load.usr", "0.1"), ("load.sys", "0.02"), ("load.softirq", softirq)];
        let guest = described(GUEST, &part);
        (predicted(&guest, "none"), predicted(&guest, "rps"))
    };
    let (idle, rps) = load("0.04");
    assert!((rps.rate / idle.rate - 1.0).abs() < 0.001 && idle.limit == Limit::Load, "{rps:?}");
    let (full, relieved) = load("0.4");
    assert!(relieved.rate > 1.2 * full.rate, "{} {}", relieved.rate, full.rate);
    let cpu = full.cpus[1];
    assert!(
        cpu.softirq <= 1.001 && cpu.usr >= 0.0 && full.limit == Limit::Cpu(CpuId(1)),
        "{cpu:?}"
    );
}

#[test]
fn readers_run_on_the_cpus_of_the_load_alone() {
    let out = predicted(&described(REQUESTS, &[("load.cpus", "4-7")]), "none");
    let runs = out.cpus.iter().map(|cpu| cpu.usr > 0.0);
    assert_eq!(runs.collect::<Vec<_>>(), [[false; 4], [true; 4], [false; 4], [false; 4]].concat());
}

/// Cai et al., SIGCOMM 2021: a core of 3.4 GHz receives 42 Gbit/s and could send more.
#[test]
fn one_core_of_today_streams_some_42_gbit_per_second() {
    let text = include_str!("../../../cases/predict/send.toml");
    let new = [("machine.kernel", "5.4"), ("machine.ghz", "3.4"), ("nic.gbit", "100")];
    let out = predicted(&described(text, &new), "none");
    assert!((33e9..50e9).contains(&out.rate) && out.limit == Limit::Threads, "{}", out.rate);
}
