//! `netsilo-bench report` on a synthetic experiment.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

#[path = "../conforms/mod.rs"]
mod conforms;
mod synthetic;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use netsilo_trial::experiment::compared::CellResult;
use netsilo_trial::experiment::results::Results;
use netsilo_trial::experiment::{EXPERIMENT, Experiment, RECORDS, Record};
use tempfile::TempDir;

/// Runs the program on a folder.
fn report(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo-bench"));
    command.arg("report").arg(folder).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Creates a folder with all records.
fn folder(times_invalid: Option<&str>) -> TempDir {
    let folder = TempDir::new().unwrap();
    synthetic::write(folder.path(), &synthetic::experiment(times_invalid), &synthetic::records());
    folder
}

/// Creates the folder of a forwarding machine.
fn forward_folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let (experiment, records) = synthetic::forward();
    synthetic::write(folder.path(), &experiment, &records);
    folder
}

/// Returns the error for a folder in which one file is replaced or missing.
fn refusal(file: &str, text: Option<&str>) -> String {
    let folder = folder(None);
    let path = folder.path().join(file);
    match text {
        Some(text) => std::fs::write(&path, text).unwrap(),
        None => std::fs::remove_file(&path).unwrap(),
    }
    let output = report(folder.path(), &[]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    stderr(&output).replace(&folder.path().display().to_string(), "RUN").trim_end().to_owned()
}

#[test]
fn markdown_has_verdicts_first_and_names_what_failed() {
    let folder = folder(None);
    let output = report(folder.path(), &[]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    insta::assert_snapshot!("markdown", stdout(&output));
}

#[test]
fn where_times_are_not_meaningful_only_counts_are_judged() {
    let folder = folder(Some("CPUs are emulated"));
    let output = report(folder.path(), &[]);
    let head: Vec<&str> = stdout(&output).lines().take(20).collect();
    insta::assert_snapshot!("markdown_emulated", head.join("\n"));
    let results = conforms::conforming("bench-report", &report(folder.path(), &["-j"]).stdout);
    let results: Results = serde_json::from_value(results).unwrap();
    let all = results.loads.iter().flat_map(|load| &load.settings).flat_map(|cell| &cell.measures);
    for measured in all {
        let Some(against) = &measured.against else { continue };
        assert_eq!(
            against.verdict == CellResult::TimesInvalid,
            measured.measure.is_time(),
            "{}",
            measured.name
        );
    }
}

#[test]
fn too_few_rounds_have_no_verdict_but_tell_the_change() {
    let folder = TempDir::new().unwrap();
    let first_round: Vec<_> = synthetic::records()
        .into_iter()
        .filter(|it| matches!(it, Record::Trial(it) if it.step.round == 0))
        .collect();
    let experiment = Experiment { rounds: 1, ..synthetic::experiment(None) };
    synthetic::write(folder.path(), &experiment, &first_round);
    let output = report(folder.path(), &[]);
    let head: Vec<&str> = stdout(&output).lines().take(12).collect();
    insta::assert_snapshot!(head.join("\n"));
}

#[test]
fn the_cost_of_each_stage_and_the_saving_of_an_early_drop_are_shown() {
    let folder = forward_folder();
    let output = report(folder.path(), &[]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    insta::assert_snapshot!("markdown_forward", stdout(&output));
}

#[test]
fn an_incomplete_last_line_is_left_out_with_a_note() {
    let folder = folder(None);
    let path = folder.path().join(RECORDS);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 40]).unwrap();
    let output = report(folder.path(), &[]);
    let lines = text.lines().count();
    let note = stderr(&output).replace(&folder.path().display().to_string(), "RUN");
    assert_eq!(
        note,
        format!("netsilo-bench: RUN/records.jsonl:{lines}: incomplete last line, left out\n")
    );
    assert!(stdout(&output).contains("1 trial missing"), "{}", stdout(&output));
}

#[test]
fn a_file_that_is_missing_or_wrong_is_refused_with_its_place() {
    let experiment = serde_json::to_string_pretty(&synthetic::experiment(None)).unwrap();
    insta::assert_snapshot!(
        refusal(EXPERIMENT, None),
        @"netsilo-bench: RUN/experiment.json does not exist: name the folder of a run"
    );
    insta::assert_snapshot!(
        refusal(EXPERIMENT, Some(&experiment.replacen("\"schema\"", "\"scheme\"", 1))),
        @"netsilo-bench: RUN/experiment.json: unknown field `scheme`, expected one of `schema`, \
         `kind`, `netsilo`, `command`, `started_s`, `settings`, `loads`, `rounds`, `pause`, \
         `seed`, `machine` at line 2 column 10"
    );
    assert_eq!(
        refusal(EXPERIMENT, Some(r#"{"schema": 9, "netsilo": "0.4.0", "steps": []}"#)).trim_end(),
        format!(
            "netsilo-bench: RUN/experiment.json: it has schema 9, written by netsilo 0.4.0; this \
             is {}, which reads up to 1: use netsilo 0.4.0 or newer",
            env!("CARGO_PKG_VERSION")
        )
    );
    insta::assert_snapshot!(
        refusal(RECORDS, None),
        @"netsilo-bench: RUN/records.jsonl does not exist: nothing has been measured yet"
    );
    insta::assert_snapshot!(
        refusal(RECORDS, Some("\n{\"failed\":7}\n{}\n")),
        @"netsilo-bench: RUN/records.jsonl:2:11: not a record: \
         invalid type: integer `7`, expected struct Failed"
    );
    insta::assert_snapshot!(
        refusal(RECORDS, Some("{\"weather\":{}}\n")),
        @"netsilo-bench: RUN/records.jsonl:1:10: not a record: \
         unknown variant `weather`, expected one of `trial`, `map`, `expected`, `failed`"
    );
}

#[test]
fn a_report_goes_to_the_named_file() {
    let folder = folder(None);
    let file = folder.path().join("report.md");
    let output = report(folder.path(), &["-o", file.to_str().unwrap()]);
    assert_eq!((output.status.code(), stdout(&output), stderr(&output)), (Some(0), "", ""));
    assert_eq!(std::fs::read(&file).unwrap(), report(folder.path(), &[]).stdout);
    let nowhere = report(folder.path(), &["-o", "/nonexistent/report.md"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        stderr(&nowhere).starts_with("netsilo-bench: cannot write /nonexistent/report.md: "),
        "{}",
        stderr(&nowhere)
    );
}
