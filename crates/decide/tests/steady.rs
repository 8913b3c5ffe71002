//! Looks at states whose best placement was measured (`fixtures/README.md`): each look at a state
//! must decide the same, and nothing that gains nothing may be written.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]

use std::path::{Path, PathBuf};

use netsilo_decide::plan::{Goal, Plan, plan};
use netsilo_model::change::apply_to;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bundle;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/steady")
}

fn look(name: &str) -> Observation {
    bundle::open(folder().join(format!("{name}.tar.zst"))).unwrap()
}

fn names() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap();
    let name = |file: std::fs::DirEntry| file.file_name().into_string().unwrap();
    let names = files.map(|file| name(file.unwrap()));
    names.filter_map(|name| Some(name.strip_suffix(".tar.zst")?.to_owned())).collect()
}

fn planned(observation: &Observation) -> Plan {
    let costs = Costs::default();
    plan(&Analysis::new(observation, &costs), &Goal::default())
}

/// The CPUs on which the plan of a look has its queues.
fn places(name: &str) -> String {
    let on = |it: &netsilo_decide::plan::Placement| it.cpus.to_string();
    planned(&look(name)).placements.iter().map(on).collect::<Vec<_>>().join(",")
}

/// A kthread next to its waker gives 1.5 times the rate of one next to its reader. Other programs
/// run at low priority; their time is neither the reader's nor the waker's.
#[test]
fn each_look_at_a_kthread_decides_the_same() {
    let names: Vec<String> = names().into_iter().filter(|it| it.starts_with("stab")).collect();
    assert_eq!(names.len(), 10);
    for name in names {
        assert_eq!(places(&name), "0", "{name}");
    }
}

#[test]
fn queues_of_streams_go_to_the_readers_cpus_from_one_cpu_and_stay_there() {
    let is = |name: &str, cpus: &str| assert!(places(name).starts_with(cpus), "{}", places(name));
    is("A-stream-cpu0", "0,3,4");
    is("A-stream-same", "0,3,4");
}

#[test]
fn the_plan_of_a_plan_is_empty_and_every_plan_gains() {
    for name in names() {
        let observation = look(&name);
        let first = planned(&observation);
        if let Some(cost) = first.predicted.as_ref() {
            assert!(cost.after_ns_per_s < cost.before_ns_per_s, "{name}: {cost:?}");
        }
        let after = apply_to(&observation.after, &first.changes);
        let second = planned(&Observation { after, ..observation });
        assert_eq!(second.changes, [], "{name}");
    }
}
