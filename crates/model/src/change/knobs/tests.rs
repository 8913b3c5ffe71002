//! Laws of the table, tried on the knob of each case in `cases/knobs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::*;
use crate::change::{Change, Key, Settings, Table, Value, apply_to};
use crate::machine::cpuset::CpuSet;
use crate::machine::reading::Reading;
use crate::snapshot::ethtool::{Coalesce, Ethtool, HashFields, Rss};
use crate::snapshot::netdev::{Netdev, RxQueue, TxQueue};

/// `cases/knobs/<kind>/knob.json`.
#[derive(Deserialize)]
struct Case {
    /// The text of the old value, as the kernel prints it.
    says: String,
    /// The old value in a snapshot, by JSON Pointer.
    #[serde(default)]
    snapshot: BTreeMap<String, serde_json::Value>,
    change: Change,
}

/// The case of each knob.
#[expect(clippy::disallowed_methods, reason = "only the library is pure")]
fn cases() -> Vec<Case> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/knobs");
    let case = |kind: &&str| {
        let path = format!("{folder}/{kind}/knob.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    kinds().iter().map(case).collect()
}

/// A machine that has every knob which a snapshot holds, with the values of the cases.
fn host() -> Snapshot {
    let rss = Rss { function: None, key: None, indirection: Vec::new(), input_xfrm: 0 };
    let ethtool = Ethtool {
        coalesce: Reading::Value(Coalesce::default()),
        rss: Reading::Value(rss),
        ..Ethtool::unavailable("not requested")
    };
    let netdev = Netdev {
        name: "eth0".into(),
        rx_queues: vec![RxQueue::default()],
        tx_queues: vec![TxQueue::default()],
        ethtool: Some(ethtool),
        ..Netdev::default()
    };
    let mut snapshot = Snapshot { netdevs: vec![netdev], ..Snapshot::default() };
    Arc::make_mut(&mut snapshot.topology).online = CpuSet::first(4);
    let mut snapshot = serde_json::to_value(snapshot).unwrap();
    for (place, value) in cases().into_iter().flat_map(|case| case.snapshot) {
        let (parent, name) = place.rsplit_once('/').unwrap();
        let parent = snapshot.pointer_mut(parent);
        parent.unwrap_or_else(|| panic!("{place} is not in the snapshot"))[name] = value;
    }
    serde_json::from_value(snapshot).unwrap()
}

#[test]
fn the_json_of_a_target_names_its_row() {
    for Case { change, .. } in cases() {
        let json = serde_json::to_value(&change).unwrap();
        assert_eq!(json["target"]["knob"], change.target.facts().kind);
        assert_eq!(serde_json::from_value::<Change>(json).unwrap(), change);
    }
}

#[test]
fn what_the_kernel_prints_is_read_and_written_as_the_same_value() {
    for Case { says, change, .. } in cases() {
        let target = &change.target;
        assert_eq!(target.parse(&says).as_ref(), Ok(&change.old), "{target}");
        assert_eq!(target.parse(&change.text()).as_ref(), Ok(&change.new), "{target}");
        assert_eq!(target.parse(&change.inverse().text()).as_ref(), Ok(&change.old), "{target}");
        assert!(
            target.parse("\u{1}").is_err() || matches!(change.old, Value::Words(_)),
            "{target}"
        );
    }
}

#[test]
fn a_change_is_tried_out_in_a_snapshot_and_taken_back() {
    let before = host();
    for Case { change, .. } in cases() {
        let target = &change.target;
        let Some(old) = target.value_in(&before) else {
            let unlisted = ["rss_context", "ntuple_rule", "thread_affinity", "cgroup_cpuset"];
            let kind = target.facts().kind;
            let missing = format!("cases/knobs/{kind}/knob.json: `snapshot` has no value");
            assert!(unlisted.contains(&kind), "{missing}");
            assert_eq!(apply_to(&before, &[change]), before);
            continue;
        };
        assert_eq!(old, change.old, "{target}");
        let after = apply_to(&before, std::slice::from_ref(&change));
        assert_eq!(target.value_in(&after), Some(change.new.clone()), "{target}");
        assert_ne!(after, before, "{target}");
        let back = apply_to(&after, &[change.inverse()]);
        assert_eq!(target.value_in(&back), Some(change.old.clone()), "{target}");
    }
}

#[test]
fn what_a_netdev_does_not_have_is_not_set() {
    let nothing = Snapshot {
        netdevs: vec![Netdev { name: "eth0".into(), ..Netdev::default() }],
        ..Snapshot::default()
    };
    for Case { change, .. } in cases() {
        assert_eq!(change.target.value_in(&nothing), None, "{}", change.target);
        assert_eq!(apply_to(&nothing, &[change]), nothing);
    }
}

#[test]
fn a_value_of_another_type_is_refused() {
    let values = [
        Value::Cpus(CpuSet::first(1)),
        Value::Count(1),
        Value::Switch(true),
        Value::Settings(Settings::default()),
        Value::Fields(HashFields::PORTS),
        Value::Table(Table(vec![0])),
        Value::Key(Key(vec![1])),
        Value::words("1"),
    ];
    for Case { change, .. } in cases() {
        for wrong in values.iter().filter(|value| value.kind() != change.old.kind()) {
            let (target, old, new) = (&change.target, change.old.clone(), wrong.clone());
            let error = Change::untyped(target.clone(), old, new, "").unwrap_err().to_string();
            let mut json = serde_json::to_value(&change).unwrap();
            json["old"] = serde_json::to_value(wrong).unwrap();
            assert_eq!(serde_json::from_value::<Change>(json).unwrap_err().to_string(), error);
        }
    }
    let plan = r#"{"target": {"knob": "default_smp_affinity"}, "old": {"cpus": "0-3"},
                   "new": {"count": 3}, "reason": "by hand"}"#;
    assert_eq!(
        serde_json::from_str::<Change>(plan).unwrap_err().to_string(),
        "default_smp_affinity: the knob `default_smp_affinity` takes a value of type `cpus`, \
         not `count`"
    );
}

#[test]
fn rings_are_rounded_up_to_less_than_twice() {
    let settings = |text: &str| text.parse::<Settings>().unwrap();
    let may = |now| <Rings as Knob>::may_round_to(&settings("rx=300 tx=256"), &settings(now));
    assert!(may("rx=512 tx=256") && may("rx=300 tx=256") && may("rx=304 tx=511"));
    assert!(!may("rx=600 tx=256") && !may("rx=299 tx=256") && !may("rx=512 tx=128"));
}
