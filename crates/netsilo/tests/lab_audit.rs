//! What the audit finds on a real kernel: LRO on a forwarder, found, mended and put back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy lets only functions marked as tests do so")]

use netsilo_core::diagnose::{Check, FindingId, Severity};
use netsilo_lab::{Kernel, Lab, NicModel, Spec};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
const LRO: &str = "ethtool -k eth0 | sed -n 's/^large-receive-offload: //p'";

fn check(lab: &Lab) -> Check {
    let out = lab.run(&format!("{NETSILO} check -j --interval 1s")).unwrap();
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"))
}

#[test]
fn lro_on_a_forwarder_is_found_mended_and_put_back() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::Newest, NicModel::Vmxnet3)).unwrap();
    let before = check(&lab);
    assert!(before.findings.iter().all(|finding| finding.id != FindingId::LroForwarding), "{before:?}");
    // forwarding switches it off, and ethtool on again
    lab.sh("echo 1 > /proc/sys/net/ipv4/ip_forward").unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "off");
    lab.sh("ethtool -K eth0 lro on").unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "on");
    let check = check(&lab);
    let found = check.findings.iter().find(|finding| finding.id == FindingId::LroForwarding);
    let found = found.unwrap_or_else(|| panic!("not found: {check:?}"));
    assert_eq!((found.subject.as_str(), found.severity), ("eth0", Severity::Critical));
    let applied = lab.run(&format!("{NETSILO} apply --yes --interval 1s --fix lro-forwarding")).unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "off", "{applied:?}");
    let undone = lab.run(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(lab.sh(LRO).unwrap().trim(), "on", "{undone:?}");
}
