//! RSS on real kernels: the reckoned queue of every flow is the one that it arrived on, whatever table and fields; UDP and tunnels
//! that one queue takes are found, and mended where the NIC can.
//!
//! This program also runs at the guest's peer, where it sends GRE.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use netsilo_lab::{Job, Kernel, Lab, Nic, NicModel, PeerJob, Spec, traffic};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, sendto, socket};
use serde_json::Value;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
#[ignore = "minutes on a busy machine: cargo test -p netsilo --test lab_rss -- --ignored flows_arrive"]
fn flows_arrive_where_they_are_reckoned_and_udp_and_tunnels_on_one_queue_are_found_and_mended() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let nics = [NicModel::Igb, NicModel::Vmxnet3].map(Nic::from);
    let lab = Lab::boot(&Spec { kernel: Kernel::V6_12, nics: nics.to_vec(), ..Spec::default() }).unwrap();
    let settings = "ethtool -x eth0; ethtool -n eth0 rx-flow-hash udp4";
    let before = lab.sh(settings).unwrap();
    let udp = udp(&lab, 5300, 64, 600);
    a_nic_that_does_not_tell_enough_is_refused(&lab);
    tunnels_are_recognised(&lab);
    udp_is_found_and_mended(&lab);
    every_table_is_reckoned(&lab);
    a_bundle_tells_queues_with_addresses_and_without(&lab);
    drop(udp);
    netsilo(&lab, "undo").unwrap();
    let after = lab.sh(settings).unwrap();
    // ethtool set the last table by hand: undo leaves that and takes the fields back
    assert_eq!(after.split_once("UDP").unwrap().1, before.split_once("UDP").unwrap().1);
}

/// vmxnet3 tells no fields, and without flows nobody could say that its emulation takes all on one queue.
fn a_nic_that_does_not_tell_enough_is_refused(lab: &Lab) {
    let place = format!("{NETSILO} rss where 10.77.1.1:1-10.77.1.2:2/udp --netdev eth1 --interval 300ms -j");
    let place = lab.run_for(&place, PATIENCE).unwrap();
    let places: Value = serde_json::from_slice(&place.stdout).unwrap();
    assert_eq!(place.status, 1, "{places:#}");
    assert!(places[0]["predicted"].is_null() && places[0]["refused"].is_string(), "{places:#}");
}

fn queue_0_of_ours(flows: &[Value]) -> usize {
    flows.iter().filter(|flow| is_ours(flow) && flow["queue"] == 0).count()
}

/// Producer and consumer; they go on until they are dropped.
type Traffic = (PeerJob, Job);

/// UDP from one peer, `flows` ports to one port.
fn udp(lab: &Lab, port: u16, flows: u16, rate: u32) -> Traffic {
    let program = traffic::program().unwrap();
    let program = program.display();
    let consume = format!("consume --mode udp-unconnected --port {port} --flows {flows} --idle 600");
    let consumer = lab.spawn(&format!("exec '{program}' traffic {consume}")).unwrap();
    let to = format!("--dest {} --port {port} --flows {flows}", Lab::guest_address(0));
    let produce =
        format!("exec '{program}' traffic produce --proto udp {to} --size 200 --bytes 900000000 --rate {rate}");
    (lab.peer(0).unwrap().spawn(&produce).unwrap(), consumer)
}

fn netsilo(lab: &Lab, arguments: &str) -> anyhow::Result<String> {
    Ok(lab.run_for(&format!("{NETSILO} {arguments}"), PATIENCE)?.ok()?.text().into_owned())
}

/// What `rss show` tells of eth0 now.
fn shown(lab: &Lab) -> Value {
    let text = netsilo(lab, "rss show --netdev eth0 --interval 1s -j").unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[0].take()
}

fn flows(shown: &Value) -> Vec<Value> {
    shown["flows"].as_array().unwrap().clone()
}

/// Whether it is one of the 64 flows to port 5300.
fn is_ours(flow: &Value) -> bool {
    flow["ends"]["target"].as_str().is_some_and(|target| target.ends_with(":5300"))
}

fn queues(flows: &[Value]) -> BTreeSet<u64> {
    flows.iter().filter(|flow| is_ours(flow)).map(|flow| flow["queue"].as_u64().unwrap()).collect()
}

/// Looks until all of our flows are seen and `settled`; then each flow that has been reckoned arrived where it was.
fn reckoned(lab: &Lab, when: &str, settled: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let all = until(when, || {
        let shown = shown(lab);
        let flows = flows(&shown);
        let ready = flows.iter().filter(|flow| is_ours(flow)).count() >= 64 && settled(&flows);
        if ready { Ok(shown) } else { Err(shown) }
    });
    let flows = flows(&all);
    for flow in &flows {
        assert!(!is_ours(flow) || flow["hash"].is_u64(), "{when}: the NIC told no hash: {flow}");
        let predicted = &flow["predicted"];
        assert!(!is_ours(flow) || predicted.is_object(), "{when}: not reckoned: {flow}");
        if predicted.is_object() {
            assert_eq!(predicted["queue"], flow["queue"], "{when}: {flow}");
        }
    }
    println!(
        "{when}: {} of {} flows as reckoned, on queues {:?}",
        all["fit"]["as_predicted"],
        all["fit"]["flows"],
        queues(&flows)
    );
    flows
}

/// The first good answer, for at most two minutes; fails with the last bad one.
fn until(what: &str, mut ask: impl FnMut() -> Result<Value, Value>) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(last) if Instant::now() > deadline => panic!("{what}: not seen in {PATIENCE:?}: {last:#}"),
            Err(_) => {}
        }
    }
}

fn found(lab: &Lab, id: &str) -> Vec<Value> {
    let check = netsilo_check(lab);
    check["findings"].as_array().unwrap().iter().filter(|finding| finding["id"] == id).cloned().collect()
}

/// Its exit code tells of findings; here it is what they are that matters.
fn netsilo_check(lab: &Lab) -> Value {
    let done = lab.run_for(&format!("{NETSILO} check --interval 2s -j"), PATIENCE).unwrap();
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn tunnels_are_recognised(lab: &Lab) {
    let vxlan = udp(lab, 4789, 8, 400);
    let program = std::env::current_exe().unwrap();
    let gre = format!("exec '{}' --ignored --exact gre_sender --nocapture", program.display());
    let gre = lab.peer(0).unwrap().spawn(&gre).unwrap();
    let has =
        |findings: &[Value], title: &str| findings.iter().any(|it| it["title"].as_str().unwrap().starts_with(title));
    let tunnels = until("GRE and VXLAN on one queue", || {
        let findings = found(lab, "tunnel-one-queue");
        let both = has(&findings, "GRE: ") && has(&findings, "VXLAN: ");
        if both { Ok(findings.into()) } else { Err(findings.into()) }
    });
    for tunnel in tunnels.as_array().unwrap() {
        let knob = &tunnel["remedies"][0]["changes"][0]["target"]["knob"];
        let wanted = if has(std::slice::from_ref(tunnel), "GRE: ") { "rps_cpus" } else { "flow_hash" };
        assert_eq!(knob, wanted, "{tunnel:#}");
    }
    gre.stop().unwrap();
    drop(vxlan);
}

#[test]
#[ignore = "runs at the guest's peer"]
fn gre_sender() {
    let gre = Protocol::from_raw(47_u32.try_into().unwrap());
    let socket = socket(AddressFamily::INET, SocketType::RAW, Some(gre)).unwrap();
    let guest: Ipv4Addr = Lab::guest_address(0);
    // version 0, no options, IPv4 inside
    let packet = [&[0, 0, 8, 0], [0x45; 100].as_slice()].concat();
    let deadline = Instant::now() + 2 * PATIENCE;
    while Instant::now() < deadline {
        // a moment without a neighbour's address is an error here
        let _ = sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV4::new(guest, 0));
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn udp_is_found_and_mended(lab: &Lab) {
    let one = reckoned(lab, "as the driver sets it up", |_| true);
    assert_eq!(queues(&one).len(), 1, "one peer, no ports in the hash");
    let finding = until("udp-one-queue", || found(lab, "udp-one-queue").into_iter().next().ok_or(Value::Null));
    assert_eq!(finding["subject"], "eth0", "{finding:#}");
    netsilo(lab, "apply --yes --fix udp-one-queue --interval 2s").unwrap();
    assert!(lab.sh("ethtool -n eth0 rx-flow-hash udp4").unwrap().contains("L4 bytes 2 & 3"));
    reckoned(lab, "ports in the hash", |flows| queues(flows).len() > 1);
    assert_eq!(found(lab, "udp-one-queue"), [] as [Value; 0]);
}

fn every_table_is_reckoned(lab: &Lab) {
    lab.sh("ethtool -X eth0 equal 2").unwrap();
    reckoned(lab, "equal 2", |flows| queues(flows).is_subset(&[0, 1].into()));
    // 8 of 128 entries lead to queue 0: that 64 flows load it as much as queue 7 is out of the question
    lab.sh("ethtool -X eth0 weight 1 0 0 0 0 0 0 15").unwrap();
    let skewed = reckoned(lab, "weight 1 0 0 0 0 0 0 15", |flows| queues(flows).is_subset(&[0, 7].into()));
    netsilo(lab, "apply --yes --fix rss-table-skew --interval 2s").unwrap();
    let even = reckoned(lab, "a balanced table", |flows| queue_0_of_ours(flows) > queue_0_of_ours(&skewed));
    println!("flows on queue 0: {} before, {} after", queue_0_of_ours(&skewed), queue_0_of_ours(&even));
    assert!(queue_0_of_ours(&even) >= 16, "{even:#?}");
    assert_eq!(found(lab, "rss-table-skew"), [] as [Value; 0]);
}

fn a_bundle_tells_queues_with_addresses_and_without(lab: &Lab) {
    netsilo(lab, "capture --with-addresses -o /tmp/with.tar.zst --interval 1s").unwrap();
    netsilo(lab, "capture -o /tmp/without.tar.zst --interval 1s").unwrap();
    let show = |bundle: &str| -> Value {
        let text = netsilo(lab, &format!("rss show --netdev eth0 --from /tmp/{bundle}.tar.zst -j")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()[0].take()
    };
    let (with, without) = (show("with"), show("without"));
    let known: Vec<Value> = flows(&with).into_iter().filter(is_ours).collect();
    let (source, queue) = (known[0]["ends"]["source"].as_str().unwrap(), &known[0]["queue"]);
    let flow = format!("{source}-{}:5300/udp", Lab::guest_address(0));
    let place = netsilo(lab, &format!("rss where {flow} --netdev eth0 --from /tmp/with.tar.zst -j")).unwrap();
    let place: Value = serde_json::from_str(&place).unwrap();
    assert_eq!((&place[0]["predicted"]["queue"], &place[0]["seen_on"]), (queue, queue), "{place:#}");
    let hashed = flows(&without).into_iter().filter(|flow| flow["outer"] == "udp" && flow["hash"].is_u64());
    assert!(hashed.count() >= 64, "{without:#}");
    assert!(flows(&without).iter().all(|flow| flow.get("ends").is_none()), "{without:#}");
    assert!(without["load"]["packets"].as_u64().unwrap() > 0, "{without:#}");
}
