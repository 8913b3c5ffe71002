//! Golden cases: each folder of `cases/` holds a host (`before.json`, a [`Scene`]), a `goal.json`,
//! and the plan as it is printed (`plan.snap`). A new case is a folder with the first two; `cargo
//! insta review` makes the third.
//!
//! `cases/check/<id>/` belongs to a finding: `fires.json` and `almost.json` each hold a host as a
//! [`Scene`] and, for what a scene cannot say, a JSON Patch (RFC 6902) on its observation. The
//! first has the finding, as `fires.snap` prints it; the second has not, by a little.
//!
//! `cases/knobs/<kind>/` belongs to a knob: `knob.json` holds a change of it and the kernel's text of
//! the old value; `knob.snap` shows the change as a plan and in all export formats.

use std::fs;
use std::path::Path;

use netsilo_core::change::{Change, apply_to, knobs};
use netsilo_core::cost::Costs;
use netsilo_core::diagnose::{Check, FindingId, check};
use netsilo_core::plan::{Goal, Plan, plan};
use netsilo_core::scene::Scene;

use crate::{check_view, plan_view};

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_case_is_planned_as_it_was() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases");
    let mut folders: Vec<_> =
        fs::read_dir(&cases).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("before.json").exists());
    folders.sort();
    assert!(
        folders.len() >= 15,
        "the golden cases are not where they should be: {}",
        cases.display()
    );
    for case in folders {
        let scene: Scene = read(&case.join("before.json"));
        let goal: Goal = read(&case.join("goal.json"));
        let observation = scene.observation();
        let first = plan(&observation, &goal);
        insta::with_settings!({ snapshot_path => &case, prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("plan", plan_view::render(&first));
        });
        let after = scene.observe(&apply_to(&scene.settings(), &first.changes));
        assert_eq!(
            plan(&after, &goal).changes,
            [],
            "{} is not settled by its plan",
            case.display()
        );
    }
}

/// Cases whose plans hold, between them, each kind of setting.
const EXPORTED: [&str; 5] =
    ["virtio-all-on-cpu0", "threaded-napi", "rfs-off", "xps-near", "rps-leaves-isolated-cpus-out"];

#[test]
fn plans_are_exported_as_they_were() {
    for name in EXPORTED {
        let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases").join(name);
        let scene: Scene = read(&case.join("before.json"));
        let plan = plan(&scene.observation(), &read(&case.join("goal.json")));
        insta::with_settings!({ snapshot_path => &case, prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("export", crate::export::tests::all(&plan));
        });
        crate::export::tests::checked(&plan);
    }
}

/// `cases/knobs/<kind>/knob.json`, as far as it is printed.
#[derive(serde::Deserialize)]
struct KnobCase {
    change: Change,
}

#[test]
fn every_knob_is_shown_and_exported_as_it_was() {
    for kind in knobs::kinds() {
        let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/knobs").join(kind);
        let KnobCase { change } = read(&case.join("knob.json"));
        let plan = Plan { changes: vec![change], ..Plan::default() };
        let text = plan_view::render(&plan) + &crate::export::tests::of_knob(&plan);
        insta::with_settings!({ snapshot_path => &case, prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("knob", text);
        });
        crate::export::tests::checked(&plan);
    }
}

/// A host of a finding's.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    scene: Scene,
    #[serde(default)]
    patch: json_patch::Patch,
}

impl Host {
    /// What is found there of one kind.
    fn found(path: &Path, id: FindingId) -> Check {
        let host: Self = read(path);
        let mut observation = serde_json::to_value(host.scene.observation()).unwrap();
        json_patch::patch(&mut observation, &host.patch)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let observation = serde_json::from_value(observation)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut check = check(&observation, &Costs::default());
        check.findings.retain(|finding| finding.id == id);
        check.verdicts.clear();
        check
    }
}

#[test]
fn every_finding_is_found_where_it_is_so_and_not_where_it_almost_is() {
    for id in FindingId::ALL {
        let case =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/check").join(id.as_str());
        let found = Host::found(&case.join("fires.json"), *id);
        assert!(!found.findings.is_empty(), "{id}: not found in fires.json");
        insta::with_settings!({ snapshot_path => &case, prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("fires", check_view::render(&found));
            insta::assert_json_snapshot!("fires-json", found.findings);
        });
        let almost = Host::found(&case.join("almost.json"), *id);
        assert_eq!(almost.findings, [], "{id}: found in almost.json too");
    }
}
