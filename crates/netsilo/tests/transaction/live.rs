//! The same on the running kernel, in a network namespace of its own, which ends with the test.

use std::process::Command;

use serde_json::{Value, json};

/// Makes a netdev with two queues, prints its knobs, applies, prints them, undoes, prints them.
const SCRIPT: &str = r#"
set -e
mount -t sysfs sysfs /sys
ip link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1
echo 2 >/sys/class/net/v0/queues/rx-1/rps_cpus
echo 64 >/sys/class/net/v0/queues/rx-0/rps_flow_cnt
knobs() { for f in /sys/class/net/v0/queues/*/*ps_*; do echo "$f $(cat $f)"; done; echo --; }
knobs
"$NETSILO" apply --yes --plan "$DIR/plan.json" --state-dir "$DIR/state" >&2
knobs
"$NETSILO" undo --state-dir "$DIR/state" >&2
knobs
"#;

fn change(knob: &str, queue: u32, old: Value, new: Value) -> Value {
    let netdev = json!({ "name": "v0", "device_path": null });
    json!({ "target": { "knob": knob, "netdev": netdev, "queue": queue }, "old": old, "new": new, "reason": "test" })
}

#[test]
fn queues_of_a_real_netdev_change_and_come_back_byte_for_byte() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("NETSILO_NO_SKIP").is_none(), "network namespaces need root");
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (cpus, count) = (|list: &str| json!({ "cpus": list }), |n: u32| json!({ "count": n }));
    let plan = json!({ "changes": [
        change("rps_cpus", 0, cpus(""), cpus("0-1")),
        change("rps_cpus", 1, cpus("1"), cpus("")),
        change("rps_flow_cnt", 0, count(64), count(1000)),
        change("rps_flow_cnt", 1, count(0), count(7)),
        change("xps_cpus", 1, cpus(""), cpus("0")),
    ] });
    std::fs::write(dir.path().join("plan.json"), plan.to_string()).unwrap();
    let mut script = Command::new("unshare");
    script.args(["--net", "--mount", "sh", "-c", SCRIPT]);
    script.env("DIR", dir.path()).env("NETSILO", env!("CARGO_BIN_EXE_netsilo"));
    let output = script.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("v0 rx-0 rps_flow_cnt: 64 -> 1000, which the kernel made 1024"), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let [before, applied, after] = text.split_terminator("--\n").collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert_eq!(after, before);
    for line in
        ["rx-0/rps_cpus 3", "rx-1/rps_cpus 0", "rx-0/rps_flow_cnt 1024", "rx-1/rps_flow_cnt 8", "tx-1/xps_cpus 1"]
    {
        assert!(applied.contains(&format!("/{line}\n")), "{line} in {applied}");
        assert!(!before.contains(&format!("/{line}\n")), "{line} in {before}");
    }
}
