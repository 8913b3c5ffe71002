//! What a setting may change of its scenario, and what it may not.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use netsilo_predict::file::{self, BadScenario, Described};
use netsilo_predict::parameters::Table;
use netsilo_predict::predict;

const REQUESTS: &str = include_str!("../../../cases/predict/request-response.toml");
const FORWARD: &str = include_str!("../../../cases/predict/forward.toml");

fn parse(text: &str, changes: &[(&str, &str)]) -> Result<Described, BadScenario> {
    let changes: Vec<_> = changes.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    file::parse(text, &changes, &[])
}

fn rate(described: &Described, setting: &str) -> f64 {
    let values = Table::built_in().unwrap().values();
    predict(&described.scenario, &described.settings[setting], &values).rate
}

#[test]
fn a_setting_that_hashes_the_ports_of_udp_spreads_it_over_the_queues() {
    let change = ("settings.irq_affinity.udp_ports", "true");
    let load = parse(REQUESTS, &[("load.kind", "udp-rr"), change]).unwrap();
    assert!(rate(&load, "irq_affinity") > 2.0 * rate(&load, "none"));
}

#[test]
fn a_setting_with_one_queue_has_no_gain_from_affinity() {
    let load = parse(REQUESTS, &[("settings.irq_affinity.queues", "1")]).unwrap();
    assert!((rate(&load, "irq_affinity") / rate(&load, "none") - 1.0).abs() < 0.01);
}

#[test]
fn a_setting_without_rules_forwards_more() {
    let rules = ("settings.B_eth1_cpu0_eth2_cpu1.filter", "none");
    let load = parse(FORWARD, &[("load.mbit", "500")]).unwrap();
    let without = parse(FORWARD, &[("load.mbit", "500"), rules]).unwrap();
    let name = "B_eth1_cpu0_eth2_cpu1";
    assert!(rate(&without, name) > 1.2 * rate(&load, name));
}

#[test]
fn a_key_that_changes_nothing_for_the_load_is_refused() {
    for (text, key, value, what) in [
        (REQUESTS, "settings.none.filter", "none", "changes nothing for a load of kind tcp-rr"),
        (REQUESTS, "settings.none.udp_ports", "true", "changes nothing for a load of kind tcp-rr"),
        (
            FORWARD,
            "settings.A_all_irqs_cpu0.rfs",
            "1",
            "changes nothing for a load of kind forward",
        ),
        (REQUESTS, "settings.none.queues", "0", "must be 1 to 4096"),
        (REQUESTS, "settings.none.coalesce_us", "-1", "must be 0 to 1000000"),
    ] {
        let refused = parse(text, &[(key, value)]).unwrap_err();
        assert_eq!(refused.to_string(), format!("{key}: {what}"));
    }
}

#[test]
fn a_newer_scenario_is_refused_with_the_version_that_reads_it() {
    let with = |keys: &str| parse(&format!("{keys}\n{REQUESTS}"), &[]);
    assert_eq!(with("schema = 1\nnetsilo = \"0.1.0\"").unwrap(), parse(REQUESTS, &[]).unwrap());
    let refused = with("schema = 9\nnetsilo = \"0.4.0\"\nunknown = []").unwrap_err().to_string();
    assert!(
        refused.starts_with("it has schema 9, written by netsilo 0.4.0; this is "),
        "{refused}"
    );
    assert!(refused.ends_with("which reads up to 1: use netsilo 0.4.0 or newer"), "{refused}");
}

#[test]
fn numbers_need_no_quotes() {
    let with = |value| parse(REQUESTS, &[("settings.none.irq", value)]).unwrap();
    assert_eq!(with("7"), with("\"7\""));
    assert!(parse(REQUESTS, &[("machine.kernel", "6.1")]).is_ok());
    let refused = parse(REQUESTS, &[("settings.none.irq", "[7]")]).unwrap_err();
    assert_eq!(refused.to_string(), "settings.none.irq: write a text, not array");
}

#[test]
fn rfs_without_a_mask_of_rps_brings_packets_to_their_readers() {
    let load = parse(REQUESTS, &[("settings.none.rfs", "32768")]).unwrap();
    assert!((rate(&load, "none") / rate(&load, "rps_rfs") - 1.0).abs() < 0.001);
}

#[test]
fn a_setting_without_coalescing_is_not_the_clients() {
    let change = ("settings.irq_affinity.coalesce_us", "0");
    let time = |described: &Described| {
        let values = Table::built_in().unwrap().values();
        let setting = &described.settings["irq_affinity"];
        predict(&described.scenario, setting, &values).latency_us.unwrap()
    };
    let one = ("load.instances", "1");
    let less =
        time(&parse(REQUESTS, &[one]).unwrap()) - time(&parse(REQUESTS, &[one, change]).unwrap());
    assert!((10.0..=18.0).contains(&less), "{less} of 18 us");
}

/// Each number of a file, of a load that has it.
const NUMBERS: [(&str, &str); 18] = [
    ("tcp-rr", "machine.ghz"),
    ("tcp-rr", "machine.cores"),
    ("tcp-rr", "nic.queues"),
    ("tcp-rr", "nic.gbit"),
    ("tcp-rr", "nic.mtu"),
    ("tcp-rr", "nic.coalesce_us"),
    ("tcp-rr", "nic.coalesce_frames"),
    ("tcp-rr", "nic.bus_gbit"),
    ("tcp-rr", "load.instances"),
    ("tcp-rr", "load.bytes"),
    ("udp-rr", "load.work_us"),
    ("tcp-rr", "settings.none.queues"),
    ("tcp-rr", "settings.none.coalesce_us"),
    ("tcp-rr", "settings.none.coalesce_frames"),
    ("forward", "load.packets"),
    ("forward", "load.bytes"),
    ("send", "load.bytes"),
    ("send", "load.senders"),
];

#[test]
fn no_number_beyond_its_range_is_taken() {
    for (kind, key) in NUMBERS {
        let load = match kind {
            "forward" => "packets = 1000",
            "send" => "protocol = 'tcp'\nbytes = 1000",
            _ => "instances = 10",
        };
        let text = format!("[machine]\ncores = 4\n[load]\nkind = '{kind}'\n{load}\n");
        assert!(file::parse(&text, &[], &[]).is_ok(), "{text}");
        for value in ["-1", "1e19", "inf", "-inf", "nan"] {
            let change = (key.to_owned(), value.to_owned());
            let error = file::parse(&text, &[change], &[]).err().map(|it| it.to_string());
            assert!(error.is_some_and(|it| it.contains(key)), "{key} = {value}");
        }
    }
}
