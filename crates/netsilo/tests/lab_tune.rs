//! `netsilo tune` on the interrupts of a real NIC driver, in a guest. The winner stays until undo,
//! and a kill restores every affinity.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::time::Duration;

use netsilo_lab::{Kernel, Lab, NicModel, Spec, until};
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
const AFFINITIES: &str = "grep -H . /proc/irq/*/smp_affinity";

/// Puts the interrupts of eth0 on CPU 0, and stores all affinities in a file.
const ALL_ON_CPU0: &str = "for irq in $(grep -lE 'eth0|virtio' /sys/kernel/irq/*/actions | \
                           cut -d/ -f5); do echo 1 >/proc/irq/$irq/smp_affinity; done; \
                           grep -H . /proc/irq/*/smp_affinity >/tmp/before";

/// Returns a search with a load that does `moved` while any affinity differs from the file.
fn tune(candidates: &str, moved: &str) -> String {
    format!(
        "{NETSILO} tune --netdev eth0 --only {candidates} --for 20m --settle 0s --yes --json -- \
         sh -c 'if grep -H . /proc/irq/*/smp_affinity | cmp -s - /tmp/before; then echo 100; \
         else {moved}; fi'"
    )
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_better_placement_of_interrupts_stays_until_undo_and_a_kill_restores_all() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::V6_12, NicModel::Igb)).unwrap();
    lab.sh(ALL_ON_CPU0).unwrap();
    let before = lab.sh(AFFINITIES).unwrap();
    let receive = "receive --mode udp-unconnected --cpus 5 --port 7100 --flows 64 --idle 600";
    let receiver = lab.exact(receive).unwrap();
    let to = format!("--dest {} --port 7100 --flows 64", Lab::guest_address(0));
    let send = format!("send --udp {to} --bytes 400000000 --rate 100");
    let sender = lab.peer(0).unwrap().exact(&send).unwrap();

    // A slow machine needs more than the usual three minutes for the windows.
    let search = lab.run_for(&tune("spread,same-cpu", "echo 120"), Duration::from_secs(480));
    let result: Json = serde_json::from_slice(&search.unwrap().stdout).unwrap();
    let winner = result["result"]["won"]["candidate"].as_u64().unwrap_or(0);
    assert!(winner > 0 && result["transaction"].is_u64(), "{result:#}");
    assert_ne!(lab.sh(AFFINITIES).unwrap(), before, "{result:#}");
    lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(lab.sh(AFFINITIES).unwrap(), before);

    let job = lab.spawn(&format!("exec {}", tune("spread", "sleep 20"))).unwrap();
    let affinities = || lab.sh(AFFINITIES).unwrap();
    until("a candidate is in effect", affinities, |now| *now != before).unwrap();
    lab.sh(&format!("kill -9 {}", job.pid().unwrap())).unwrap();
    until("the guard restores", affinities, |now| *now == before).unwrap();
    let undone = lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(undone, "nothing to undo\n");
    sender.stop().unwrap();
    receiver.stop().unwrap();
}
