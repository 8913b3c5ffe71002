//! The JSON Schemas of `docs/schema`: current, and true of what the verbs print.
//!
//! They are derived from the types that are printed. `tests/conforms` holds the output of the
//! program itself to them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jsonschema::Validator;
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::judge::doctor::Diagnosis;
use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::why::{Why, why};
use netsilo_decide::plan::Goal;
use netsilo_decide::report::Report;
use netsilo_decide::report::rss::netdev_rss;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::subject::Subject;
use netsilo_model::synthetic::scene::Scene;
use netsilo_sys::bundle::Manifest;
use netsilo_sys::cost::store::Measurement;
use netsilo_trial::experiment::results::Results;
use netsilo_trial::traffic::LoadResult;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::{Value, json};

use netsilo_predict::comparison::{Comparison, Sweep};
use netsilo_predict::live::forecast::Forecast;
use netsilo_predict::simulate::comparison::SimulatedComparison;

use crate::current::assert_current;
use crate::ndjson::OutputLine;
use crate::tell::status::Status;
use crate::tell::versioned::Versioned;
use crate::verbs::check::CheckResult;
use crate::verbs::confirm::Confirmed;
use crate::verbs::mask::CpuSets;
use crate::verbs::outcomes::OutcomeList;
use crate::verbs::plan::PlanResult;
use crate::verbs::rss::{FlowQueues, RssOfNetdevs};
use crate::views::ab::AbResult;
use crate::views::applied::ApplyResult;
use crate::views::tune::{Candidates, TuneResult};
use crate::views::undone::UndoResult;

const FOLDER: &str = "docs/schema";

/// A schema by its file's name, from the type that these verbs print.
fn schema<T: JsonSchema>(name: &'static str, verbs: &str) -> (&'static str, Value) {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    schema["title"] = format!("{verbs}, schema 1").into();
    (name, schema)
}

fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        schema::<AbResult<'_>>("ab", "netsilo ab --json"),
        schema::<Versioned<ApplyResult<'_>>>("apply", "netsilo apply --json, netsilo pin --json"),
        schema::<LoadResult>("bench-run", "netsilo bench run --json"),
        schema::<Measurement>("calibrate", "netsilo calibrate --json"),
        schema::<Manifest>("capture", "netsilo capture --json"),
        schema::<Versioned<CheckResult<'_>>>("check", "netsilo check --json"),
        schema::<Versioned<Confirmed>>("confirm", "netsilo confirm --json"),
        schema::<Diagnosis>("doctor", "netsilo doctor --json"),
        schema::<Versioned<CpuSets>>("mask", "netsilo mask --json"),
        schema::<OutputLine<'_>>(
            "ndjson",
            "a line of netsilo check --ndjson, netsilo plan --ndjson, netsilo predict --ndjson",
        ),
        schema::<OutcomeList>("outcomes", "netsilo outcomes --json"),
        schema::<Versioned<PlanResult<'_>>>(
            "plan",
            "netsilo plan --json, netsilo pin --dry-run --json",
        ),
        schema::<Versioned<Comparison>>("predict", "netsilo predict --scenario --json"),
        schema::<Versioned<Forecast>>("predict-observed", "netsilo predict --json, without a file"),
        schema::<Versioned<SimulatedComparison>>(
            "predict-simulate",
            "netsilo predict --simulate --json",
        ),
        schema::<Versioned<Sweep>>("predict-sweep", "netsilo predict --sweep --json"),
        schema::<Results>("report", "netsilo report --json of an experiment"),
        schema::<Versioned<RssOfNetdevs>>("rss-show", "netsilo rss show --json"),
        schema::<Versioned<FlowQueues>>("rss-where", "netsilo rss where --json"),
        schema::<Report>("show", "netsilo show --json"),
        schema::<Status>("status", "netsilo status --json"),
        schema::<TuneResult<'_>>("tune", "netsilo tune --json, netsilo report --json of a search"),
        schema::<Versioned<Candidates<'_>>>("tune-dry-run", "netsilo tune --dry-run --json"),
        schema::<Versioned<UndoResult<'_>>>("undo", "netsilo undo --json"),
        schema::<Versioned<Why>>("why", "netsilo why --json"),
    ]
}

#[test]
fn every_schema_is_current_and_numbered() {
    let mut names = BTreeSet::new();
    for (name, schema) in schemas() {
        assert!(schema["properties"]["schema"].is_object(), "{name} has no `schema`");
        assert_current(
            &format!("{FOLDER}/{name}.json"),
            &crate::tell::out::indented(&schema).unwrap(),
        );
        names.insert(format!("{name}.json"));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
    let files = std::fs::read_dir(folder).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.collect::<BTreeSet<_>>(), names);
}

/// Validators by name; to make one takes longer than to use it.
struct Validators(BTreeMap<&'static str, Validator>);

impl Validators {
    fn new() -> Self {
        let validator = |schema| jsonschema::validator_for(&schema).unwrap();
        Self(schemas().into_iter().map(|(name, schema)| (name, validator(schema))).collect())
    }

    /// Fails if a value does not conform to the schema of this name.
    fn check(&self, name: &str, value: impl Serialize) {
        let value = serde_json::to_value(value).unwrap();
        let errors = self.0[name].iter_errors(&value);
        let errors: Vec<_> = errors.map(|it| format!("{}: {it}", it.instance_path())).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

#[test]
fn what_golden_cases_give_conforms() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases");
    let (validators, mut seen) = (Validators::new(), 0);
    for case in std::fs::read_dir(cases).unwrap().map(|it| it.unwrap().path()) {
        let Ok(before) = std::fs::read_to_string(case.join("before.json")) else { continue };
        let scene: Scene = serde_json::from_str(&before).unwrap();
        let goal = std::fs::read_to_string(case.join("goal.json")).unwrap();
        let goal: Goal = serde_json::from_str(&goal).unwrap();
        let (observation, costs) = (scene.observation(), Costs::default());
        let analysis = Analysis::new(&observation, &costs);
        validators.check("plan", Versioned::first(plan_with_verdicts(&analysis, &goal)));
        validators.check("check", Versioned::first(check(&analysis)));
        validators.check("show", Report::of(&analysis));
        for cpu in observation.after.topology.online.iter() {
            if let Ok(why) = why(&analysis, &Subject::Cpu(cpu)) {
                validators.check("why", Versioned::first(why));
            }
        }
        let all = observation.after.netdevs.iter();
        let netdevs = all.map(|netdev| netdev_rss(&observation, netdev)).collect();
        validators.check("rss-show", Versioned::first(RssOfNetdevs { netdevs }));
        seen += 1;
    }
    assert!(seen > 40, "only {seen} cases");
}

#[test]
fn what_does_not_conform_is_noticed() {
    let (_, schema) = schemas().into_iter().find(|(name, _)| *name == "mask").unwrap();
    let is_valid = |value| jsonschema::is_valid(&schema, &value);
    let set = json!({ "what": "cpu 0", "count": 1, "list": "0", "mask": "1", "hex": "0x1" });
    assert!(is_valid(json!({ "schema": 1, "sets": [set] })));
    assert!(!is_valid(json!({ "schema": 1, "sets": [{ "what": 5 }] })));
    assert!(!is_valid(json!({ "sets": [] })));
}
