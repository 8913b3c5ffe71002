//! What the published experiments show beyond single figures, and what the model must explain.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use netsilo_predict::file::{self, Described};
use netsilo_predict::parameters::Table;
use netsilo_predict::predict;
use netsilo_predict::prediction::{Bottleneck, Prediction};

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
        assert_eq!(out.bottleneck, Bottleneck::Link, "{setting}");
        assert!((0.98..=1.001).contains(&(out.rate / most)), "{setting}: {}", out.rate);
    }
    assert_eq!(predicted(&load, "none").bottleneck, Bottleneck::Softirq(0));
}

#[test]
fn udp_arrives_on_one_queue_and_affinity_alone_costs_4_to_11_percent() {
    for bytes in ["1", "256"] {
        for instances in ["100", "500", "1500"] {
            let load = requests("udp-rr", bytes, instances);
            let cost = -gain(&load, "irq_affinity", "none");
            assert!((0.04..=0.11).contains(&cost), "{bytes} B x {instances}: {cost}");
            let out = predicted(&load, "irq_affinity");
            assert_eq!(out.bottleneck, Bottleneck::Softirq(1), "{bytes} B x {instances}");
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
    assert!(with.ipis.is_some_and(|ipis| ipis > 0.0) && without.ipis.is_none());
}
