//! From any observation to report, diagnosis and plan: no bundle makes netsilo panic or produce an
//! invalid plan.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::why::why;
use netsilo_decide::plan::{Goal, Plan, plan};
use netsilo_decide::report::Report;
use netsilo_decide::report::rss::netdev_rss;
use netsilo_model::change::{Change, Target, Value, apply_to};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::subject::Subject;
use netsilo_model::synthetic::scene::Scene;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::json;
use crate::properties::comes_back;
use crate::target::{FuzzTarget, WORKSPACE};

/// The input of `plan --from`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Case {
    observation: Observation,
    goal: Goal,
}

pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, mutate: json::mutate, inputs: 1_000, ..FuzzTarget::bytes(holds) };

fn holds(json: &[u8]) {
    let Ok(case) = serde_json::from_slice::<Case>(json) else { return };
    comes_back(&case);
    let Case { observation, goal } = &case;
    // also checks that no share or rate is NaN or infinite, which JSON prints as null
    let defaults = Costs::default();
    let analysis = Analysis::new(observation, &defaults);
    comes_back(&Report::of(&analysis));
    let checked = check(&analysis);
    if are_subjects(&observation.after) {
        comes_back(&checked);
        explains(&analysis);
    }
    let analysis = Analysis::new(observation, &goal.costs);
    let plan = plan(&analysis, goal);
    comes_back(&plan);
    assert_eq!(netsilo_decide::plan::plan(&analysis, goal), plan);
    if !names_are_unique(&observation.after) {
        return;
    }
    changes_make_sense(&observation.after, &plan);
    if !goal.even_if_owned {
        owners_are_left_alone(&observation.after, &plan);
    }
    undone_is_as_before(&observation.after, &plan);
}

/// Whether the names of all netdevs are read as such; `0` is read as a CPU.
fn are_subjects(snapshot: &Snapshot) -> bool {
    let read = |name: &String| name.parse().ok() == Some(Subject::Netdev(name.clone()));
    snapshot.netdevs.iter().all(|netdev| read(&netdev.name))
}

/// The answers to questions about one object.
fn explains(analysis: &Analysis<'_>) {
    let (observation, after) = (analysis.observation, analysis.after());
    for cpu in after.topology.online.iter().take(4) {
        why(analysis, &Subject::Cpu(cpu)).iter().for_each(comes_back);
    }
    for netdev in &after.netdevs {
        why(analysis, &Subject::Netdev(netdev.name.clone())).iter().for_each(comes_back);
        serde_json::to_string(&netdev_rss(observation, netdev)).expect("plain values");
    }
}

/// Whether names are unique, as on any machine: netdevs, queues of a netdev, kthreads.
fn names_are_unique(snapshot: &Snapshot) -> bool {
    let mut seen = BTreeSet::new();
    let mut unique = |kind: char, name: String| seen.insert((kind, name));
    snapshot.netdevs.iter().all(|dev| {
        unique('n', dev.name.clone())
            && dev.rx_queues.iter().all(|rx| unique('r', format!("{} {}", dev.name, rx.index)))
            && dev.tx_queues.iter().all(|tx| unique('t', format!("{} {}", dev.name, tx.index)))
            && dev
                .napis
                .iter()
                .filter_map(|napi| napi.thread.as_ref())
                .all(|t| unique('p', t.pid.to_string()))
    })
}

fn changes_make_sense(after: &Snapshot, plan: &Plan) {
    let mut seen = BTreeSet::new();
    for change in &plan.changes {
        assert!(seen.insert(&change.target), "{} has two changes", change.target);
        assert_ne!(change.old, change.new, "{} keeps its value", change.target);
        assert_eq!(change.target.value_in(after).as_ref(), Some(&change.old), "{}", change.target);
        assert!(!change.reason.is_empty());
        let placed = matches!(
            change.target,
            Target::IrqAffinity(_) | Target::NapiThread(_) | Target::DefaultSmpAffinity(_)
        );
        if let Value::Cpus(cpus) = &change.new {
            assert!(cpus.is_subset(&after.topology.online), "{} on {cpus}", change.target);
            assert!(!(placed && cpus.is_empty()), "{} on no cpu", change.target);
        }
    }
    for words in
        plan.unchanged.iter().map(|u| &u.reason).chain(plan.refusals.iter().map(|r| &r.reason))
    {
        assert!(!words.is_empty());
    }
}

fn owners_are_left_alone(after: &Snapshot, plan: &Plan) {
    let told = apply_to(after, &plan.changes);
    let owned = |target: &Target| told.knob_owners.iter().any(|it| target.is_owned_by(it));
    let mut moved = plan.changes.iter().map(|change| &change.target);
    let moved = moved.find(|it| matches!(it, Target::IrqAffinity(_)) && owned(it));
    assert!(moved.is_none(), "the plan moves {moved:?}, which another program owns");
}

fn undone_is_as_before(before: &Snapshot, plan: &Plan) {
    let there = apply_to(before, &plan.changes);
    let back: Vec<_> = plan.changes.iter().rev().map(Change::inverse).collect();
    let again = apply_to(&there, &back);
    for change in &plan.changes {
        assert_eq!(change.target.value_in(&there).as_ref(), Some(&change.new), "{}", change.target);
        assert_eq!(change.target.value_in(&again).as_ref(), Some(&change.old), "{}", change.target);
    }
}

/// The golden cases, which are small, some without eBPF; and the cases of findings.
fn seeds() -> Vec<Vec<u8>> {
    let cases = Path::new(WORKSPACE).join("cases");
    let plans = folders(&cases, "before.json").into_iter().enumerate();
    let mut seeds: Vec<Vec<u8>> =
        plans.map(|(number, case)| seed(&case, number % 4 == 0)).collect();
    seeds.extend(
        folders(&cases.join("check"), "finding.json").iter().map(|case| seed_of_finding(case)),
    );
    seeds
}

/// The folders that contain a file with this name.
fn folders(parent: &Path, file: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(parent).expect("the cases").flatten().map(|case| case.path()).collect();
    all.retain(|case| case.join(file).exists());
    all.sort();
    all
}

fn read<T: DeserializeOwned>(path: PathBuf) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a case")).expect("a case's JSON")
}

fn seed(case: &Path, without_bpf: bool) -> Vec<u8> {
    let scene: Scene = read(case.join("before.json"));
    let observation =
        Scene { without_bpf: scene.without_bpf || without_bpf, ..scene }.observation();
    written(Case { observation, goal: read(case.join("goal.json")) })
}

/// A host of a finding, as in `cases/check/`.
#[derive(Deserialize)]
struct Host {
    scene: Scene,
    #[serde(default)]
    patch: json_patch::Patch,
}

fn seed_of_finding(case: &Path) -> Vec<u8> {
    let host: Host = read(case.join("finding.json"));
    let mut observation = serde_json::to_value(host.scene.observation()).expect("plain values");
    json_patch::patch(&mut observation, &host.patch).expect("a case's patch");
    written(Case {
        observation: serde_json::from_value(observation).expect("an observation"),
        goal: Goal::default(),
    })
}

fn written(case: Case) -> Vec<u8> {
    comes_back(&case);
    serde_json::to_vec(&case).expect("plain values")
}
