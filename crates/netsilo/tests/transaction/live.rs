//! The verbs on the running kernel, in a network namespace that ends with the test.

use std::process::Command;

use netsilo_lab::output_of;
use serde_json::{Value, json};

use super::host::Host;

/// Creates a netdev with two queues. Prints its knobs, applies, prints them, undoes, prints them.
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
    let target = json!({ "knob": knob, "netdev": netdev, "queue": queue });
    json!({ "target": target, "old": old, "new": new, "reason": "test" })
}

/// Applies with the state folder on a file system of 8 KiB, one page for the lock and one for the
/// journal. Keeps a copy of the journal.
fn apply_with_little_space(host: &Host) -> (Option<i32>, String) {
    let script = format!(
        "mount -t tmpfs -o size=8k,mode=700 tmpfs {state}; \
         (exec {apply}); code=$?; cp {state}/journal {kept}; exit $code",
        state = host.state().display(),
        apply = host.words("apply", &["--yes"]),
        kept = host.root().join("journal").display(),
    );
    output_of(&Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap())
}

#[test]
fn a_full_disk_under_the_journal_is_a_failed_write() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes"])).0, Some(0));
    assert_eq!(output_of(&host.run("undo", &[])).0, Some(0));
    let journal = std::fs::read_to_string(host.state().join("journal")).unwrap();
    let begun: usize = journal.split_inclusive('\n').take(2).map(str::len).sum();
    // The plan's record just fits; the first record after it does not.
    let padding = "x".repeat(4096 - 30 - begun);
    host.edit_plan(|plan| {
        plan["changes"][0]["reason"] = format!("rx follows its reader{padding}").into()
    });
    let (code, text) = apply_with_little_space(&host);
    assert_eq!(code, Some(20), "{text}");
    assert!(
        text.contains("cannot append to") && text.contains("No space left on device"),
        "{text}"
    );
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
    std::fs::copy(host.root().join("journal"), host.state().join("journal")).unwrap();
    let (code, text) = output_of(&host.run("undo", &[]));
    assert_eq!(
        (code, host.affinities()),
        (Some(0), ["01\n".to_owned(), "01\n".to_owned()]),
        "{text}"
    );
}

#[test]
fn queues_of_a_real_netdev_change_and_come_back_byte_for_byte() {
    if netsilo_lab::skip().unwrap() {
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
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    assert!(
        messages.contains("v0 rx-0 rps_flow_cnt: 64 -> 1000, which the kernel rounded to 1024"),
        "{messages}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let [before, applied, after] = text.split_terminator("--\n").collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    assert_eq!(after, before);
    for line in [
        "rx-0/rps_cpus 3",
        "rx-1/rps_cpus 0",
        "rx-0/rps_flow_cnt 1024",
        "rx-1/rps_flow_cnt 8",
        "tx-1/xps_cpus 1",
    ] {
        assert!(applied.contains(&format!("/{line}\n")), "{line} in {applied}");
        assert!(!before.contains(&format!("/{line}\n")), "{line} in {before}");
    }
}

/// Replaces a netdev by another of the same name and settings, a second by another that also has
/// the same index, and renames the third.
const REPLACED: &str = r#"
set -e
mount -t sysfs sysfs /sys
ip link add v0 index 70 numrxqueues 2 type veth peer name v1
ip link add v2 index 72 numrxqueues 2 type veth peer name v3
ip link add v5 index 75 numrxqueues 2 type veth peer name v6
"$NETSILO" apply --yes --plan "$DIR/plan.json" --state-dir "$DIR/state" >&2
ip link del v0
ip link add v0 index 80 numrxqueues 2 type veth peer name v1
echo 3 >/sys/class/net/v0/queues/rx-0/rps_cpus
ip link del v5
ip link add v5 index 75 numrxqueues 2 type veth peer name v6
echo 3 >/sys/class/net/v5/queues/rx-0/rps_cpus
ip link set v2 name v4
"$NETSILO" undo --state-dir "$DIR/state" >&2
for netdev in v0 v5 v4; do cat /sys/class/net/$netdev/queues/rx-0/rps_cpus; done
"#;

#[test]
fn undo_leaves_a_netdev_that_replaced_another_and_finds_a_renamed_one() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let rps = |name: &str, ifindex: u32| {
        let netdev = json!({ "name": name, "device_path": null, "ifindex": ifindex });
        let target = json!({ "knob": "rps_cpus", "netdev": netdev, "queue": 0 });
        let (old, new) = (json!({ "cpus": "" }), json!({ "cpus": "0-1" }));
        json!({ "target": target, "old": old, "new": new, "reason": "test" })
    };
    let plan = json!({ "changes": [rps("v0", 70), rps("v2", 72), rps("v5", 75)] });
    std::fs::write(dir.path().join("plan.json"), plan.to_string()).unwrap();
    let mut script = Command::new("unshare");
    script.args(["--net", "--mount", "sh", "-c", REPLACED]);
    script.env("DIR", dir.path()).env("NETSILO", env!("CARGO_BIN_EXE_netsilo"));
    let output = script.output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n3\n0\n", "{messages}");
    let why =
        "v0 is another device now (a virtual one with index 80, not a virtual one with index 70)";
    assert!(messages.contains(why), "{messages}");
    let why = "v5 rx-0 rps_cpus: this netdev is a newer one with the same name and index";
    assert!(messages.contains(why), "{messages}");
}
