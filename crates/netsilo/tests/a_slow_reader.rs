//! What `check` says of slow readers on the running kernel, and whether its remedies end the loss.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests too")]

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// The loads would slow each other down.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a script in a network namespace of its own. The script may write `first` and `second`, the
/// findings before and after the remedy. Returns both.
fn observed(script: &str) -> Option<[Value; 2]> {
    if netsilo_lab::skip().unwrap() {
        return None;
    }
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let helper = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "reader_helper").unwrap();
    let script = format!("{COMMON}\n{script}");
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", &script])
        .env("DIR", dir.path())
        .env("HELPER", helper)
        .env("NETSILO", env!("CARGO_BIN_EXE_netsilo"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| {
        serde_json::from_slice(&std::fs::read(dir.path().join(name)).unwrap()).unwrap()
    };
    Some([read("first"), read("second")])
}

const COMMON: &str = r#"
set -e
ip link set lo up
check() {
    "$NETSILO" check -i 2s --json >"$DIR/$1" || [ $? = 11 ]
    for pid in $running; do readlink /proc/$pid/exe >/dev/null; done
}
# The first number after these words in the first findings.
offered() { sed -n "s/.*$1\([0-9][0-9]*\).*/\1/p" "$DIR/first" | head -n 1; }
ends() { kill $running 2>/dev/null || true; wait; [ -z "$group" ] || rmdir "$group"; }
trap ends EXIT
"#;

fn finding<'a>(check: &'a Value, id: &str) -> Option<&'a Value> {
    check["findings"].as_array().unwrap().iter().find(|it| it["id"] == id)
}

fn title<'a>(check: &'a Value, id: &str) -> &'a str {
    finding(check, id).unwrap_or_else(|| panic!("{check:#}"))["title"].as_str().unwrap()
}

/// Packets that were lost at full buffers.
fn lost(check: &Value) -> f64 {
    let stages = check["ledger"]["stages"].as_array().unwrap();
    let socket = stages.iter().find(|it| it["stage"] == "socket");
    socket.map_or(0.0, |it| it["count"].as_f64().unwrap())
}

#[test]
fn a_throttled_reader_is_named_and_the_offered_quota_ends_the_loss() {
    let Some([first, second]) = observed(
        r#"
for dir in /sys/fs/cgroup/cpu /sys/fs/cgroup; do [ ! -e $dir/cgroup.procs ] || break; done
[ -e $dir/cpu.cfs_quota_us ] || grep -q cpu $dir/cgroup.subtree_control || echo +cpu >$dir/cgroup.subtree_control
group=$dir/netsilo-slow-reader-$$
mkdir $group
quota() {
    if [ -e $group/cpu.max ]; then echo "$1 100000" >$group/cpu.max; else echo $1 >$group/cpu.cfs_quota_us; fi
}
quota 5000
"$HELPER" sink 7300 200000 --work-us 50 & running=$!
echo $! >$group/cgroup.procs
"$HELPER" send 7300 4000 & running="$running $!"
check first
quota $(offered 'cpu.max ..')
sleep 1
check second
"#,
    ) else {
        return;
    };
    let title = title(&first, "socket-buffer-overflow");
    assert!(title.contains("is throttled by the CPU quota of cgroup"), "{title}");
    let (before, after) = (lost(&first), lost(&second));
    assert!(before > 1000.0 && after < before / 50.0, "{before} {after}: {second:#}");
}

#[test]
fn a_reader_by_a_timer_is_named_and_the_offered_buffer_ends_the_loss() {
    let Some([first, second]) = observed(
        r#"
"$HELPER" sink 7301 20000 --tick-ms 50 & reader=$!
"$HELPER" send 7301 4000 & running="$! $reader"
# Reads are sampled. Where too few were, check says less: that the program set a small buffer.
for window in 1 2 3 4; do
    check first
    ! grep -q 'reads once in' "$DIR/first" || break
done
kill $reader
running=${running% *}
"$HELPER" sink 7301 $(offered 'request ') --tick-ms 50 & running="$running $!"
sleep 1
check second
"#,
    ) else {
        return;
    };
    let title = title(&first, "socket-buffer-overflow");
    assert!(title.contains("reads once in"), "{title}");
    let (before, after) = (lost(&first), lost(&second));
    assert!(before > 1000.0 && after < before / 50.0, "{before} {after}: {second:#}");
}

#[test]
fn a_reader_that_waits_for_a_cpu_is_told_from_one_that_reads_all_the_time() {
    let Some([first, second]) = observed(
        r#"
taskset -c 0 "$HELPER" sink 7303 200000 --work-us 150 & running=$!
taskset -c 1 "$HELPER" send 7303 4000 & running="$running $!"
for neighbour in 1 2 3; do
    taskset -c 0 sh -c 'while :; do :; done' & running="$running $!"
done
check first
set -- $running
kill $1 $3 $4 $5
running=$2
taskset -c 0 "$HELPER" sink 7303 200000 --work-us 1000 & running="$running $!"
sleep 1
check second
"#,
    ) else {
        return;
    };
    let (first, second) =
        (title(&first, "socket-buffer-overflow"), title(&second, "socket-buffer-overflow"));
    assert!(first.contains("waits for a CPU"), "{first}");
    assert!(second.contains("reads all the time"), "{second}");
}

#[test]
fn half_open_connections_are_named_and_the_fix_ends_the_loss() {
    let Some([first, second]) = observed(
        r#"
echo 0 >/proc/sys/net/ipv4/tcp_syncookies
echo 128 >/proc/sys/net/ipv4/tcp_max_syn_backlog
nft 'add table inet t; add chain inet t c { type filter hook output priority 0; };
    add rule inet t c tcp flags & (syn|ack) == syn|ack drop'
"$HELPER" half-open 7302 512 2000 & running=$!
check first
"$NETSILO" apply --yes -i 2s --fix listen-overflow --state-dir "$DIR/state" >&2
sleep 1
check second
"#,
    ) else {
        return;
    };
    let of_first = title(&first, "listen-overflow");
    assert!(of_first.contains("half-open connections fill the SYN queue"), "{of_first}");
    let of_second = title(&second, "listen-overflow");
    assert!(of_second.contains("requests were answered with cookies"), "{of_second}");
}
