//! The audit's readers on an extended fixture, and the diagnosis on every fixture.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use netsilo_decide::judge::findings::check;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::audit::Audit;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::{bundle, snapshot};

fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"))
}

/// The audit of a fixture with these files added.
fn audit_of(name: &str, files: &[(&str, &str)]) -> Audit {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    assert!(
        Command::new("cp")
            .arg("-a")
            .args([&fixtures().join(name), &tree])
            .status()
            .unwrap()
            .success()
    );
    for (path, text) in files {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    snapshot(&Root::at(tree).unwrap()).unwrap().audit.unwrap()
}

const PORT: &str = "sys/devices/pci0000:00/0000:00:02.0";
const NIC: &str = "sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0";

#[test]
fn links_are_read_from_the_device_up_to_the_root_port() {
    let at = |dir: &str, name: &str| format!("{dir}/{name}");
    let files: Vec<(String, &str)> = [(NIC, "4"), (PORT, "8")]
        .into_iter()
        .flat_map(|(dir, width)| {
            [
                (at(dir, "current_link_speed"), "8.0 GT/s PCIe\n"),
                (at(dir, "current_link_width"), width),
                (at(dir, "max_link_speed"), "16.0 GT/s PCIe\n"),
                (at(dir, "max_link_width"), "16\n"),
            ]
        })
        .collect();
    let files: Vec<(&str, &str)> =
        files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let audit = audit_of("synthetic-mlx5_core", &files);
    let links = &audit.netdevs["eth0"].pcie;
    assert_eq!(
        links.iter().map(|link| link.address.as_str()).collect::<Vec<_>>(),
        ["0000:08:00.0", "0000:00:02.0"]
    );
    assert_eq!(links[0].mbps(), Some(4 * 7876));
    assert_eq!(links[1].current_width, Some(8));
    assert!(!audit.netdevs["eth0"].virtual_function);
}

#[test]
fn limits_power_and_forwarding_are_read_and_missing_ones_are_none() {
    let dev = format!("{NIC}/net/eth0");
    let cpu = "sys/devices/system/cpu/cpu0";
    let files = [
        (format!("{dev}/queues/tx-0/byte_queue_limits/limit"), "30280\n"),
        (format!("{dev}/queues/tx-0/byte_queue_limits/inflight"), "0\n"),
        (format!("{dev}/queues/tx-0/tx_timeout"), "3\n"),
        (format!("{dev}/brport/state"), "3\n"),
        ("proc/sys/net/ipv4/conf/eth0/forwarding".to_owned(), "1\n"),
        (format!("{cpu}/cpufreq/scaling_governor"), "powersave\n"),
        (format!("{cpu}/cpufreq/scaling_cur_freq"), "1200000\n"),
        (format!("{cpu}/cpuidle/state1/name"), "C6\n"),
        (format!("{cpu}/cpuidle/state1/latency"), "133\n"),
        (format!("{cpu}/cpuidle/state1/disable"), "0\n"),
        (format!("{cpu}/cpuidle/state1/usage"), "77\n"),
        (format!("{cpu}/cpuidle/state1/time"), "900\n"),
        ("sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes".to_owned(), "123456\n"),
    ];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let audit = audit_of("synthetic-mlx5_core", &files);
    let netdev = &audit.netdevs["eth0"];
    let limits = &netdev.tx_queues[&0];
    assert_eq!(
        (limits.limit_bytes, limits.limit_max_bytes, limits.tx_timeouts),
        (Some(30280), None, Some(3))
    );
    assert_eq!(
        (netdev.bridge_port, netdev.ipv4_forwarding, netdev.ipv6_forwarding),
        (true, Some(true), None)
    );
    let power = &audit.cpus[&CpuId(0)];
    assert_eq!(
        (power.governor.as_deref(), power.current_khz, power.max_khz),
        (Some("powersave"), Some(1_200_000), None)
    );
    assert_eq!((power.idle_states[0].name.as_str(), power.idle_states[0].usage), ("C6", 77));
    assert!(!power.idle_states[0].disabled);
    assert_eq!(audit.machine.memory_bytes["mon_L3_00"], 123_456);
    assert_eq!(audit.qdiscs.reason(), Some("not captured: the bundle is from an older netsilo"));
}

/// An observation of two equal samples ten seconds apart.
fn twice(tree: &Path) -> Observation {
    let before = snapshot(&Root::at(tree).unwrap()).unwrap();
    let mut after = before.clone();
    after.at += Duration::from_secs(10);
    Observation { before, after, ..Observation::default() }
}

#[test]
fn every_captured_host_can_be_diagnosed() {
    let mut seen = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        if path.join("sys").is_dir() {
            check(&Analysis::new(&twice(&path), &Costs::default()));
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} fixtures");
    let observation = bundle::open(fixtures().join("igb-6.12.tar.zst")).unwrap();
    check(&Analysis::new(&observation, &Costs::default()));
}

#[test]
fn hostile_names_in_a_bundle_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let mut capture = bundle::Capture::start().unwrap();
    let fixture = fixtures().join("virtio-6.1");
    for _ in 0..2 {
        snapshot(&capture.sample(&Root::at(&fixture).unwrap()).unwrap()).unwrap();
    }
    let hostile = r#"{
        "source": "bpf", "elapsed": { "secs": 1, "nanos": 0 }, "windowed": false, "polls": [],
        "cpu_time": {}, "hooks": [], "lost_events": 0,
        "consumption": [{
            "napi": 8196, "rx_queue": 3, "resolved": "direct", "poll_cpu": 1, "protocol_cpu": 1,
            "consumer_cpu": 1, "protocol": "tcp", "bytes": 9000000, "events": 10,
            "approximate": false, "consumer": {
                "tgid": 9, "comm": "x\u001b[2J\nok: fine", "cgroup": "/a\u009b31m\r", "netns": 0
            }
        }]
    }"#;
    let attribution = serde_json::from_str(hostile).unwrap();
    let path = dir.path().join("hostile.tar.zst");
    capture.window(&attribution);
    capture.write(&path, "6.1", bundle::Addresses::Keep).unwrap();
    let consumer = bundle::open(&path).unwrap().attribution.consumption[0].consumer.clone();
    assert_eq!(consumer.comm, "x\\u{1b}[2J\\nok: fine");
    assert_eq!(consumer.cgroup.as_deref(), Some("/a\\u{9b}31m\\r"));
}
