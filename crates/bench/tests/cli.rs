//! The command line of `netsilo-bench`.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("20").arg(env!("CARGO_BIN_EXE_netsilo-bench")).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn help_lists_the_verbs_as_recorded_and_each_verb_has_its_examples() {
    let help = |verb: &[&str]| {
        let output = run(&[verb, &["--help"]].concat());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{verb:?}");
        text(&output.stdout).to_owned()
    };
    insta::assert_snapshot!("help-", help(&[]));
    for ending in netsilo_bench::cli::ENDINGS {
        let help = help(&[ending.verb]);
        let (_, end) = help.split_once("\nExamples:\n").expect(ending.verb);
        for (example, does) in ending.examples {
            assert!(end.contains(example) && end.contains(does), "{end}");
        }
    }
}

#[test]
fn a_definition_is_printed_as_it_is() {
    let output = run(&["experiment", "silo", "--print"]);
    assert_eq!(text(&output.stdout), include_str!("../src/definitions/silo.toml"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn an_invalid_command_line_is_a_usage_error() {
    for (arguments, why) in [
        (&["run", "127.0.0.1", "-d", "18446744073709551615s"][..], "at most 30 days"),
        (&["experiment", "matrix"], "--peer <HOST[:PORT]>"),
        (&["experiment", "--peer", "192.0.2.1"], "<NAME|FILE>"),
        (&["experiment", "matrix", "--resume", "run-1"], "cannot be used with"),
        (&["experiment", "forward", "--peer", "192.0.2.1"], "give --peer twice"),
        (&["serve", "--only-answer", "--may-load", "192.0.2.1"], "cannot be used with"),
    ] {
        let output = run(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn an_experiment_that_is_not_known_is_refused_with_the_names_of_those_that_are() {
    let output = run(&["experiment", "matrixx", "--peer", "192.0.2.1"]);
    assert_eq!(output.status.code(), Some(1));
    let why = "choose one of matrix, silo, stream, rps-guest, forward, or name a file";
    assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["experiment.json", "how.json"] {
        let made = Command::new("mkfifo").arg(dir.path().join(name)).status();
        assert!(made.unwrap().success());
    }
    let folder = dir.path().to_str().unwrap();
    let pipe = dir.path().join("experiment.json");
    for arguments in [
        &["report", folder][..],
        &["experiment", "--resume", folder],
        &["experiment", pipe.to_str().unwrap(), "--peer", "192.0.2.1"],
    ] {
        let output = run(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{arguments:?}");
        let error = text(&output.stderr);
        let why = "it is a pipe: name a regular file";
        assert!(error.contains(folder) && error.contains(why), "{arguments:?}: {error}");
    }
}
