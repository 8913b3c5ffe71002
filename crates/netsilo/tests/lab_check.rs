//! Faults provoked on a real kernel: each is found at the right stage, fixed by the plan that its
//! finding offers, and undone.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

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
    // Loads the program from the host while the guest is idle: during the flood this takes many
    // times as long.
    lab.run(&format!("{NETSILO} check --interval 100ms")).unwrap();
    // Without this, ports are not hashed and all flows arrive on one queue.
    lab.sh("ethtool -N eth0 rx-flow-hash udp4 sdfn").unwrap();
    let (sender, reader) = flood(&lab);
    all_interrupts_on_one_cpu(&lab);
    a_reader_that_stopped(&lab, &reader);
    sender.stop().unwrap();
    reader.stop().unwrap();
    a_backlog_that_is_too_short(&lab);
    a_listener_that_accepts_nobody(&lab);
}

/// Sends sixteen flows of datagrams to as many sockets, whose readers leave cores idle.
fn flood(lab: &Lab) -> (PeerJob, Job) {
    let consume =
        "consume --mode udp-unconnected --cpus 6,7 --port 7000 --ports 16 --flows 16 --idle 300";
    let reader = lab.traffic(consume).unwrap();
    let dest = Lab::guest_address(0);
    let flows =
        format!("--dest {dest} --port 7000 --ports 16 --flows 16 --bytes 400000000 --size 64");
    (
        lab.peer(0).unwrap().traffic(&format!("produce --proto udp {flows} --rate 2500")).unwrap(),
        reader,
    )
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

/// Runs check until it has this finding of this subject.
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
        .find(|stage| stage["place"] == place)
        .map_or(0, |stage| stage["count"].as_u64().unwrap())
}

/// Applies the plan that fixes this finding; asserts that it changes only knobs of this kind.
fn fix(lab: &Lab, finding: &str, knob: &str) {
    let look = || {
        lab.json(&format!("{NETSILO} plan --fix '{finding}' --interval 2s -j | tee /tmp/fix.json"))
            .unwrap()
    };
    let fixes = |plan: &Json| {
        let changes = plan["changes"].as_array().unwrap();
        !changes.is_empty() && changes.iter().all(|change| change["target"]["knob"] == knob)
    };
    until(&format!("{knob} fixes {finding}"), look, fixes).unwrap();
    lab.sh(&format!("{NETSILO} apply --yes --plan /tmp/fix.json")).unwrap();
}

fn undo(lab: &Lab) {
    lab.sh(&format!("{NETSILO} undo")).unwrap();
}

fn all_interrupts_on_one_cpu(lab: &Lab) {
    lab.sh(&format!("{EACH_IRQ}; do echo 1 >/proc/irq/$irq/smp_affinity; done")).unwrap();
    let before = lab.sh(AFFINITIES).unwrap();
    let check = found(lab, "queues-share-core", "cpu0");
    let why = lab.sh(&format!("{NETSILO} why cpu0 --interval 2s")).unwrap();
    for step in [
        "eth0 rx-",
        "is requested on cpu 0: somebody wrote this value",
        "NET_RX runs on cpu 0",
        "read by c-udp-unconnec",
    ] {
        assert!(why.contains(step), "{step:?} is not in\n{why}\n{check:#}");
    }
    fix(lab, "queues-share-core:cpu0", "irq_affinity");
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
    assert!(finding["title"].as_str().unwrap().starts_with("c-udp-unconnec"), "{finding:#}");
    let before = lab.sh(SETTINGS).unwrap();
    fix(lab, "socket-buffer-overflow:udp/port/7003", "sysctl");
    let numbers = |text: &str| {
        text.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<u64>>()
    };
    let (old, new) = (numbers(&before), numbers(&lab.sh(SETTINGS).unwrap()));
    assert!(new[0] == old[0] * 2 && new[1] >= new[0], "{old:?} to {new:?}");
    undo(lab);
    assert_eq!(lab.sh(SETTINGS).unwrap(), before);
    reader.signal(Signal::CONT).unwrap();
}

/// Steers by RPS to one CPU, whose backlog may hold one packet.
fn a_backlog_that_is_too_short(lab: &Lab) {
    let steer = |mask, length| {
        let script = "for rx in /sys/class/net/eth0/queues/rx-*; do echo MASK >$rx/rps_cpus; done; \
            echo LENGTH >/proc/sys/net/core/netdev_max_backlog";
        lab.sh(&script.replace("MASK", mask).replace("LENGTH", length)).unwrap();
    };
    steer("20", "1");
    let sender = bursts(lab);
    let check = found(lab, "backlog-overflow", "cpu5");
    assert!(lost(&check, "backlog") > 0, "{check:#}");
    let why = lab.sh(&format!("{NETSILO} why cpu5 --interval 2s")).unwrap();
    assert!(
        why.contains("backlog (RPS, loopback, veth)") && why.contains("is cpu 5: the flow's hash"),
        "{why}"
    );
    sender.stop().unwrap();
    steer("0", "1000");
}

/// The listen queue has the length that the kernel allows: two connections wait (one more than
/// `somaxconn`), others are dropped.
fn a_listener_that_accepts_nobody(lab: &Lab) {
    const SETTING: &str = "cat /proc/sys/net/core/somaxconn";
    lab.sh("echo 1 >/proc/sys/net/core/somaxconn").unwrap();
    let helper = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "guest_helper").unwrap();
    let listener = format!("exec '{}' listener 7200", helper.display());
    let listener = lab.spawn(&listener).unwrap();
    let to = format!("/dev/tcp/{}/7200", Lab::guest_address(0));
    // accepted connections stay open; each other client tries for a moment
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
    let lines = stages.iter().find(|stage| stage["place"] == "listen").unwrap()["lines"]
        .as_array()
        .unwrap();
    let overflows = lines.iter().find(|line| line["counter"] == "TcpExtListenOverflows").unwrap();
    assert!(overflows["count"].as_u64() > Some(0), "{lines:#?}");
    fix(lab, "listen-overflow:tcp/port/7200", "sysctl");
    // the kernel's default, as twice 1 is still less
    assert_eq!(lab.sh(SETTING).unwrap().trim(), "4096");
    undo(lab);
    assert_eq!(lab.sh(SETTING).unwrap().trim(), "1");
    clients.stop().unwrap();
    listener.stop().unwrap();
}
