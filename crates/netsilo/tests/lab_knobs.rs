//! Every kind of knob on real drivers: `netsilo apply --plan` changes it, `netsilo undo` restores
//! it, and ethtool prints the same as before, byte for byte.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::collections::BTreeSet;

use netsilo_decide::plan::Plan;
use netsilo_lab::{Kernel, Lab, NicModel, Spec};
use netsilo_model::change::{
    Change, Key, Location, SYSCTLS, Settings, Table, Target, Value, knobs,
};
use netsilo_model::snapshot::ethtool::FlowType;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use serde::Deserialize;
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Prints everything that these tests change, with ethtool and from files. What a driver lacks
/// appears as an error.
const SHOWN: &str = "cd /sys/class/net; for d in eth*; do \
    for o in -l -g -c -k -x -n; do ethtool $o $d 2>&1; done; \
    for t in tcp4 udp4 tcp6 udp6; do ethtool -n $d rx-flow-hash $t 2>&1; done; \
    for f in threaded FILES; do grep -H . $d/$f 2>&1; done; done; \
    grep -rH . /proc/sys/net/core /proc/sys/net/ipv4/tcp_* /proc/sys/net/ipv4/udp_* 2>/dev/null; \
    true";

/// Offloads that are toggled if the driver allows it.
const OFFLOADS: [&str; 4] = ["rx-lro", "rx-gro", "tx-tcp-segmentation", "rx-checksum"];

/// The part of `cases/knobs/<kind>/knob.json` about the lab.
#[derive(Deserialize)]
#[serde(untagged)]
enum InLab {
    /// `false`: a knob of no netdev, or one that other tests of the lab write, or one that no
    /// driver of the lab changes.
    Skipped(bool),
    /// A value to write on each netdev.
    Written(Value),
}

/// `cases/knobs/<kind>/knob.json`, without the parts for other tests.
#[derive(Deserialize)]
struct Case {
    /// Absent if [`remedies`] makes the value from the current one.
    lab: Option<InLab>,
    change: Change,
}

/// The case of each knob, by kind.
fn cases() -> Vec<(&'static str, Case)> {
    let case = |kind: &'static str| {
        let path = format!("{}/../../cases/knobs/{kind}/knob.json", env!("CARGO_MANIFEST_DIR"));
        (kind, serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    };
    knobs::kinds().into_iter().map(case).collect()
}

/// The knobs of a netdev whose cases have a value for the lab, with that value.
fn of_cases(netdev: &NetdevIdentity) -> Vec<(Target, Value)> {
    let here = |(kind, case): (&str, Case)| {
        let Some(InLab::Written(value)) = case.lab else { return None };
        let mut target = serde_json::to_value(&case.change.target).unwrap();
        let of = target.get_mut("netdev").unwrap_or_else(|| panic!("{kind} is of no netdev"));
        *of = serde_json::to_value(netdev).unwrap();
        Some((serde_json::from_value(target).unwrap(), value))
    };
    cases().into_iter().filter_map(here).collect()
}

/// What a role of the helper prints in the guest.
fn helper(lab: &Lab, role: &str) -> String {
    let helper = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "guest_helper").unwrap();
    lab.sh(&format!("exec '{}' {role}", helper.display())).unwrap()
}

/// Returns netsilo's snapshot of the guest.
fn snapshot(lab: &Lab) -> Snapshot {
    serde_json::from_str(&helper(lab, "snapshot")).unwrap()
}

/// Everything that these tests change, and the settings that depend on it.
fn shown(lab: &Lab) -> String {
    let any = NetdevIdentity { name: String::new(), device_path: None, ifindex: None };
    let file = |(target, _): &(Target, Value)| match target.location() {
        Location::Netdev { file, .. } => Some(file),
        _ => None,
    };
    let files: Vec<String> = of_cases(&any).iter().filter_map(file).collect();
    lab.sh(&SHOWN.replace("FILES", &files.join(" "))).unwrap() + &helper(lab, "queues")
}

/// Returns another value within the driver's limits, if there is one.
fn other(now: &Settings, most: &Settings, name: &str) -> Option<Value> {
    let (now_is, most) = (now.get(name), most.get(name));
    let other = if now_is < most { (2 * now_is).min(most) } else { now_is / 2 };
    (most > 1 && other != now_is).then(|| Value::Settings(now.clone().with(name, other)))
}

/// Returns the knobs to try on a netdev, each with a new value that differs from its current one.
fn remedies(netdev: &Netdev) -> Vec<(Target, Option<Value>)> {
    let of = || NetdevIdentity::from_netdev(netdev);
    let ethtool = netdev.ethtool.as_ref().unwrap();
    let rings =
        ethtool.rings.value().and_then(|rings| other(&rings.settings(), &rings.most(), "rx"));
    let usecs = |usecs: u32| if usecs == 50 { 60 } else { 50 };
    let coalesce =
        ethtool.coalesce.value().map(|it| it.settings()).filter(|it| it.get("rx-usecs") > 0);
    let coalesce =
        coalesce.map(|it| Value::Settings(it.clone().with("rx-usecs", usecs(it.get("rx-usecs")))));
    let rss = ethtool.rss.value();
    let table = rss.filter(|rss| rss.indirection.iter().max() > Some(&0)).map(|rss| {
        let mut table = rss.indirection.clone();
        table[0] = u32::from(table[0] == 0);
        Value::Table(Table(table))
    });
    let key = rss.and_then(|rss| rss.key.clone()).map(|mut key| {
        key[0] ^= 0xff;
        Value::Key(Key(key))
    });
    // Other drivers of the lab report the fields but accept no change.
    let fields =
        ethtool.flow_hash.get(&FlowType::Udp4).filter(|_| netdev.driver.as_deref() == Some("igb"));
    let fields = fields.and_then(|fields| fields.value());
    let fields = fields.map(|now| if now.to_string() == "sd" { "sdfn" } else { "sd" });
    let mut all = vec![
        (Target::Rings(knobs::Rings { netdev: of() }), rings),
        (Target::Coalesce(knobs::Coalesce { netdev: of() }), coalesce),
        (Target::RssTable(knobs::RssTable { netdev: of(), context: 0 }), table),
        (Target::RssKey(knobs::RssKey { netdev: of() }), key),
        (
            Target::FlowHash(knobs::FlowHash { netdev: of(), flow_type: FlowType::Udp4 }),
            fields.map(|letters| Value::Fields(letters.parse().unwrap())),
        ),
        (
            Target::Threaded(knobs::Threaded { netdev: of() }),
            netdev.threaded.map(|now| Value::Count(u32::from(now == 0))),
        ),
    ];
    for name in OFFLOADS {
        let changeable = ethtool.feature(name).filter(|feature| !feature.fixed());
        let target = Target::Offload(knobs::Offload { netdev: of(), feature: name.into() });
        all.push((target, changeable.map(|feature| Value::Switch(!feature.active))));
    }
    all.extend(of_cases(&of()).into_iter().map(|(target, value)| (target, Some(value))));
    all
}

/// Returns another value of a sysctl in its own format.
fn sysctl(name: &str, now: &str) -> Option<Value> {
    let mut words: Vec<String> = now.split_whitespace().map(str::to_owned).collect();
    let last = words.last_mut()?;
    *last = match (name, last.parse::<u64>()) {
        ("net.core.default_qdisc", _) if last == "pfifo" => "pfifo_fast".into(),
        ("net.core.default_qdisc", _) => "pfifo".into(),
        ("net.core.flow_limit_cpu_bitmap", _) => "ff".into(),
        (_, Ok(0)) => "1".into(),
        ("net.ipv4.tcp_moderate_rcvbuf" | "net.ipv4.tcp_window_scaling", Ok(1)) => "0".into(),
        ("net.ipv4.tcp_notsent_lowat", Ok(_)) => "131072".into(),
        (_, Ok(number)) => (2 * number).to_string(),
        (_, Err(_)) => return None,
    };
    Some(Value::words(&words.join(" ")))
}

fn change(snapshot: &Snapshot, target: Target, new: Value) -> Option<Change> {
    let old = target.value_in(snapshot)?;
    Some(Change::untyped(target, old, new, "test").unwrap())
}

/// Applies the changes, checks each knob, undoes them, and checks that everything is as before.
/// Returns the kinds of knobs that were written.
fn there_and_back(lab: &Lab, changes: Vec<Change>) -> BTreeSet<String> {
    let before = shown(lab);
    assert!(before.contains(" kthread Cpus_allowed:"), "{before}");
    let plan = Plan { changes: netsilo_model::change::ordered(changes), ..Plan::default() };
    let text = serde_json::to_string(&plan).unwrap();
    lab.sh(&format!("cat >/tmp/plan.json <<'END'\n{text}\nEND")).unwrap();
    let applied = lab.run(&format!("{NETSILO} apply --yes --json --plan /tmp/plan.json")).unwrap();
    assert_eq!(applied.status, 0, "{}: {applied:?}", lab.title());
    let applied: Json = serde_json::from_str(&applied.text()).unwrap();
    let settled_changes = applied["changes"].as_array().unwrap();
    let now = snapshot(lab);
    for change in &plan.changes {
        let target = serde_json::to_value(&change.target).unwrap();
        let settled = settled_changes.iter().find(|it| it["target"] == target).unwrap();
        let settled: Value = serde_json::from_value(settled["value"].clone()).unwrap();
        assert_eq!(settled, change.new, "{}: {}", lab.title(), change.target);
        assert_eq!(
            change.target.value_in(&now).as_ref(),
            Some(&change.new),
            "{}: {}",
            lab.title(),
            change.target
        );
    }
    let undone = lab.run(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(undone.status, 0, "{}: {undone:?}", lab.title());
    let after = shown(lab);
    for (before, after) in before.lines().zip(after.lines()) {
        assert_eq!(before, after, "{}: {}", lab.title(), undone.text());
    }
    assert_eq!(before.len(), after.len(), "{}: {}", lab.title(), undone.text());
    let knob = |change: &Change| {
        serde_json::to_value(&change.target).unwrap()["knob"].as_str().unwrap().to_owned()
    };
    plan.changes.iter().map(knob).collect()
}

fn boot(kernel: Kernel, models: &[NicModel]) -> Lab {
    let nics = models.iter().map(|model| (*model).into()).collect();
    Lab::boot(&Spec { kernel, nics, ..Spec::default() }).unwrap()
}

/// Tries every knob on each card of a guest. Returns the kinds of knobs that were written.
fn every_knob(lab: &Lab) -> BTreeSet<String> {
    helper(lab, "pin-queues");
    let host = snapshot(lab);
    let mut changes = Vec::new();
    let mut channels = Vec::new();
    let mut tried = BTreeSet::new();
    for netdev in host.netdevs.iter().filter(|netdev| netdev.name.starts_with("eth")) {
        let here: Vec<Change> = remedies(netdev)
            .into_iter()
            .filter_map(|(target, new)| change(&host, target, new?))
            .collect();
        let driver = netdev.driver.as_deref().unwrap();
        tried.extend(
            here.iter()
                .map(|change| format!("{driver} {}", change.target).replace(&netdev.name, "")),
        );
        changes.extend(here);
        // vmxnet3 reports its channels but accepts no change.
        let now = netdev.ethtool.as_ref().unwrap().channels.value().filter(|_| driver != "vmxnet3");
        if let Some(fewer) =
            now.filter(|it| it.combined.is_some_and(|it| it.current > 1)).map(|it| it.settings())
        {
            let half = fewer.get("combined") / 2;
            let target =
                Target::Channels(knobs::Channels { netdev: NetdevIdentity::from_netdev(netdev) });
            channels.extend(change(&host, target, Value::Settings(fewer.with("combined", half))));
            tried.insert(format!("{driver} channels"));
        }
    }
    for name in SYSCTLS {
        let new = host.net.sysctls.get(*name).and_then(|now| sysctl(name, now));
        changes.extend(new.and_then(|new| {
            change(&host, Target::Sysctl(knobs::Sysctl { name: (*name).into() }), new)
        }));
    }
    // Channels first: igb's own table differs from what the kernel calls the default, so undo
    // writes it. Once a table was written, the kernel refuses to reduce the channels.
    let mut kinds = there_and_back(lab, channels);
    kinds.extend(there_and_back(lab, changes));
    println!("{}: {tried:#?}", lab.title());
    kinds
}

#[test]
fn every_knob_that_a_driver_accepts_is_restored_byte_for_byte() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut kinds = BTreeSet::new();
    kinds.extend(every_knob(&boot(Kernel::V6_1, &[NicModel::VirtioNet])));
    let models = [NicModel::Igb, NicModel::VirtioNet, NicModel::E1000e];
    kinds.extend(every_knob(&boot(Kernel::V6_12, &models)));
    let newest = boot(Kernel::Newest, &[NicModel::Vmxnet3, NicModel::Igb, NicModel::VirtioNet]);
    // A veth has NAPIs, and their kthreads, only while GRO is on.
    let veth = "ip link add eth8 type veth peer name eth9; for d in eth8 eth9; do \
                ip link set $d up; ethtool -K $d gro on; done";
    newest.sh(veth).unwrap();
    kinds.extend(every_knob(&newest));
    undo_waits_for_netdevs_that_are_down(&newest);
    let missing = cases().into_iter().filter(|(kind, case)| {
        !kinds.contains(*kind) && !matches!(case.lab, Some(InLab::Skipped(false)))
    });
    let missing: Vec<&str> = missing.map(|(kind, _)| kind).collect();
    assert!(
        missing.is_empty(),
        "not written: give `lab` in cases/knobs/<kind>/knob.json a value, or `false` if no driver \
         of the lab changes it: {missing:?}"
    );
}

/// From 6.17 on, switching `threaded` off on a netdev that is down never returns, holds rtnl, and
/// cannot be killed.
fn undo_waits_for_netdevs_that_are_down(lab: &Lab) {
    for netdev in snapshot(lab).netdevs.iter().filter(|netdev| netdev.device_path.is_some()) {
        let name = &netdev.name;
        lab.sh(&format!("echo 0 >/sys/class/net/{name}/threaded")).unwrap();
        let of = || NetdevIdentity::from_netdev(netdev);
        let host = snapshot(lab);
        let changes = [
            change(&host, Target::Threaded(knobs::Threaded { netdev: of() }), Value::Count(1)),
            change(&host, Target::Mtu(knobs::Mtu { netdev: of() }), Value::Count(1400)),
        ];
        let plan = Plan { changes: changes.into_iter().flatten().collect(), ..Plan::default() };
        let text = serde_json::to_string(&plan).unwrap();
        let apply = format!("{NETSILO} apply --yes --plan /tmp/plan.json");
        lab.sh(&format!("cat >/tmp/plan.json <<'END'\n{text}\nEND\n{apply}")).unwrap();
        lab.sh(&format!("ip link set {name} down")).unwrap();
        let undone = lab.run(&format!("{NETSILO} undo")).unwrap();
        assert_eq!(undone.status, 21, "{}: {undone:?}", lab.title());
        let waiting = format!("{name} threaded: NOT RESTORED ({name} threaded: waiting: {name}");
        assert!(undone.text().contains(&waiting), "{undone:?}");
        let now = snapshot(lab);
        let now = now.netdevs.iter().find(|it| it.name == *name).unwrap();
        assert_eq!((now.mtu, now.threaded), (1500, Some(1)), "all else is restored");
        // Nothing holds rtnl: the link can be set up, and undo can continue.
        lab.sh(&format!("ip link set {name} up; exec {NETSILO} undo")).unwrap();
        let now = snapshot(lab);
        let now = now.netdevs.iter().find(|it| it.name == *name).unwrap();
        assert_eq!(now.threaded, Some(0));
        // apply does not start this write either.
        lab.sh(&format!("echo 1 >/sys/class/net/{name}/threaded; ip link set {name} down"))
            .unwrap();
        let host = snapshot(lab);
        let off =
            change(&host, Target::Threaded(knobs::Threaded { netdev: of() }), Value::Count(0));
        let plan = Plan { changes: off.into_iter().collect(), ..Plan::default() };
        let text = serde_json::to_string(&plan).unwrap();
        lab.sh(&format!("cat >/tmp/plan.json <<'END'\n{text}\nEND")).unwrap();
        let refused = lab.run(&apply).unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status, 1, "{refused:?}");
        assert!(error.contains(&format!("waiting: {name} is down")), "{error}");
    }
}
