//! The published experiment on a guest of the published server's shape (16 CPUs, 8 queues). At
//! reduced size its effects must show in counts (`make bench-smoke`); at full size it produces a
//! report (`make bench-matrix`). With emulated CPUs times are meaningless, and the report says so.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use netsilo_lab::{Kernel, Lab, NicModel, PeerJob, Spec};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netsilo-bench");
const PATIENCE: Duration = Duration::from_secs(600);

/// Puts every interrupt of the NIC on one CPU, as on the published server.
const ONE_CPU: &str = "for irq in $(ls /sys/class/net/eth0/device/msi_irqs); do \
                       echo 0 >/proc/irq/$irq/smp_affinity_list; done";

/// Reads everything that the settings may change.
const KNOBS: &str = "cat /proc/irq/*/smp_affinity_list /sys/class/net/eth0/queues/rx-*/rps_*; \
                     ethtool -n eth0 rx-flow-hash udp4";

/// Boots a guest of the published server's shape and placement, with the load generator on its
/// peer.
fn server() -> (Lab, PeerJob) {
    let lab = Lab::boot(&Spec { cpus: 16, ..Spec::new(Kernel::V6_12, NicModel::Igb) }).unwrap();
    let peer = Lab::peer_address(0);
    let agent =
        lab.peer(0).unwrap().spawn(&format!("exec '{PROGRAM}' serve --bind {peer}")).unwrap();
    lab.sh(ONE_CPU).unwrap();
    (lab, agent)
}

/// Writes a definition to that guest and returns the command of the experiment.
fn experiment(lab: &Lab, definition: &str, words: &str) -> String {
    // guests are slow, so a request is considered lost only later
    let definition = format!("{definition}lost-after = \"5s\"\n");
    lab.sh(&format!("cat >/tmp/matrix.toml <<'END'\n{definition}END")).unwrap();
    let peer = Lab::peer_address(0);
    let common = "--netdev eth0 -o /tmp/run -y --seed 1 --pause 100ms";
    format!("'{PROGRAM}' experiment /tmp/matrix.toml --peer {peer} {common} {words}")
}

/// The published experiment with three of its settings, affinity with ports in the hash of UDP, and
/// fewer loads.
const SMALL: &str = r#"
[[setting]]
name = "none"

[[setting]]
name = "irq-affinity"
irqs = "spread"

[[setting]]
name = "rps+rfs"
rps = "all"
rfs = 32768

[[setting]]
name = "sdfn"
command = """
ethtool -N eth0 rx-flow-hash udp4 sdfn
n=0
for irq in $(ls /sys/class/net/eth0/device/msi_irqs); do
    echo $((n % 8)) >/proc/irq/$irq/smp_affinity_list
    n=$((n + 1))
done
"""

[[load]]
tests = ["TCP_RR", "UDP_RR"]
bytes = [1]
instances = [64]
"#;

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_published_experiment_shows_its_directions_in_counts() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let (lab, agent) = server();
    let before = lab.sh(KNOBS).unwrap();
    let out = lab
        .run_for(&experiment(&lab, SMALL, "--no-map --rounds 1 -d 2s --warm-up 300ms"), PATIENCE)
        .unwrap();
    let output =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    println!("{output}");
    assert_eq!(out.status, 0, "{output}");
    drop(agent);
    assert_eq!(lab.sh(KNOBS).unwrap(), before, "everything is restored");

    println!("{}", lab.sh(&format!("'{PROGRAM}' report /tmp/run")).unwrap());
    let results: Value =
        serde_json::from_str(&lab.sh(&format!("'{PROGRAM}' report /tmp/run -j")).unwrap()).unwrap();
    assert_eq!(results["failed"], serde_json::json!([]), "{results:#}");
    assert!(results["times_invalid"].as_str().unwrap().contains("emulated"), "{results:#}");
    let of = |load: &str, setting: &str, measure: &str| median(&results, load, setting, measure);
    let (tcp, udp) = ("TCP_RR 1 B x 64", "UDP_RR 1 B x 64");
    // with nothing changed one CPU does all softirq work; with affinity it does not
    assert!(of(tcp, "none", "busiest_cpu") > 0.9);
    assert!(of(tcp, "irq-affinity", "busiest_cpu") < 0.5 * of(tcp, "none", "busiest_cpu"));
    // UDP from one host is a single flow, unless ports are hashed or RPS spreads it; its responses
    // leave by all queues
    let packets = |setting: &str| busiest_share(&cell(&results, udp, setting)["cpus"]);
    assert!(packets("irq-affinity") > 0.9, "{results:#}");
    assert!(packets("rps+rfs") < 0.7 && packets("sdfn") < 0.5, "{results:#}");
    // the cost of RPS
    for load in [tcp, udp] {
        assert!(
            of(load, "none", "handed_over") < 0.01 && of(load, "rps+rfs", "handed_over") > 0.1,
            "{load}"
        );
        assert!(of(load, "rps+rfs", "net_rx") > of(load, "none", "net_rx"), "{load}");
    }
    // UDP only: under TCP with all interrupts on one CPU, nearly each response wakes a thread
    // elsewhere, and these IPIs vary by more than RPS adds
    assert!(of(udp, "rps+rfs", "ipis") > of(udp, "none", "ipis"), "{results:#}");
}

/// Runs the whole experiment: five settings, twelve loads. The results are for people to read. The
/// test only requires that all trials have a result.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_published_experiment_in_full() {
    let rounds: u32 = std::env::var("ROUNDS").map_or(6, |rounds| rounds.parse().unwrap());
    let (lab, agent) = server();
    let before = lab.sh(KNOBS).unwrap();
    let published = lab.sh(&format!("'{PROGRAM}' experiment matrix --print")).unwrap();
    let command = experiment(&lab, &published, &format!("--rounds {rounds} -d 3s"));
    let run = lab.spawn(&format!("exec {command} >/tmp/output 2>&1")).unwrap();
    let done = format!("wc -l </tmp/run/records.jsonl; kill -0 {}", run.pid().unwrap());
    while let Ok(lines) = lab.sh(&done) {
        println!("{} records", lines.trim());
        std::thread::sleep(Duration::from_secs(30));
    }
    let status = run.wait(PATIENCE).unwrap().status;
    let output = lab.sh("cat /tmp/output").unwrap();
    println!("{output}");
    assert_eq!(status, 0, "{output}");
    drop(agent);
    assert_eq!(lab.sh(KNOBS).unwrap(), before, "everything is restored");

    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(
        dir.join("run.tar"),
        lab.run("tar -C /tmp -c run").unwrap().ok().unwrap().stdout,
    )
    .unwrap();
    let here = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).current_dir(dir).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}");
    };
    here("tar", &["-xf", "run.tar"]);
    here(PROGRAM, &["report", "run", "-o", "run/report.md"]);
    println!("{}", dir.join("run/report.md").display());
    let results = Command::new(PROGRAM)
        .args(["report", "run", "-j"])
        .current_dir(dir)
        .output()
        .unwrap()
        .stdout;
    let results: Value = serde_json::from_slice(&results).unwrap();
    assert_eq!(results["failed"], serde_json::json!([]), "{results:#}");
}

/// Returns the results of a setting under a load.
fn cell(results: &Value, load: &str, setting: &str) -> Value {
    let find = |list: &Value, key: &str, name: &str| {
        list.as_array().unwrap().iter().find(|it| it[key] == name).cloned().unwrap_or_default()
    };
    find(&find(&results["loads"], "load", load)["settings"], "setting", setting)
}

/// Returns the median of a measure for a setting under a load.
fn median(results: &Value, load: &str, setting: &str, measure: &str) -> f64 {
    let cell = cell(results, load, setting);
    let of =
        cell["measures"].as_array().and_then(|all| all.iter().find(|it| it["measure"] == measure));
    let value = of.and_then(|it| it["median"].as_f64());
    value.unwrap_or_else(|| panic!("no {measure} of {setting} under {load}: {results:#}"))
}

/// Returns the largest share of packets whose protocol ran on one CPU (`/proc/net/softnet_stat`).
fn busiest_share(cpus: &Value) -> f64 {
    let packets: Vec<f64> = cpus
        .as_object()
        .unwrap()
        .values()
        .map(|cpu| cpu["processed_per_s"].as_f64().unwrap())
        .collect();
    packets.iter().copied().fold(0.0, f64::max) / packets.iter().sum::<f64>()
}
