//! Laws of the table of knobs, tested with the knob of each case in `cases/knobs`. They are here
//! because the crate that has the table reads no files.

use std::collections::BTreeMap;
use std::sync::Arc;

use netsilo_model::change::knobs::kinds;
use netsilo_model::change::{
    Change, Interruption, Key, Settings, Table, Value, apply_to, held_back, ordered,
};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::ethtool::{Coalesce, Ethtool, HashFields, Rss};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, RxQueue, TxQueue};
use serde::Deserialize;

use super::values::{self, Names};
use super::{assert_is_printed, assert_recorded, cases, exports, read};
use netsilo_decide::plan::Plan;

/// `cases/knobs/<kind>/knob.json`, without the parts for tests that write.
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
fn all() -> Vec<Case> {
    let case = |kind: &&str| read(&cases().join("knobs").join(kind).join("knob.json"));
    kinds().iter().map(case).collect()
}

#[test]
fn every_knob_is_shown_and_exported_as_it_was() {
    for Case { change, .. } in all() {
        let case = cases().join("knobs").join(change.target.facts().kind);
        let plan = Plan { changes: vec![change], ..Plan::default() };
        let text = values::plan(&plan, &Names::none()) + &exports::of_knob(&plan);
        assert_recorded(&case, "knob", &text);
        assert_is_printed(&case, &plan);
        exports::checked(&plan);
    }
}

#[test]
fn knobs_are_changed_in_the_order_of_their_steps() {
    let changes = ordered(all().into_iter().map(|case| case.change).collect());
    let (_, void) = held_back(changes.clone());
    let line = |change: &Change| {
        let stops = match change.target.interrupts_traffic() {
            Some(Interruption::Always) => ": always interrupts traffic",
            Some(Interruption::Sometimes) => ": sometimes interrupts traffic",
            None => "",
        };
        let is_void = if void.contains(change) { ", void after channels" } else { "" };
        format!("{}{stops}{is_void}\n", change.target.facts().kind)
    };
    let text: String = changes.iter().map(line).collect();
    assert_recorded(&cases().join("knobs"), "order", &text);
}

/// A machine that has every knob of a snapshot, with the values of the cases.
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
    let mut snapshot = Snapshot { netdevs: vec![netdev].into(), ..Snapshot::default() };
    Arc::make_mut(&mut snapshot.topology).online = CpuSet::first(4);
    let mut snapshot = serde_json::to_value(snapshot).unwrap();
    for (place, value) in all().into_iter().flat_map(|case| case.snapshot) {
        let (parent, name) = place.rsplit_once('/').unwrap();
        let parent = snapshot.pointer_mut(parent);
        parent.unwrap_or_else(|| panic!("{place} is not in the snapshot"))[name] = value;
    }
    serde_json::from_value(snapshot).unwrap()
}

#[test]
fn the_json_of_a_target_names_its_row() {
    for Case { change, .. } in all() {
        let json = serde_json::to_value(&change).unwrap();
        assert_eq!(json["target"]["knob"], change.target.facts().kind);
        assert_eq!(serde_json::from_value::<Change>(json).unwrap(), change);
    }
}

#[test]
fn what_the_kernel_prints_is_read_and_written_as_the_same_value() {
    for Case { says, change, .. } in all() {
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
    for Case { change, .. } in all() {
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
        netdevs: vec![Netdev { name: "eth0".into(), ..Netdev::default() }].into(),
        ..Snapshot::default()
    };
    for Case { change, .. } in all() {
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
    for Case { change, .. } in all() {
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
