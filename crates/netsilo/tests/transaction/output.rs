//! Verbs that write while standard output fails. Without `--yes`, nothing is written that could not
//! be shown. With it, the exit code is that of the work.

use netsilo_lab::{on_a_full_disk, output_of, unread};

use super::host::Host;
use super::verbs::on_a_terminal;

#[test]
fn with_yes_the_exit_code_is_that_of_the_work() {
    for (end, error) in [(unread as fn(_) -> _, "Broken pipe"), (on_a_full_disk, "No space left")] {
        for json in [&[][..], &["--json"]] {
            let host = Host::new();
            let done = |verb: &str, more: &[&str]| {
                let (code, text) = output_of(&end(host.verb(verb, &[more, json].concat())));
                let line = format!("netsilo: cannot write to stdout: {error}");
                assert_eq!((code, text.matches(&line).count()), (Some(0), 1), "{verb}: {text}");
            };
            done("apply", &["--yes", "--confirm-within", "1h"]);
            assert_eq!((host.affinities(), host.guards().len()), (["10", "10"].map(Into::into), 1));
            done("confirm", &[]);
            assert_eq!(host.records("confirmed").len(), 1);
            done("undo", &[]);
            assert_eq!(host.affinities(), ["01\n", "01\n"]);
            let plan = host.root().join("plan.json");
            let ab = ["--b", plan.to_str().unwrap(), "--yes", "--settle", "0s", "--pairs", "1"];
            let ab = [&ab[..], json, &["--", "echo", "7"]].concat();
            let (code, text) = output_of(&end(host.verb("ab", &ab)));
            assert_eq!((code, text.contains(error)), (Some(0), true), "{text}");
        }
    }
}

#[test]
fn a_failure_keeps_its_exit_code() {
    let host = Host::new();
    let mut apply = host.hanging_apply("broken\n", &["--yes"]);
    host.let_it_write();
    assert_eq!(apply.wait().unwrap().code(), Some(21));
    for end in [unread, on_a_full_disk] {
        assert_eq!(output_of(&end(host.verb("undo", &[]))).0, Some(21));
    }
}

#[test]
fn without_yes_nothing_is_written_that_could_not_be_shown() {
    for hidden in [">/dev/full", ">&-", ">/dev/null", "--json >&-"] {
        let host = Host::new();
        let (code, text) = on_a_terminal(&host, hidden, "y\n");
        assert_eq!(code, Some(1), "{hidden}: {text}");
        assert!(text.contains("you cannot see what would be written"), "{hidden}: {text}");
        assert_eq!(host.affinities(), ["01\n", "01\n"], "{hidden}");
    }
}

#[test]
fn with_json_the_plan_is_shown_before_the_question() {
    let host = Host::new();
    let out = host.root().join("out");
    let (code, text) = on_a_terminal(&host, &format!("--json >{}", out.display()), "y\n");
    assert_eq!(code, Some(0), "{text}");
    let (plan, question) = (text.find("0 -> 4"), text.find("apply 2 changes? [y/N]"));
    assert!(plan.is_some() && plan < question, "{text}");
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    assert_eq!(result["transaction"], 1);
}
