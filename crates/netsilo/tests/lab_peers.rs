//! netsilo's default compared with other placements in one guest (`make bench-peers`), at reduced
//! size. Counts and shares of bytes are asserted, never rates.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::process::Command;

use netsilo_lab::exact;
use serde_json::Value as Json;

/// By how many IPIs per transaction netsilo may exceed the best peer. Both medians come from few
/// rounds, and the guest's own work (timers, reading the counters) adds some IPIs to each.
const IPI_SLACK: f64 = 0.05;

/// By how much netsilo's share of bytes across sockets may exceed the best peer's. A second of a
/// light load has few bytes.
const REMOTE_SLACK: f64 = 0.02;

/// The settings of the reduced run.
const SETTINGS: [&str; 7] =
    ["as-booted", "irqbalance", "spread", "cpu0", "rps", "rps-rfs", "netsilo"];

/// All workloads except `forward`, where netsilo is worse in each count (evidence/peers.md).
const WORKLOADS: [&str; 7] = ["tcp-rr", "udp-rr", "redis", "memcached", "nginx", "dns", "stream"];

#[test]
#[ignore = "too slow for make test: make test-long"]
fn netsilo_wakes_as_few_cpus_as_the_best_peer_and_reads_nothing_across_sockets() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut lab = Command::new(exact::program().unwrap());
    lab.args(["experiment", "peers", "--rounds", "3", "--seed", "1", "--threads", "single"]);
    for workload in WORKLOADS {
        lab.args(["--load", workload]);
    }
    lab.arg("--keep").arg(folder.path());
    for setting in SETTINGS {
        lab.args(["--setting", setting]);
    }
    let output = lab.output().unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{text}");
    assert!(output.status.success(), "{text}");
    let record = std::fs::read(folder.path().join("peers/experiment.json")).unwrap();
    let record: Json = serde_json::from_slice(&record).unwrap();
    let workloads = array(&record["loads"]);
    let names: Vec<&str> = workloads.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, WORKLOADS, "{record:#}");
    for workload in workloads {
        wakes_few_and_reads_near(workload);
    }
}

/// Asserts the counts of one workload.
fn wakes_few_and_reads_near(workload: &Json) {
    let name = &workload["name"];
    assert!(workload["lost"].is_null() && workload["failed"].is_null(), "{name}: {workload:#}");
    let measured: Vec<&str> = array(&workload["settings"]).iter().flat_map(settings).collect();
    assert!(SETTINGS.iter().all(|name| measured.contains(name)), "{name}: {measured:?}");
    for state in array(&workload["settings"]) {
        assert_eq!(array(&state["rates"]).len(), 3, "{name}: {state:#}");
    }
    let (netsilo, peer) = comparison(workload, "ipis");
    let few = peer > 0.0 && netsilo <= peer + IPI_SLACK;
    assert!(few, "{name}: {netsilo} IPIs, best peer {peer}");
    let (netsilo, peer) = comparison(workload, "bytes_remote");
    assert!(netsilo <= peer + REMOTE_SLACK, "{name}: {netsilo} across sockets, best peer {peer}");
}

fn array(value: &Json) -> &Vec<Json> {
    value.as_array().unwrap_or_else(|| panic!("no array: {value:#}"))
}

/// The settings that lead to a state.
fn settings(state: &Json) -> impl Iterator<Item = &str> {
    array(&state["details"]["settings"]).iter().map(|name| name.as_str().unwrap())
}

/// The median of a figure with netsilo, and with the best peer.
fn comparison(workload: &Json, figure: &str) -> (f64, f64) {
    let median = |state: &Json| {
        let rounds = array(&state["figures"][figure]).iter().map(|it| it.as_f64().unwrap());
        netsilo_trial::stats::median(&rounds.collect::<Vec<_>>()).unwrap()
    };
    let of = |is_meant: fn(&str) -> bool| {
        let states = array(&workload["settings"]).iter();
        states.filter(|state| settings(state).any(is_meant)).map(median).fold(f64::NAN, f64::min)
    };
    (of(|name| name == "netsilo"), of(|name| name != "netsilo"))
}
