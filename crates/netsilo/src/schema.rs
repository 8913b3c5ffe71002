//! The JSON Schema `docs/schema.json` is current and matches what the verbs print.
//!
//! The schema is derived from the types that are printed. `tests/conforms` checks the output of the
//! program itself against it.

use std::collections::BTreeMap;
use std::path::Path;

use jsonschema::Validator;
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::judge::disturbances::{Disturbances, disturbances};
use netsilo_decide::judge::doctor::Diagnosis;
use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::why::{Why, why};
use netsilo_decide::plan::Goal;
use netsilo_decide::report::Report;
use netsilo_decide::report::difference::Difference;
use netsilo_decide::report::rss::netdev_rss;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::subject::Subject;
use netsilo_model::synthetic::scene::Scene;
use netsilo_sys::bundle::Manifest;
use netsilo_sys::cost::store::Measurement;
use netsilo_trial::experiment::results::Results;
use netsilo_trial::traffic::LoadResult;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use netsilo_predict::comparison::{Comparison, Sweep};
use netsilo_predict::live::forecast::Forecast;

use crate::current::assert_current;
use crate::ndjson::OutputLine;
use crate::tell::exit::ErrorDocument;
use crate::tell::status::Status;
use crate::tell::versioned::Versioned;
use crate::tune::kept_outcomes::OutcomeList;

use crate::verbs::confirm::Confirmed;
use crate::verbs::keep::KeepResult;
use crate::verbs::plan::PlanResult;
use crate::verbs::rss::{FlowQueues, RssOfNetdevs};
use crate::views::ab::AbResult;
use crate::views::applied::ApplyResult;
use crate::views::transactions::Transactions;
use crate::views::tune::{Candidates, TuneResult};
use crate::views::undone::UndoResult;

mod released;

const FILE: &str = "docs/schema.json";

/// The schema of one document.
struct Document {
    /// Its name among the definitions.
    name: &'static str,
    schema: Schema,
}

/// Describes the type that these verbs print. Adds the types of its fields to the definitions.
fn document<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    name: &'static str,
    verbs: &str,
) -> Document {
    let mut schema = T::json_schema(generator);
    schema.insert("title".into(), verbs.into());
    Document { name, schema }
}

/// One schema for all documents; `#/$defs/NAME` is the schema of one of them.
fn schema() -> (Value, Vec<&'static str>) {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let documents = documents(&mut generator);
    let names: Vec<_> = documents.iter().map(|document| document.name).collect();
    let mut definitions = generator.take_definitions(true);
    for Document { name, schema } in documents {
        assert!(schema.get("properties").is_some(), "{name} is no object");
        assert!(definitions.insert(name.into(), schema.to_value()).is_none(), "two are {name}");
    }
    let any: Vec<_> = names.iter().map(|name| json!({ "$ref": definition(name) })).collect();
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What netsilo prints as JSON, schema 1",
        "anyOf": any,
        "$defs": definitions,
    });
    (schema, names)
}

fn definition(name: &str) -> String {
    format!("#/$defs/{name}")
}

fn documents(generator: &mut SchemaGenerator) -> Vec<Document> {
    vec![
        document::<AbResult<'_>>(generator, "ab", "netsilo ab --json"),
        document::<Versioned<ApplyResult<'_>>>(
            generator,
            "apply",
            "netsilo apply --json, netsilo isolate --json, netsilo pin --json",
        ),
        document::<Results>(generator, "bench-report", "netsilo-bench report --json"),
        document::<LoadResult>(generator, "bench-run", "netsilo-bench run --json"),
        document::<Measurement>(generator, "calibrate", "netsilo calibrate --json"),
        document::<Manifest>(generator, "capture", "netsilo capture --json"),
        document::<Versioned<Check>>(generator, "check", "netsilo check --json"),
        document::<Versioned<Disturbances>>(generator, "check-cpus", "netsilo check --cpus --json"),
        document::<Versioned<Confirmed>>(generator, "confirm", "netsilo confirm --json"),
        document::<Diagnosis>(generator, "doctor", "netsilo doctor --json"),
        document::<Versioned<KeepResult>>(generator, "keep", "netsilo keep --json"),
        document::<OutputLine<'_>>(
            generator,
            "ndjson",
            "a line of netsilo check --ndjson, netsilo plan --ndjson, netsilo predict --ndjson",
        ),
        document::<OutcomeList>(generator, "outcomes", "netsilo tune --outcomes --json"),
        document::<Versioned<PlanResult<'_>>>(
            generator,
            "plan",
            "netsilo plan --json, netsilo isolate --dry-run --json, netsilo pin --dry-run --json",
        ),
        document::<Versioned<Comparison>>(
            generator,
            "predict",
            "netsilo predict --scenario --json",
        ),
        document::<Versioned<Forecast>>(
            generator,
            "predict-observed",
            "netsilo predict --json, without a file",
        ),
        document::<Versioned<Sweep>>(generator, "predict-sweep", "netsilo predict --sweep --json"),
        document::<Versioned<RssOfNetdevs>>(generator, "rss-show", "netsilo rss show --json"),
        document::<Versioned<FlowQueues>>(generator, "rss-where", "netsilo rss where --json"),
        document::<Report>(generator, "show", "netsilo show --json"),
        document::<Versioned<Difference>>(
            generator,
            "show-against",
            "netsilo show --against --json",
        ),
        document::<Status>(generator, "status", "netsilo status --json"),
        document::<TuneResult<'_>>(generator, "tune", "netsilo tune --json"),
        document::<Versioned<Candidates<'_>>>(
            generator,
            "tune-dry-run",
            "netsilo tune --dry-run --json",
        ),
        document::<Versioned<UndoResult<'_>>>(generator, "undo", "netsilo undo --json"),
        document::<Versioned<Transactions<'_>>>(
            generator,
            "undo-list",
            "netsilo undo --list --json, netsilo undo --dry-run --json",
        ),
        document::<Versioned<Why>>(generator, "explain", "netsilo explain --json"),
        document::<Versioned<ErrorDocument>>(
            generator,
            "error",
            "on standard error, if a command with --json fails",
        ),
    ]
}

#[test]
fn the_schema_is_current_and_numbers_every_document() {
    let (schema, names) = schema();
    for name in names {
        let properties = &schema["$defs"][name]["properties"];
        assert!(properties["schema"].is_object(), "{name} has no `schema`");
    }
    assert_current(FILE, &crate::tell::out::indented(&schema).unwrap());
}

/// Validators by name. They are kept because making one takes longer than using it.
struct Validators(BTreeMap<&'static str, Validator>);

impl Validators {
    fn new() -> Self {
        let (schema, names) = schema();
        Self(names.into_iter().map(|name| (name, validator(&schema, name))).collect())
    }

    /// Fails if a value does not conform to the schema of this name.
    fn check(&self, name: &str, value: impl Serialize) {
        let value = serde_json::to_value(value).unwrap();
        let errors = self.0[name].iter_errors(&value);
        let errors: Vec<_> = errors.map(|it| format!("{}: {it}", it.instance_path())).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

/// The validator of one document.
fn validator(schema: &Value, name: &str) -> Validator {
    let one = json!({ "$ref": definition(name), "$defs": schema["$defs"] });
    jsonschema::validator_for(&one).unwrap()
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
        let plan = plan_with_verdicts(&analysis, &goal);
        validators.check("plan", Versioned::first(PlanResult::new(&plan, None)));
        validators.check("check", Versioned::first(check(&analysis)));
        validators.check("show", Report::of(&analysis));
        let found = disturbances(&analysis, &observation.after.topology.online);
        validators.check("check-cpus", Versioned::first(found));
        for cpu in observation.after.topology.online.iter() {
            if let Ok(why) = why(&analysis, &Subject::Cpu(cpu)) {
                validators.check("explain", Versioned::first(why));
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
    let confirm = validator(&schema().0, "confirm");
    assert!(confirm.is_valid(&json!({ "schema": 1, "confirmed": 7 })));
    assert!(!confirm.is_valid(&json!({ "schema": 1, "confirmed": "yes" })));
    assert!(!confirm.is_valid(&json!({ "confirmed": 7 })));
}
