//! Golden cases: each folder of `cases/` holds a host (`before.json`, a [`Scene`], or
//! `before.tar.zst`, a bundle), a `goal.json`, and the values of the plan (`plan.snap`). A case
//! without a host has that of `virtio-all-on-cpu0`. To add a case, add a folder with `goal.json`
//! and, if needed, the host; `make generate` writes the rest.
//!
//! `cases/check/<id>/` belongs to a finding: `finding.json` holds a [`Scene`] and, for what a scene
//! cannot express, a JSON Patch (RFC 6902) on its observation. The finding appears there with the
//! values of `fires.snap`. `almost` has other values for some places (by JSON Pointer, `/scene/...`
//! in the scene, `/after/...` in the observation), with each of which the finding narrowly does not
//! appear: its numbers are close to the thresholds. `milder` is the same for a severity: the
//! finding appears, but is less severe.
//!
//! `cases/knobs/<kind>/` belongs to a knob. `knob.json` holds a change of the knob and the kernel's
//! text of the old value; `knob.snap` shows the change as a plan and in all export formats.
//! `cases/knobs/order.snap` has the order in which a plan changes the knobs, and how the changes
//! affect traffic and each other.
//!
//! Cases record values. Of sentences they record only figures and names ([`values`]); the views
//! test how values are printed. `cases/reasons.snap` has the words with which plans leave something
//! unchanged or give advice, each with its cases, because a case can record a reason in no other
//! form.
//!
//! Each algorithm has a case. Each finding and each knob has a folder. No folder lacks a file or
//! has an unexpected one.

mod choices;
mod exports;
mod knobs;
mod remedies;
mod unknown;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cases::values::Names;
use crate::current::{GENERATED, assert_current};
use crate::tell::words::plural;
use crate::verbs::explain::first_sentence;
use crate::views;
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::judge::evidence::Gain;
use netsilo_decide::judge::findings::{Check, Finding, FindingId, Severity, check};
use netsilo_decide::judge::fix::FixRequest;
use netsilo_decide::place::AlgorithmName;
use netsilo_decide::plan::{Goal, Plan};
use netsilo_model::change::knobs::kinds;
use netsilo_model::change::{Change, apply_to, shell_word};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::scene::Scene;
use netsilo_sys::bundle;
use serde_json::Value;

fn planned(observation: &Observation, goal: &Goal) -> Plan {
    plan_with_verdicts(&Analysis::new(observation, &goal.costs), goal)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The host of a plan's case.
enum Before {
    Scene(Box<Scene>),
    Bundle(Box<Observation>),
}

impl Before {
    fn read(case: &Path) -> Self {
        let bundle = case.join(BUNDLE);
        if bundle.exists() {
            Self::Bundle(Box::new(bundle::open(bundle).unwrap()))
        } else {
            let own = case.join("before.json");
            let scene = if own.exists() { own } else { cases().join(DEFAULT_SCENE) };
            Self::Scene(Box::new(read(&scene)))
        }
    }

    fn observation(&self) -> Observation {
        match self {
            Self::Scene(scene) => scene.observation(),
            Self::Bundle(observation) => Observation::clone(observation),
        }
    }

    /// The host after these changes. In a bundle, the load stays where it was.
    fn after(&self, changes: &[Change]) -> Observation {
        match self {
            Self::Scene(scene) => scene.observe(&apply_to(&scene.settings(), changes)),
            Self::Bundle(observation) => {
                let after = apply_to(&observation.after, changes);
                Observation { after, ..Observation::clone(observation) }
            }
        }
    }
}

const BUNDLE: &str = "before.tar.zst";

/// The host of cases that have none of their own.
const DEFAULT_SCENE: &str = "virtio-all-on-cpu0/before.json";

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases")
}

/// The entries of a folder, by name, without snapshots that nobody has accepted yet.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
    let mut names: BTreeSet<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.ends_with(".snap.new"));
    names
}

/// Whether a text has a zero with a sign, which the sum of no addends is.
fn has_negative_zero(text: &str) -> bool {
    let words = text.split(|c: char| c.is_whitespace() || "(),;[]\"".contains(c));
    let mut numbers = words.filter_map(|word| word.trim_end_matches('%').strip_prefix("-0"));
    numbers.any(|rest| rest.bytes().all(|b| matches!(b, b'0' | b'.')))
}

/// Compares values with the snapshot that has this name in a folder.
fn assert_recorded(folder: &Path, name: &str, text: &str) {
    assert!(!has_negative_zero(text), "{name} has a negative zero: {text}");
    insta::with_settings!({
        snapshot_path => folder,
        prepend_module_to_snapshot => false,
        omit_expression => true,
        description => GENERATED,
    }, {
        insta::assert_snapshot!(name, text);
    });
}

/// The folders of plans: all except those of findings, knobs and predictions.
fn plans() -> Vec<PathBuf> {
    let names = names(&cases())
        .into_iter()
        .filter(|name| !["check", "knobs", "predict", "reasons.snap"].contains(&name.as_str()));
    names.map(|name| cases().join(name)).collect()
}

#[test]
fn no_case_lacks_a_file_or_has_another_one() {
    let mut wrong = Vec::new();
    let mut expect = |case: &Path, files: &[&str]| {
        let files: BTreeSet<_> = files.iter().map(|file| (*file).to_owned()).collect();
        let present = names(case);
        let told = |what: &str, file: &String| {
            let generated = if file.ends_with(".snap") { GENERATED } else { "" };
            format!("{what}: {} {generated}", case.join(file).display())
        };
        wrong.extend(files.difference(&present).map(|file| told("missing", file)));
        wrong.extend(present.difference(&files).map(|file| told("not part of a case", file)));
    };
    for case in plans() {
        let mut files = vec!["goal.json", "plan.snap"];
        files.extend([BUNDLE, "before.json"].iter().find(|file| case.join(file).exists()));
        files.extend(EXPORTED.iter().find(|name| case.ends_with(name)).map(|_| "export.snap"));
        expect(&case, &files);
    }
    let ids: Vec<_> = FindingId::ALL.iter().map(|id| id.as_str()).collect();
    expect(&cases().join("check"), &ids);
    let kinds = kinds();
    expect(&cases().join("knobs"), &[&kinds[..], &["order.snap"]].concat());
    for kind in kinds {
        expect(&cases().join("knobs").join(kind), &["knob.json", "knob.snap"]);
    }
    for id in ids {
        let files = ["finding.json", "fires.snap"];
        expect(&cases().join("check").join(id), &files);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_algorithm_has_a_case() {
    let mut without: BTreeSet<AlgorithmName> = AlgorithmName::ALL.iter().copied().collect();
    for case in plans() {
        let goal: Goal = read(&case.join("goal.json"));
        without.remove(&goal.algorithm);
    }
    let missing = without.iter().map(|it| {
        format!("write {{ \"algorithm\": \"{it}\" }} to cases/{it}/goal.json, and `make generate`")
    });
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_case_plans_as_recorded() {
    let mut reasons: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for case in plans() {
        let before = Before::read(&case);
        let goal: Goal = read(&case.join("goal.json"));
        let observation = before.observation();
        let first = planned(&observation, &goal);
        let names = Names::of_threads(&observation);
        assert_recorded(&case, "plan", &values::plan(&first, &names));
        assert_is_printed(&case, &first);
        let left_alone = first.all_unchanged().map(|it| (&it.subject, &it.reason));
        let advised = first.advice.iter().map(|it| (&it.subject, &it.text));
        for (subject, reason) in left_alone.chain(advised) {
            let name = case.file_name().unwrap().to_str().unwrap();
            let of_case = format!("{name}: {subject}");
            reasons.entry(names.wording(reason)).or_default().insert(of_case);
        }
        assert_eq!(
            planned(&before.after(&first.changes), &goal).changes,
            [],
            "{}: after its plan, another plan has changes",
            case.display()
        );
    }
    let reasons = reasons.into_iter().map(|(reason, cases)| {
        let cases: String = cases.iter().map(|case| format!("  {case}\n")).collect();
        format!("{reason}\n{cases}")
    });
    assert_recorded(&cases(), "reasons", &reasons.collect::<String>());
}

/// Whether a text has a name, or has it among the queues of a netdev: `eth0 rx-2-3,5`.
fn is_named(text: &str, name: &str) -> bool {
    let among = |(stem, number): (&str, &str)| {
        let number: u32 = number.parse().ok()?;
        let lists = text.match_indices(stem).filter_map(|(at, _)| {
            let list = text[at + stem.len()..].strip_prefix('-')?;
            let end = list.find(|c: char| !c.is_ascii_digit() && !"-,".contains(c));
            CpuSet::parse_list(list[..end.unwrap_or(list.len())].trim_end_matches(',')).ok()
        });
        Some(lists.into_iter().any(|queues| queues.contains(CpuId(number))))
    };
    text.contains(name) || name.rsplit_once('-').and_then(among) == Some(true)
}

/// Checks that the text of a plan contains all its values.
fn assert_is_printed(case: &Path, plan: &Plan) {
    let text = views::plan::render(plan).to_string();
    let mut parts: Vec<String> = Vec::new();
    for change in &plan.changes {
        let (old, new) = change.from_to();
        parts.push(format!("  {}: {old} -> {new} ", change.target));
        // Where it is not the first with its reason, only its queue is repeated.
        let parts_of_reason = change.reason.splitn(2, ": ").map(str::to_owned);
        parts.extend(parts_of_reason);
    }
    let refused = plan.refusals.iter().map(|it| (&it.subject, &it.reason));
    let unchanged = plan.all_unchanged().map(|it| (&it.subject, &it.reason));
    let advice = plan.advice.iter().map(|it| (&it.subject, &it.text));
    for (subject, reason) in refused.chain(unchanged).chain(advice) {
        assert!(is_named(&text, subject), "{}: {subject:?} in {text}", case.display());
        parts.push(reason.clone());
    }
    for part in parts {
        let is_sentence = !part.is_empty() && !part.contains('\n') && !part.ends_with('.');
        assert!(is_sentence && text.contains(&part), "{}: {part:?} in {text}", case.display());
    }
}

/// Cases whose plans together change every kind of setting.
const EXPORTED: [&str; 5] =
    ["virtio-all-on-cpu0", "threaded-napi", "rfs-off", "xps-near", "rps-leaves-isolated-cpus-out"];

#[test]
fn every_export_is_as_recorded() {
    for name in EXPORTED {
        let case = cases().join(name);
        let goal: Goal = read(&case.join("goal.json"));
        let plan = planned(&Before::read(&case).observation(), &goal);
        assert_recorded(&case, "export", &exports::all(&plan));
        exports::checked(&plan);
    }
}

/// Values of a host by JSON Pointer: those in `/scene` are of its scene, others of its observation.
type Values = BTreeMap<String, Value>;

/// The case of a finding, `cases/check/<id>/finding.json`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingCase {
    scene: Scene,
    #[serde(default)]
    patch: json_patch::Patch,
    almost: Vec<Values>,
    #[serde(default)]
    milder: Vec<Values>,
}

/// The largest factor between a number of `almost` or `milder` and the threshold that it misses.
const NARROW: f64 = 1.3;

impl FindingCase {
    fn of(id: FindingId) -> Self {
        read(&cases().join("check").join(id.as_str()).join("finding.json"))
    }

    /// The host as JSON: its scene and its observation.
    fn json(&self, values: &Values) -> [Value; 2] {
        let mut scene = serde_json::to_value(&self.scene).unwrap();
        let of_scene = |it: &(&String, &Value)| it.0.starts_with("/scene/");
        let (in_scene, others): (Vec<_>, Vec<_>) = values.iter().partition(of_scene);
        for (pointer, value) in in_scene {
            set(&mut scene, pointer.trim_start_matches("/scene"), value);
        }
        let host: Scene = serde_json::from_value(scene.clone()).unwrap();
        let mut observation = serde_json::to_value(host.observation()).unwrap();
        json_patch::patch(&mut observation, &self.patch)
            .unwrap_or_else(|error| panic!("{error}, in {}", self.patch));
        for (pointer, value) in others {
            set(&mut observation, pointer, value);
        }
        [scene, observation]
    }

    /// Observes the host with these values.
    fn observe(&self, values: &Values) -> Observation {
        let [_, observation] = self.json(values);
        serde_json::from_value(observation).unwrap()
    }

    /// The highest severity of the findings with this id on the host with these values.
    fn severity(&self, id: FindingId, values: &Values) -> Option<Severity> {
        self.found(id, values).findings.iter().map(|finding| finding.severity).max()
    }

    /// Runs `check` on the host with these values and keeps the findings with this id.
    fn found(&self, id: FindingId, values: &Values) -> Check {
        found_in(&self.observe(values), id)
    }

    /// The values of `almost`, each number a step closer to that of the host; `None` without one.
    fn closer(&self, almost: &Values) -> Option<Values> {
        let [scene, observation] = self.json(&Values::new());
        let mut closer = almost.clone();
        for (pointer, value) in &mut closer {
            let of_scene = pointer.strip_prefix("/scene").and_then(|it| scene.pointer(it));
            let fires = of_scene.or_else(|| observation.pointer(pointer)).unwrap();
            if let (Some(from), Some(to)) = (value.as_f64(), fires.as_f64()) {
                *value = if value.is_f64() || fires.is_f64() {
                    step(from, to, 0.0).into()
                } else {
                    (step(from, to, 1.0).round() as i64).into()
                };
            }
        }
        (closer != *almost).then_some(closer)
    }
}

/// A number that is closer to another one by [`NARROW`], and at least by this difference.
fn step(from: f64, to: f64, least: f64) -> f64 {
    if from < to {
        (from * NARROW).max(from + least).min(to)
    } else {
        (from / NARROW).min(from - least).max(to)
    }
}

fn set(host: &mut Value, pointer: &str, value: &Value) {
    let old = host.pointer_mut(pointer);
    *old.unwrap_or_else(|| panic!("{pointer}: the host has no such value")) = value.clone();
}

fn found_in(observation: &Observation, id: FindingId) -> Check {
    let mut check = check(&Analysis::new(observation, &Costs::default()));
    check.findings.retain(|finding| finding.id == id);
    check.verdicts.clear();
    check
}

#[test]
fn every_finding_fires_and_almost_does_not() {
    let mut wrong = Vec::new();
    for id in FindingId::ALL {
        let case = FindingCase::of(*id);
        let observation = case.observe(&Values::new());
        let found = found_in(&observation, *id);
        if found.findings.is_empty() {
            wrong.push(format!("{id}: not found in its case"));
            continue;
        }
        let names = Names::of_threads(&observation);
        let folder = cases().join("check").join(id.as_str());
        assert_recorded(&folder, "fires", &values::check(&found, &names));
        assert_is_told(&found);
        assert!(!case.almost.is_empty(), "{id}: `almost` needs values with which it is not found");
        let found = case.almost.iter().filter(|it| !case.found(*id, it).findings.is_empty());
        wrong.extend(found.map(|almost| format!("{id}: found with {almost:?} too")));
        let severe = case.severity(*id, &Values::new());
        let milder = |it: &&Values| {
            let severity = case.severity(*id, it);
            severity.is_none() || severity >= severe
        };
        let unlike = case.milder.iter().filter(milder);
        wrong.extend(unlike.map(|milder| format!("{id}: not milder with {milder:?}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_number_of_almost_and_milder_is_close_to_the_threshold_of_the_finding() {
    let mut wrong = Vec::new();
    for id in FindingId::ALL {
        let case = FindingCase::of(*id);
        let closer = |all: &[Values]| -> Vec<Values> {
            all.iter().filter_map(|values| case.closer(values)).collect()
        };
        let mut far = closer(&case.almost);
        far.retain(|values| case.found(*id, values).findings.is_empty());
        let severe = case.severity(*id, &Values::new());
        let milder = closer(&case.milder);
        far.extend(milder.into_iter().filter(|values| case.severity(*id, values) != severe));
        wrong.extend(
            far.into_iter().map(|values| format!("{id}: not found either with {values:?}")),
        );
    }
    assert!(
        wrong.is_empty(),
        "move the numbers of `almost` or `milder` closer to the thresholds:\n{}",
        wrong.join("\n")
    );
}

/// Checks that the text about findings contains each part of them.
fn assert_is_told(check: &Check) {
    let text = views::check::render(check, true).to_string();
    for finding in &check.findings {
        let Finding { id, severity, subject, title, evidence, remedies } = finding;
        let mut parts = vec![format!("{subject}: {title}"), severity.as_str().into()];
        parts.push(format!("[{id}]\n"));
        for (quantity, (measure, source), queues) in views::check::equal_evidence(evidence) {
            let each = if queues > 1 { " each" } else { "" };
            parts.extend([quantity, format!(" {measure}{each} ({source})")]);
        }
        for it in remedies {
            parts.push(format!("do: {}", it.what));
            parts.extend(it.cost.clone().into_iter().chain(it.not_when.clone()));
            match &it.gain {
                Gain::AtMost { of, basis, .. } => parts.push(format!(" of {of}: {basis}")),
                Gain::Forecast { limit, .. } => parts.push(limit.clone()),
                Gain::Unknown(why) | Gain::Nothing(why) => parts.push(why.clone()),
            }
        }
        if let Some(remedy) = finding.writable() {
            let fix = shell_word(&FixRequest::of(finding).to_string());
            let settings = plural(remedy.changes.len(), "setting");
            parts.push(format!("netsilo plan --fix {fix} ({settings}"));
        }
        let has_empty = |it: &String| it.trim().is_empty() || it.ends_with(": ");
        assert!(!parts.iter().any(has_empty) && !title.contains('\n'), "{id}: {parts:?}");
        for part in parts {
            assert!(text.contains(&part), "{id}: {part:?} in {text}");
        }
    }
}

/// The severity of a finding in its case.
fn severity(id: FindingId) -> Severity {
    FindingCase::of(id).found(id, &Values::new()).findings[0].severity
}

#[test]
fn the_page_of_each_problem_has_all_sections() {
    let sections = ["Why it matters", "Evidence", "What to do", "When not to", "References"]
        .map(|title| format!("\n## {title}\n"));
    for id in FindingId::ALL.iter().filter(|id| severity(**id) > Severity::Ok) {
        for section in &sections {
            assert!(id.page().contains(section), "{id}: {section:?} is missing");
        }
    }
}

/// `docs/findings.md` from the first heading of a family, and the findings in `docs/SUMMARY.md`.
#[test]
fn the_lists_of_findings_are_current() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let list = fs::read_to_string(docs.join("findings.md")).unwrap();
    let mut page = list.split("\n## ").next().unwrap().to_owned();
    for (family, ids) in FindingId::BY_FAMILY {
        let _ =
            write!(page, "\n## {family}\n| finding | severity | what it means |\n|---|---|---|\n");
        for id in *ids {
            let (severity, means) = (severity(*id).as_str(), first_sentence(id.page()));
            let _ = writeln!(page, "| [{id}](findings/{id}.md) | {severity} | {means} |");
        }
    }
    assert_current("docs/findings.md", &page);

    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let other: Vec<&str> = summary.lines().filter(|it| !it.contains("](findings/")).collect();
    let mut pages = String::new();
    for line in other {
        let _ = writeln!(pages, "{line}");
        if line == "- [Findings](findings.md)" {
            FindingId::ALL.iter().for_each(|id| {
                let _ = writeln!(pages, "  - [{id}](findings/{id}.md)");
            });
        }
    }
    assert_current("docs/SUMMARY.md", &pages);
}

#[test]
fn a_full_listener_whose_limit_was_not_read_gets_the_limit_of_the_kernel_as_a_fix() {
    let unread = [("/after/losing_sockets/0/limit".to_owned(), Value::Null)].into();
    let id = FindingId::ListenOverflow;
    let found = FindingCase::of(id).found(id, &unread);
    let remedy = &found.findings[0].remedies[0];
    assert!(remedy.what.contains("current value was not read"), "{}", remedy.what);
    assert_eq!(remedy.changes[0].target.to_string(), "net.core.somaxconn");
}

#[test]
fn a_stalled_tx_queue_is_named_before_the_readers_that_it_delays() {
    let mut stalled = FindingCase::of(FindingId::TxStalled);
    stalled.patch.0.extend(FindingCase::of(FindingId::SocketBufferOverflow).patch.0);
    let observation = stalled.observe(&Values::new());
    let check = check(&Analysis::new(&observation, &Costs::default()));
    let at = |id| check.findings.iter().position(|finding| finding.id == id).unwrap();
    assert!(at(FindingId::TxStalled) < at(FindingId::SocketBufferOverflow));
}
