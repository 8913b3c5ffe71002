//! Faults provoked on a real kernel. Each is found at the right stage, fixed by the plan that its
//! finding offers, and undone.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use netsilo_lab::{Job, Kernel, Lab, NicModel, PeerJob, Signal, Spec, until};
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
const AFFINITIES: &str = "grep -H . /proc/irq/*/smp_affinity";
const EACH_IRQ: &str =
    "for irq in $(grep -lE '^eth0-TxRx' /sys/kernel/irq/*/actions | cut -d/ -f5)";

#[test]
fn provoked_faults_are_found_at_their_stage_and_fixed_and_undone() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::V6_12, NicModel::Igb)).unwrap();
    // Loads the program from the host while the guest is idle, because during the flood this takes
    // many times as long.
    lab.run(&format!("{NETSILO} check --interval 100ms")).unwrap();
    cpus_without_a_tx_queue(&lab);
    // Without this, ports are not hashed and all flows arrive on one queue.
    lab.sh("ethtool -N eth0 rx-flow-hash udp4 sdfn").unwrap();
    let (sender, reader) = flood(&lab);
    all_interrupts_on_one_cpu(&lab);
    a_reader_that_stopped(&lab, &reader);
    sender.stop().unwrap();
    reader.stop().unwrap();
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn steering_in_vain_and_a_listener_that_accepts_nobody_are_found_and_fixed_and_undone() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::V6_12, NicModel::Igb)).unwrap();
    lab.sh("ethtool -N eth0 rx-flow-hash udp4 sdfn").unwrap();
    steering_in_vain_and_limits_that_are_too_small(&lab);
    a_listener_that_accepts_nobody(&lab);
}

/// Sends sixteen flows of datagrams to sixteen sockets, whose readers leave some cores idle.
fn flood(lab: &Lab) -> (PeerJob, Job) {
    let receive =
        "receive --mode udp-unconnected --cpus 6,7 --port 7000 --ports 16 --flows 16 --idle 300";
    let reader = lab.exact(receive).unwrap();
    let dest = Lab::guest_address(0);
    let flows =
        format!("--dest {dest} --port 7000 --ports 16 --flows 16 --bytes 400000000 --size 64");
    (lab.peer(0).unwrap().exact(&format!("send --udp {flows} --rate 4000")).unwrap(), reader)
}

/// Sends bursts of datagrams of one flow.
fn bursts(lab: &Lab) -> PeerJob {
    let dest = Lab::guest_address(0);
    let send = format!(
        "exec 3<>/dev/udp/{dest}/7100; while :; do for i in {{1..500}}; do \
         echo {} >&3; done 2>/dev/null; sleep 0.5; done",
        ".".repeat(64)
    );
    lab.peer(0).unwrap().spawn(&format!("exec bash -c '{send}'")).unwrap()
}

fn findings<'a>(check: &'a Json, id: &'a str) -> impl Iterator<Item = &'a Json> {
    check["findings"].as_array().unwrap().iter().filter(move |finding| finding["id"] == id)
}

/// Runs check until it has this finding about this subject.
fn found(lab: &Lab, id: &str, subject: &str) -> Json {
    let look = || lab.json(&format!("{NETSILO} check --interval 2s -j")).unwrap();
    let is_it = |check: &Json| findings(check, id).any(|finding| finding["subject"] == subject);
    until(&format!("{id} of {subject}"), look, is_it).unwrap()
}

/// Returns how many packets a stage lost in the interval.
fn lost(check: &Json, place: &str) -> u64 {
    let stages = check["ledger"]["stages"].as_array().unwrap();
    stages
        .iter()
        .find(|stage| stage["stage"] == place)
        .map_or(0, |stage| stage["count"].as_u64().unwrap())
}

/// Applies the plan that fixes these findings. Asserts that it changes only knobs of these kinds.
fn fix(lab: &Lab, findings: &[&str], knobs: &[&str]) {
    let requests: Vec<String> = findings.iter().map(|it| format!("--fix '{it}'")).collect();
    let look = || {
        let requests = requests.join(" ");
        lab.json(&format!("{NETSILO} plan {requests} --interval 1s -j | tee /tmp/fix.json"))
            .unwrap()
    };
    let fixes = |plan: &Json| {
        let changes = plan["changes"].as_array().unwrap();
        let kinds: BTreeSet<&str> =
            changes.iter().map(|change| change["target"]["knob"].as_str().unwrap()).collect();
        kinds == knobs.iter().copied().collect()
    };
    until(&format!("{knobs:?} fix {findings:?}"), look, fixes).unwrap();
    lab.sh(&format!("{NETSILO} apply --yes --plan /tmp/fix.json")).unwrap();
}

/// Runs check until it has none of these findings.
fn gone(lab: &Lab, ids: &[&str]) {
    let look = || lab.json(&format!("{NETSILO} check --interval 1s -j")).unwrap();
    let none = |check: &Json| ids.iter().all(|id| findings(check, id).next().is_none());
    until(&format!("{ids:?} are gone"), look, none).unwrap();
}

fn undo(lab: &Lab) {
    lab.sh(&format!("{NETSILO} undo")).unwrap();
}

fn all_interrupts_on_one_cpu(lab: &Lab) {
    lab.sh(&format!("{EACH_IRQ}; do echo 1 >/proc/irq/$irq/smp_affinity; done")).unwrap();
    let before = lab.sh(AFFINITIES).unwrap();
    let check = found(lab, "queues-share-core", "cpu0");
    let why = lab.sh(&format!("{NETSILO} explain cpu0 --interval 2s")).unwrap();
    for step in [
        "eth0 rx-",
        "is requested on cpu 0: somebody wrote this value",
        "NET_RX runs on cpu 0",
        "read by netsilo-lab",
    ] {
        assert!(why.contains(step), "{step:?} is not in\n{why}\n{check:#}");
    }
    fix(lab, &["queues-share-core:cpu0"], &["irq_affinity"]);
    assert_ne!(lab.sh(AFFINITIES).unwrap(), before);
    undo(lab);
    assert_eq!(lab.sh(AFFINITIES).unwrap(), before);
}

fn a_reader_that_stopped(lab: &Lab, reader: &Job) {
    const SETTINGS: &str = "cat /proc/sys/net/core/rmem_default /proc/sys/net/core/rmem_max";
    reader.signal(Signal::STOP).unwrap();
    let check = found(lab, "socket-buffer-overflow", "udp port 7003");
    assert!(lost(&check, "socket") > 0, "{check:#}");
    let finding = findings(&check, "socket-buffer-overflow")
        .find(|it| it["subject"] == "udp port 7003")
        .unwrap();
    assert!(finding["title"].as_str().unwrap().starts_with("netsilo-lab"), "{finding:#}");
    let before = lab.sh(SETTINGS).unwrap();
    fix(lab, &["socket-buffer-overflow:udp/port/7003"], &["sysctl"]);
    let numbers = |text: &str| {
        text.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<u64>>()
    };
    let (old, new) = (numbers(&before), numbers(&lab.sh(SETTINGS).unwrap()));
    // It sets its buffer itself: the default has no effect on it, only the bound has.
    assert!(new[0] == old[0] && new[1] > old[1], "{old:?} to {new:?}");
    undo(lab);
    assert_eq!(lab.sh(SETTINGS).unwrap(), before);
    reader.signal(Signal::CONT).unwrap();
}

/// CPU 5 polls all queues. RPS steers their packets to CPU 5, whose backlog may hold one packet and
/// whose softirqs may poll one. RFS lacks the machine's table. A reader shows which NAPI polls the
/// queue, because igb of 6.12 does not report it.
fn steering_in_vain_and_limits_that_are_too_small(lab: &Lab) {
    const SETTINGS: &str = "cd /proc/sys/net/core; grep . netdev_max_backlog netdev_budget \
        rps_sock_flow_entries /sys/class/net/eth0/queues/rx-*/rps_*";
    const FINDINGS: [&str; 4] =
        ["backlog-overflow", "budget-squeeze", "rps-to-itself", "rfs-half-on"];
    let set = |mask: &str, flows: u32, backlog: u32, budget: u32| {
        let script = format!(
            "for rx in /sys/class/net/eth0/queues/rx-*; do \
             echo {mask} >$rx/rps_cpus; echo {flows} >$rx/rps_flow_cnt; done; \
             cd /proc/sys/net/core; echo {backlog} >netdev_max_backlog; \
             echo {budget} >netdev_budget"
        );
        lab.sh(&script).unwrap();
    };
    lab.sh(&format!("{EACH_IRQ}; do echo 20 >/proc/irq/$irq/smp_affinity; done")).unwrap();
    set("20", 512, 1, 1);
    let reader = lab.exact("receive --mode udp-unconnected --port 7100 --idle 300").unwrap();
    let before = lab.sh(SETTINGS).unwrap();
    let sender = bursts(lab);
    let look = || lab.json(&format!("{NETSILO} check --interval 2s -j")).unwrap();
    let all = |check: &Json| FINDINGS.iter().all(|id| findings(check, id).next().is_some());
    let check: Json = until("each fault is found", look, all).unwrap();
    assert_eq!(check["findings"][0]["id"], "backlog-overflow", "{check:#}");
    assert!(lost(&check, "backlog") > 0, "{check:#}");
    let why = lab.sh(&format!("{NETSILO} explain cpu5 --interval 2s")).unwrap();
    assert!(
        why.contains("backlog (RPS, loopback, veth)") && why.contains("is cpu 5: the flow's hash"),
        "{why}"
    );
    fix(lab, &FINDINGS, &["sysctl", "rps_cpus", "rps_flow_cnt"]);
    // the kernel's defaults, because twice 1 is still less
    let limits = "cd /proc/sys/net/core; cat netdev_max_backlog netdev_budget";
    assert_eq!(lab.sh(limits).unwrap(), "1000\n300\n");
    gone(lab, &FINDINGS);
    undo(lab);
    assert_eq!(lab.sh(SETTINGS).unwrap(), before);
    sender.stop().unwrap();
    reader.stop().unwrap();
    set("0", 0, 1000, 300);
}

/// The listen queue has the maximum length that the kernel allows. Two connections wait (one more
/// than `somaxconn`); others are dropped.
fn a_listener_that_accepts_nobody(lab: &Lab) {
    const SETTING: &str = "cat /proc/sys/net/core/somaxconn";
    lab.sh("echo 1 >/proc/sys/net/core/somaxconn").unwrap();
    let helper = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "guest_helper").unwrap();
    let listener = format!("exec '{}' listener 7200", helper.display());
    let listener = lab.spawn(&listener).unwrap();
    let to = format!("/dev/tcp/{}/7200", Lab::guest_address(0));
    // accepted connections stay open; the other clients try for a moment
    let knock = format!(
        "while :; do timeout 2 bash -c \"exec 3<>{to} && sleep 2\" 2>/dev/null & sleep 0.3; done"
    );
    let clients = lab.peer(0).unwrap().spawn(&format!("exec bash -c '{knock}'")).unwrap();
    let check = found(lab, "listen-overflow", "tcp port 7200");
    assert!(lost(&check, "listen") > 0, "{check:#}");
    let finding =
        findings(&check, "listen-overflow").find(|it| it["subject"] == "tcp port 7200").unwrap();
    let counter =
        |name: &str| finding["evidence"].as_array().unwrap().iter().any(|it| it["what"] == name);
    assert!(counter("limit of the accept queue"), "{finding:#}");
    let stages = check["ledger"]["stages"].as_array().unwrap();
    let lines = stages.iter().find(|stage| stage["stage"] == "listen").unwrap()["lines"]
        .as_array()
        .unwrap();
    let overflows = lines.iter().find(|line| line["counter"] == "TcpExtListenOverflows").unwrap();
    assert!(overflows["count"].as_u64() > Some(0), "{lines:#?}");
    fix(lab, &["listen-overflow:tcp/port/7200"], &["sysctl"]);
    // the kernel's default, because twice 1 is still less
    assert_eq!(lab.sh(SETTING).unwrap().trim(), "4096");
    undo(lab);
    assert_eq!(lab.sh(SETTING).unwrap().trim(), "1");
    clients.stop().unwrap();
    listener.stop().unwrap();
}

/// TCP arrives in bulk while GRO is off. The 10,000 packets per second take most of an emulated
/// guest's time.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn segments_that_nothing_merges_are_found_and_fixed_and_undone() {
    const SETTINGS: &str = "ethtool -k eth0";
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = &Lab::boot(&Spec::new(Kernel::V6_12, NicModel::Igb)).unwrap();
    lab.run(&format!("{NETSILO} check --interval 100ms")).unwrap();
    lab.sh("ethtool -K eth0 gro off").unwrap();
    let before = lab.sh(SETTINGS).unwrap();
    let reader = lab.exact(&receive_tcp(7300)).unwrap();
    let send = send_tcp(Lab::guest_address(0), 7300, "--size 15000 --rate 1000");
    let sender = lab.peer(0).unwrap().exact(&send).unwrap();
    found(lab, "gro-off", "eth0");
    fix(lab, &["gro-off:eth0"], &["offload"]);
    gone(lab, &["gro-off"]);
    undo(lab);
    assert_eq!(lab.sh(SETTINGS).unwrap(), before);
    sender.stop().unwrap();
    reader.stop().unwrap();
}

/// Half of the CPUs have no tx queue while many segments leave. The segments are small and the
/// device makes them, so even an emulated guest sends enough.
fn cpus_without_a_tx_queue(lab: &Lab) {
    const SETTINGS: &str = "grep -H . /sys/class/net/eth0/queues/tx-*/xps_cpus";
    lab.sh("ip route change 10.77.0.0/24 dev eth0 mtu lock 120").unwrap();
    let plant = "cd /sys/class/net/eth0/queues; for n in 0 1 2 3; do \
                 echo $((1 << n)) >tx-$n/xps_cpus; done";
    lab.sh(plant).unwrap();
    let before = lab.sh(SETTINGS).unwrap();
    let reader = lab.peer(0).unwrap().exact(&receive_tcp(7400)).unwrap();
    let send = send_tcp(Lab::peer_address(0), 7400, "--size 20000 --rate 240");
    let sender = lab.exact(&send).unwrap();
    found(lab, "xps-gaps", "eth0");
    fix(lab, &["xps-gaps:eth0"], &["xps_cpus"]);
    gone(lab, &["xps-gaps"]);
    undo(lab);
    assert_eq!(lab.sh(SETTINGS).unwrap(), before);
    sender.stop().unwrap();
    reader.stop().unwrap();
    lab.sh("for tx in /sys/class/net/eth0/queues/tx-*; do echo 0 >$tx/xps_cpus; done").unwrap();
    lab.sh("ip route change 10.77.0.0/24 dev eth0").unwrap();
}

fn receive_tcp(port: u16) -> String {
    format!("receive --mode recv --port {port} --flows 4 --idle 300")
}

fn send_tcp(dest: Ipv4Addr, port: u16, pace: &str) -> String {
    let to = format!("--dest {dest} --port {port}");
    format!("send {to} --flows 4 --bytes 1000000000 {pace}")
}
