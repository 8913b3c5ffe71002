//! RSS on real kernels. Every flow arrives on its predicted queue, with any table and fields. UDP
//! and tunnels on a single queue are found, and fixed if the NIC allows it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so, and figures are shown"
)]

use std::collections::BTreeSet;

use netsilo_lab::{Job, Kernel, Lab, Nic, NicModel, PeerJob, Spec, until};
use serde_json::Value;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
/// Datagrams per second on 64 flows: as many as emulated CPUs can process while netsilo runs, even
/// on a busy machine.
const RATE: u32 = 250;
/// Packets per second of a tunnel sender. A finding needs a fifth of the packets that the NIC
/// receives, and 200 packets.
const TUNNEL_RATE: u32 = 150;
/// An interval in which `rss-table-skew` gets the thousand packets that it needs.
const LONG: &str = "--interval 6s";

/// Microsoft's example key.
const KEY: &str = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:\
                   77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa";
/// Numbers of IP protocols that arrive as a single flow.
const GRE: u32 = 47;
const IPIP: u32 = 4;
const ESP: u32 = 50;

#[test]
#[ignore = "too slow for make test: make test-long"]
fn flows_arrive_as_predicted_and_udp_and_tunnels_on_one_queue_are_found_and_fixed() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let nics = [NicModel::Igb, NicModel::Vmxnet3].map(Nic::from);
    // check samples each CPU 499 times a second; with four CPUs, a busy machine has time for that
    // and for traffic
    let lab =
        Lab::boot(&Spec { kernel: Kernel::V6_12, nics: nics.to_vec(), cpus: 4, ..Spec::default() })
            .unwrap();
    let settings = "ethtool -x eth0; ethtool -n eth0 rx-flow-hash udp4";
    let before = lab.sh(settings).unwrap();
    a_key_that_the_driver_cannot_set_is_refused(&lab);
    let udp = udp(&lab, 5300, 64, RATE);
    udp_and_tunnels_on_one_queue_are_found(&lab);
    a_bundle_has_queues_with_addresses_and_without(&lab);
    udp_is_fixed(&lab);
    flows_follow_every_table(&lab);
    let left = netsilo_check(&lab, LONG);
    assert!(
        !has(&of_id(&left, "udp-one-queue"), "") && !has(&of_id(&left, "rss-table-skew"), ""),
        "{left:#}"
    );
    drop(udp);
    netsilo(&lab, "undo").unwrap();
    let after = lab.sh(settings).unwrap();
    // ethtool set the last table by hand; undo leaves that table and restores the fields
    assert_eq!(after.split_once("UDP").unwrap().1, before.split_once("UDP").unwrap().1);
}

/// virtio_net of 6.1 shows a key that the device does not have. Setting its queues turns RSS off in
/// the device until the next key or table.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn flows_follow_a_key_that_the_nic_accepted_and_expose_one_that_it_lacks() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::V6_1, NicModel::VirtioRss)).unwrap();
    let udp = udp(&lab, 5300, 64, RATE);
    let shown = all_of_ours(&lab, "the driver's key", |_| true);
    let fit = &shown["fit"];
    assert!(
        fit["as_predicted"].as_u64().unwrap() < 48 && fit["flows"].as_u64().unwrap() >= 64,
        "{shown:#}"
    );
    let place = &rss_where(&lab, &flows(&shown), "");
    assert!(
        place["predicted"].is_null() && place["refused"].as_str().unwrap().contains("arrived"),
        "{place:#}"
    );

    let driver_key = key(&lab);
    lab.sh(&key_plan(&lab, "eth0", &driver_key, KEY)).unwrap();
    netsilo(&lab, "apply --yes --plan /tmp/key.json").unwrap();
    assert_eq!(key(&lab), KEY);
    predicted(&lab, "another key", |_| true);
    lab.sh("ethtool -X eth0 weight 1 0 0 3").unwrap();
    predicted(&lab, "another key, weight 1 0 0 3", |flows| queues(flows).is_subset(&[0, 3].into()));
    netsilo(&lab, "undo").unwrap();
    assert_eq!(key(&lab), driver_key);
    predicted(&lab, "the driver's key again", |_| true);
    drop(udp);
}

fn key(lab: &Lab) -> String {
    lab.sh("ethtool -x eth0 | grep -A1 'hash key' | tail -n 1").unwrap().trim().to_owned()
}

/// Returns the command that writes a plan to replace one key by another.
fn key_plan(lab: &Lab, netdev: &str, old: &str, new: &str) -> String {
    let path =
        lab.sh(&format!("readlink -f /sys/class/net/{netdev}/device | sed 's,^/sys,,'")).unwrap();
    let path = path.trim();
    let target =
        serde_json::json!({ "knob": "rss_key", "netdev": { "name": netdev, "device_path": path } });
    let change = serde_json::json!({
        "target": target, "old": { "key": old }, "new": { "key": new }, "reason": "test",
    });
    format!("echo '{}' >/tmp/key.json", serde_json::json!({ "changes": [change] }))
}

/// igb (before 2026) and vmxnet3 have a key but neither show nor accept one.
fn a_key_that_the_driver_cannot_set_is_refused(lab: &Lab) {
    for netdev in ["eth0", "eth1"] {
        lab.sh(&key_plan(lab, netdev, KEY, &KEY.replace("6d", "6c"))).unwrap();
        let applied = lab.run(&format!("{NETSILO} apply --yes --plan /tmp/key.json")).unwrap();
        let errors = String::from_utf8_lossy(&applied.stderr);
        assert_eq!(applied.status, 1, "{applied:?}");
        let why = format!("{netdev} rss key: cannot read: Operation not supported");
        assert!(errors.contains(&why) && errors.contains("nothing was written"), "{applied:?}");
    }
}

/// Returns the output of `rss where` for eth0 and the first of our flows.
fn rss_where(lab: &Lab, flows: &[Value], more: &str) -> Value {
    let source =
        flows.iter().find(|flow| is_ours(flow)).unwrap()["ends"]["source"].as_str().unwrap();
    let flow = format!("{source}-{}:5300/udp", Lab::guest_address(0));
    let command = format!("{NETSILO} rss where {flow} --netdev eth0 -j {more}");
    lab.json::<Value>(&command).unwrap()["netdevs"][0].take()
}

fn queue_0_of_ours(flows: &[Value]) -> usize {
    flows.iter().filter(|flow| is_ours(flow) && flow["queue"] == 0).count()
}

/// Sender and receiver. They run until dropped.
type Traffic = (PeerJob, Job);

/// Starts UDP traffic from one peer, from `flows` ports to one port.
fn udp(lab: &Lab, port: u16, flows: u16, rate: u32) -> Traffic {
    let receiver = lab
        .exact(&format!("receive --mode udp-unconnected --port {port} --flows {flows} --idle 600"))
        .unwrap();
    let to = format!("--dest {} --port {port} --flows {flows}", Lab::guest_address(0));
    let send = format!("send --udp {to} --size 200 --bytes 900000000 --rate {rate}");
    (lab.peer(0).unwrap().exact(&send).unwrap(), receiver)
}

fn netsilo(lab: &Lab, arguments: &str) -> anyhow::Result<String> {
    lab.sh(&format!("{NETSILO} {arguments}"))
}

/// Returns the output of `rss show` for eth0 now.
fn shown(lab: &Lab) -> Value {
    rss_show(lab, "--interval 1s")
}

fn rss_show(lab: &Lab, from: &str) -> Value {
    let command = format!("{NETSILO} rss show --netdev eth0 -j {from}");
    lab.json::<Value>(&command).unwrap()["netdevs"][0].take()
}

fn flows(shown: &Value) -> Vec<Value> {
    shown["flows"].as_array().unwrap().clone()
}

/// Whether a flow is one of the 64 flows to port 5300.
fn is_ours(flow: &Value) -> bool {
    flow["ends"]["target"].as_str().is_some_and(|target| target.ends_with(":5300"))
}

fn queues(flows: &[Value]) -> BTreeSet<u64> {
    flows.iter().filter(|flow| is_ours(flow)).map(|flow| flow["queue"].as_u64().unwrap()).collect()
}

/// Returns the output of `rss show` once all of our flows are seen and `settled`.
fn all_of_ours(lab: &Lab, when: &str, settled: impl Fn(&[Value]) -> bool) -> Value {
    let settled = |shown: &Value| are_all(&flows(shown)) && settled(&flows(shown));
    until(when, || shown(lab), settled).unwrap()
}

fn are_all(flows: &[Value]) -> bool {
    flows.iter().filter(|flow| is_ours(flow)).count() >= 64
}

/// Waits until all of our flows are seen and `settled`. Asserts that each predicted flow arrived on
/// its predicted queue.
fn predicted(lab: &Lab, when: &str, settled: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    as_predicted(when, &all_of_ours(lab, when, settled))
}

fn as_predicted(when: &str, shown: &Value) -> Vec<Value> {
    let flows = flows(shown);
    for flow in &flows {
        let predicted = &flow["predicted"];
        assert!(!is_ours(flow) || predicted.is_object(), "{when}: not predicted: {flow}");
        if predicted.is_object() {
            assert_eq!(predicted["queue"], flow["queue"], "{when}: {flow}");
        }
    }
    let fit = &shown["fit"];
    let on = queues(&flows);
    println!(
        "{when}: {} of {} flows as predicted, on queues {on:?}",
        fit["as_predicted"], fit["flows"]
    );
    flows
}

fn of_id(check: &Value, id: &str) -> Vec<Value> {
    check["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["id"] == id)
        .cloned()
        .collect()
}

/// Whether the title of one of these findings begins with this text.
fn has(findings: &[Value], title: &str) -> bool {
    findings.iter().any(|finding| finding["title"].as_str().unwrap().starts_with(title))
}

/// Runs check and ignores its exit code, because the code depends on other findings too.
fn netsilo_check(lab: &Lab, interval: &str) -> Value {
    lab.json(&format!("{NETSILO} check -j {interval}")).unwrap()
}

fn udp_and_tunnels_on_one_queue_are_found(lab: &Lab) {
    let vxlan = udp(lab, 4789, 8, TUNNEL_RATE);
    let helper = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "guest_helper").unwrap();
    let send = |nic: u8, protocols: &[u32]| {
        let (helper, guest) = (helper.display(), Lab::guest_address(nic));
        let protocols: String = protocols.iter().map(|number| format!(" {number}")).collect();
        let send = format!("exec '{helper}' tunnels {guest} {TUNNEL_RATE}{protocols}");
        lab.peer(nic.into()).unwrap().spawn(&send).unwrap()
    };
    let senders = [send(0, &[GRE]), send(1, &[IPIP, ESP])];
    let wanted = [("GRE: ", "eth0"), ("VXLAN: ", "eth0"), ("IPIP: ", "eth1"), ("ESP: ", "eth1")];
    let all = |check: &Value| {
        let tunnels = of_id(check, "tunnel-one-queue");
        wanted.iter().all(|(title, _)| has(&tunnels, title))
            && has(&of_id(check, "udp-one-queue"), "")
    };
    let look = || netsilo_check(lab, "--interval 4s");
    let check = until("UDP and four tunnels, each on one queue", look, all).unwrap();
    let udp = &of_id(&check, "udp-one-queue")[0];
    assert_eq!(udp["subject"], "eth0", "{udp:#}");
    for tunnel in of_id(&check, "tunnel-one-queue") {
        let (title, netdev) =
            wanted.iter().find(|(title, _)| has(std::slice::from_ref(&tunnel), title)).unwrap();
        let knob = &tunnel["remedies"][0]["changes"][0]["target"]["knob"];
        let fixed_by = match *title {
            "VXLAN: " => Some("flow_hash"),
            "ESP: " => None,
            _ => Some("rps_cpus"),
        };
        assert_eq!(
            (knob.as_str(), &tunnel["subject"]),
            (fixed_by, &Value::from(*netdev)),
            "{tunnel:#}"
        );
    }
    for sender in senders {
        sender.stop().unwrap();
    }
    drop(vxlan);
}

fn udp_is_fixed(lab: &Lab) {
    netsilo(lab, "apply --yes --fix udp-one-queue --interval 3s").unwrap();
    assert!(lab.sh("ethtool -n eth0 rx-flow-hash udp4").unwrap().contains("L4 bytes 2 & 3"));
    let spread = predicted(lab, "ports in the hash", |flows| queues(flows).len() > 1);
    assert!(
        spread.iter().all(|flow| !is_ours(flow) || flow["hash"].is_u64()),
        "the NIC reported no hash: {spread:#?}"
    );
}

fn flows_follow_every_table(lab: &Lab) {
    lab.sh("ethtool -X eth0 equal 2").unwrap();
    predicted(lab, "equal 2", |flows| queues(flows).is_subset(&[0, 1].into()));
    // 8 of 128 entries lead to queue 0, so 64 flows cannot load it as much as queue 3
    lab.sh("ethtool -X eth0 weight 1 0 0 15").unwrap();
    let skewed = predicted(lab, "weight 1 0 0 15", |flows| queues(flows).is_subset(&[0, 3].into()));
    netsilo(lab, &format!("apply --yes --fix rss-table-skew {LONG}")).unwrap();
    let even = predicted(lab, "a balanced table", |flows| {
        queue_0_of_ours(flows) > queue_0_of_ours(&skewed)
    });
    println!(
        "flows on queue 0: {} before, {} after",
        queue_0_of_ours(&skewed),
        queue_0_of_ours(&even)
    );
    assert!(queue_0_of_ours(&even) >= 16, "{even:#?}");
}

/// Compares bundles with the driver's own settings.
fn a_bundle_has_queues_with_addresses_and_without(lab: &Lab) {
    const WITH: &str = "--from /tmp/with.tar.zst";
    let captured = || {
        netsilo(lab, "capture --with-addresses -o /tmp/with.tar.zst --interval 1s").unwrap();
        rss_show(lab, WITH)
    };
    let with = until("all flows in a bundle", captured, |with| are_all(&flows(with))).unwrap();
    let one = as_predicted("the driver's settings", &with);
    assert_eq!(queues(&one).len(), 1, "one peer, no ports in the hash");
    let known = one.iter().find(|flow| is_ours(flow)).unwrap();
    let place = &rss_where(lab, &one, WITH);
    assert_eq!(
        (&place["predicted"]["queue"], &place["seen_on"]),
        (&known["queue"], &known["queue"]),
        "{place:#}"
    );
    a_nic_that_reports_too_little_is_refused(lab, WITH);

    netsilo(lab, "capture -o /tmp/without.tar.zst --interval 1s").unwrap();
    let without = rss_show(lab, "--from /tmp/without.tar.zst");
    let hashed =
        flows(&without).into_iter().filter(|flow| flow["outer"] == "udp" && flow["hash"].is_u64());
    assert!(hashed.count() >= 64, "{without:#}");
    assert!(flows(&without).iter().all(|flow| flow.get("ends").is_none()), "{without:#}");
    assert!(without["load"]["packets"].as_u64().unwrap() > 0, "{without:#}");
}

/// vmxnet3 reports no hash fields, and without flows nothing shows that its emulation puts all
/// flows on one queue.
fn a_nic_that_reports_too_little_is_refused(lab: &Lab, from: &str) {
    let place = format!("{NETSILO} rss where 10.77.1.1:1-10.77.1.2:2/udp --netdev eth1 {from} -j");
    let place = lab.run(&place).unwrap();
    let places: Value = serde_json::from_slice(&place.stdout).unwrap();
    assert_eq!(place.status, 1, "{places:#}");
    let eth1 = &places["netdevs"][0];
    assert!(eth1["predicted"].is_null() && eth1["refused"].is_string(), "{places:#}");
}
