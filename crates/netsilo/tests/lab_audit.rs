//! Tests on vmxnet3 on a real kernel: LRO on a forwarding machine and a ring that bursts overflow
//! are found, fixed and restored, and packets that it sent are no drops.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::net::Ipv4Addr;

use netsilo_decide::judge::dropped::DropRow;
use netsilo_decide::judge::findings::{Check, Finding, FindingId, Severity};
use netsilo_decide::plan::Plan;
use netsilo_lab::{Kernel, Lab, NicModel, Spec, until};
use netsilo_model::derive::drop_class::DropClass;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
const LRO: &str = "ethtool -k eth0 | sed -n 's/^large-receive-offload: //p'";
const RING: &str = "ethtool -g eth0 | sed -n 's/^RX:\\t*//p' | tail -n 1";
/// Number of packets for which there was no descriptor, over all queues.
const LOST: &str = "ethtool -S eth0 | awk -F: '/pkts rx OOB/ { all += $2 } END { print all }'";
/// Number of packets in a burst: more than a ring of 32 holds, fewer than a ring of 64 holds. The
/// emulator passes up to 50 to the NIC before the guest may take any.
const BURST: usize = 48;
/// Number of bursts that are counted.
const BURSTS: u64 = 40;

#[test]
fn on_vmxnet3_lro_of_a_forwarder_and_a_short_ring_are_found_fixed_and_restored() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::Newest, NicModel::Vmxnet3)).unwrap();
    what_it_sent_is_no_loss(&lab);
    a_ring_that_bursts_overflow(&lab);
    lro_of_a_router(&lab);
    lro_of_a_port_of_a_bridge(&lab);
}

fn check(lab: &Lab, interval: &str) -> Check {
    lab.json(&format!("{NETSILO} check -j --interval {interval}")).unwrap()
}

fn of(check: &Check, id: FindingId) -> Option<&Finding> {
    check.findings.iter().find(|finding| finding.id == id)
}

/// vmxnet3 frees what it has sent with `dev_kfree_skb_any`, as if it was dropped.
fn what_it_sent_is_no_loss(lab: &Lab) {
    let sender = lab.spawn(&sender(Lab::peer_address(0), u64::MAX)).unwrap();
    let check = check(lab, "5s");
    sender.stop().unwrap();
    let all = check.ledger.dropped.unwrap();
    let of_driver = |row: &&DropRow| row.function.starts_with("vmxnet3_");
    let rows: Vec<&DropRow> = all.iter().filter(of_driver).collect();
    let freed: u64 = rows.iter().map(|row| row.packets).sum();
    println!("{freed} packets sent and freed as dropped");
    assert!(freed > 100, "{all:#?}");
    assert!(rows.iter().all(|row| row.class == DropClass::NoLoss), "{rows:#?}");
}

fn a_ring_that_bursts_overflow(lab: &Lab) {
    lab.sh("ethtool -G eth0 rx 32").unwrap();
    assert_eq!(lab.sh(RING).unwrap().trim(), "32");
    let short = lost(lab);
    assert!(short >= BURSTS, "{BURSTS} bursts of {BURST} lost only {short} to a ring of 32");

    let sender = lab.peer(0).unwrap().spawn(&sender(Lab::guest_address(0), u64::MAX)).unwrap();
    let found = until(
        "packets without room",
        || check(lab, "2s"),
        |it| of(it, FindingId::NicDrops).is_some(),
    )
    .unwrap();
    let finding = of(&found, FindingId::NicDrops).unwrap();
    let counted = finding.evidence.iter().any(|it| it.quantity.contains("pkts rx OOB"));
    assert!(
        finding.subject.to_string() == "eth0" && finding.severity == Severity::Critical && counted,
        "{finding:#?}"
    );
    assert!(of(&found, FindingId::LroForwarding).is_none(), "nothing is forwarded: {found:#?}");
    let plan = || {
        lab.json(&format!("{NETSILO} plan --fix nic-drops --interval 2s -j | tee /tmp/fix.json"))
            .unwrap()
    };
    until("a plan for the ring", plan, |plan: &Plan| plan.changes.len() == 1).unwrap();
    lab.sh(&format!("{NETSILO} apply --yes --plan /tmp/fix.json")).unwrap();
    sender.stop().unwrap();
    assert_eq!(lab.sh(RING).unwrap().trim(), "64");
    let longer = lost(lab);
    println!(
        "{BURSTS} bursts of {BURST} packets: {short} lost to a ring of 32, {longer} to one of 64"
    );
    assert!(longer * 2 < short, "{longer} of {short}");
    lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(lab.sh(RING).unwrap().trim(), "32");
}

/// Sends the counted bursts and returns how many packets were lost.
fn lost(lab: &Lab) -> u64 {
    let count = || lab.sh(LOST).unwrap().trim().parse::<u64>().unwrap();
    let peer = lab.peer(0).unwrap();
    // nobody listens on that port, and the guest refuses the connection
    let knock = format!("timeout 2 bash -c '</dev/tcp/{}/1' 2>&1; true", Lab::guest_address(0));
    let answer = || {
        until("the guest answers", || peer.sh(&knock).unwrap(), |text| text.contains("refused"))
            .unwrap()
    };
    // changing the ring restarts the NIC
    answer();
    let before = count();
    peer.sh(&sender(Lab::guest_address(0), BURSTS)).unwrap();
    answer();
    count() - before
}

/// The command that sends this many bursts.
fn sender(target: Ipv4Addr, bursts: u64) -> String {
    let helper = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "guest_helper").unwrap();
    format!("exec '{}' bursts {target} {BURST} {bursts}", helper.display())
}

fn lro_of_a_router(lab: &Lab) {
    // forwarding switches LRO off; ethtool can switch it on again
    lab.sh("echo 1 > /proc/sys/net/ipv4/ip_forward").unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "off");
    lab.sh("ethtool -K eth0 lro on").unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "on");
    let check = check(lab, "1s");
    let found =
        of(&check, FindingId::LroForwarding).unwrap_or_else(|| panic!("not found: {check:?}"));
    assert_eq!((found.subject.to_string().as_str(), found.severity), ("eth0", Severity::Critical));
    lab.sh(&format!("{NETSILO} apply --yes --interval 1s --fix lro-forwarding")).unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "off");
    lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "on");
    lab.sh("echo 0 > /proc/sys/net/ipv4/ip_forward").unwrap();
}

/// On a bridge port there is nothing to find: a bridge has no LRO, and the kernel keeps off what an
/// upper device lacks (`netdev_sync_upper_features`).
fn lro_of_a_port_of_a_bridge(lab: &Lab) {
    lab.sh("modprobe bridge; ip link add br0 type bridge; ip link set eth0 master br0").unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "off");
    let refused = lab.run("ethtool -K eth0 lro on").unwrap();
    assert_eq!(
        (refused.status, lab.sh(LRO).unwrap().trim()),
        (1, "off [requested on]"),
        "{refused:?}"
    );
}
