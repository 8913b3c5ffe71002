//! `ab` measures both settings in turn and restores everything, however it ends.

use std::process::{Output, Stdio};

use netsilo_lab::output_of;
use rustix::process::Signal;
use serde_json::Value as Json;

use super::conforms::conforming;
use super::host::Host;
use super::host::kill;

/// Returns a script that runs `there` while the first interrupt is on cpu 4, else `elsewhere`.
fn measuring(host: &Host, there: &str, elsewhere: &str) -> String {
    let file = host.affinity_file(27);
    format!("case $(cat '{}') in *10) {there};; *) {elsewhere};; esac", file.display())
}

fn ab(host: &Host, more: &[&str], script: &str) -> Output {
    let plan = host.root().join("plan.json");
    let mut arguments =
        vec!["--b", plan.to_str().unwrap(), "--yes", "--settle", "0s", "--warm-up", "0"];
    arguments.extend(more);
    arguments.extend(["--", "sh", "-c", script]);
    host.run("ab", &arguments)
}

fn compared(host: &Host, more: &[&str], script: &str) -> Json {
    let output = ab(host, &[more, &["--json"]].concat(), script);
    assert_eq!(output.status.code(), Some(0), "{}", output_of(&output).1);
    conforming("ab", &output.stdout)
}

#[test]
fn a_difference_is_shown_and_everything_is_restored() {
    let host = Host::new();
    let script = measuring(&host, "echo 120", "echo 100");
    let result = compared(&host, &[], &script);
    assert_eq!(
        (&result["verdict"], &result["stop"], &result["pairs_used"]),
        (&"better".into(), &"clear".into(), &8.into())
    );
    assert!((result["change"]["value"].as_f64().unwrap() - 0.2).abs() < 1e-9, "{result}");
    // B is in effect exactly when B is measured
    assert!(
        result["pairs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|pair| pair["a"] == 100.0 && pair["b"] == 120.0),
        "{result}"
    );
    let cost = compared(&host, &["--lower-is-better"], &script);
    assert_eq!(cost["verdict"], "worse");
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
    let begun = host.records("begin").len();
    assert!((2..=16).contains(&begun) && host.records("undone").len() == begun, "{begun}");
    let (code, text) = output_of(&ab(&host, &[], &script));
    assert_eq!(code, Some(0));
    assert!(
        text.contains("B is 20.0% higher (+20.0% .. +20.0%, 95%): better")
            && text.contains("after 8 pairs: clear"),
        "{text}"
    );
}

#[test]
fn no_difference_is_reported_as_none_shown() {
    let host = Host::new();
    let result = compared(&host, &[], "echo 100");
    let outcome = (&result["verdict"], &result["stop"]);
    assert_eq!(outcome, (&"no_difference_shown".into(), &"alike".into()));
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
}

#[test]
fn a_command_that_fails_or_prints_no_number_ends_ab_and_everything_is_restored() {
    let host = Host::new();
    for (script, why) in
        [("exit 3", "exit status: 3"), ("echo none", "printed no number"), ("echo 0", "above 0")]
    {
        let script = measuring(&host, script, "echo 1");
        let (code, text) = output_of(&ab(&host, &[], &script));
        assert!(code == Some(1) && text.contains(why), "{code:?} {text}");
        assert_eq!(host.affinities(), ["01\n", "01\n"]);
    }
    let (code, text) = output_of(&host.run("ab", &["--b", "none", "--yes", "--", "true"]));
    assert!(code == Some(1) && text.contains("there is nothing to compare"), "{text}");
}

#[test]
fn an_interrupt_restores_what_was_switched_on() {
    let host = Host::new();
    let plan = host.root().join("plan.json");
    let script = measuring(&host, "sleep 600", "echo 1");
    let arguments = ["--b", plan.to_str().unwrap(), "--yes", "--", "sh", "-c", &script];
    let child =
        host.verb("ab", &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    host.until("b is in effect", |host| host.affinities() == ["10", "10"]);
    kill(child.id().cast_signed(), Signal::INT).unwrap();
    let (code, text) = output_of(&child.wait_with_output().unwrap());
    assert_eq!(
        (code, host.affinities()),
        (Some(1), ["01\n".to_owned(), "01\n".to_owned()]),
        "{text}"
    );
    assert!(text.contains("interrupted after 0 pairs"), "{text}");
}

#[test]
fn a_guard_restores_however_ab_ends() {
    let started = |host: &Host| {
        let plan = host.root().join("plan.json");
        let script = measuring(host, "sleep 600", "echo 1");
        let arguments = ["--b", plan.to_str().unwrap(), "--yes", "--", "sh", "-c", &script];
        let child = host.start("ab", &arguments);
        host.until("b is in effect", |host| host.affinities() == ["10", "10"]);
        child
    };
    // SIGABRT: a panic in a release build
    for signal in [Signal::ABORT, Signal::KILL] {
        let host = Host::new();
        let mut child = started(&host);
        kill(child.id().cast_signed(), signal).unwrap();
        child.wait().unwrap();
        host.until("the guard restores", |host| host.affinities() == ["01\n", "01\n"]);
        host.until("the guard records it", |host| host.records("undone").len() == 1);
    }
    // without its guard, undo restores
    let host = Host::new();
    let mut child = started(&host);
    for guard in host.guards() {
        kill(guard, Signal::KILL).unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (code, text) = output_of(&host.run("undo", &[]));
    assert_eq!(
        (code, host.affinities()),
        (Some(0), ["01\n".to_owned(), "01\n".to_owned()]),
        "{text}"
    );
}

#[test]
fn a_setting_that_is_undone_while_it_is_measured_ends_ab() {
    let host = Host::new();
    let undo = host.words("undo", &[]);
    let script = measuring(&host, &format!("{undo} >/dev/null; echo 1"), "echo 1");
    let (code, text) = output_of(&ab(&host, &[], &script));
    assert!(code == Some(1) && text.contains("restored during the measurement"), "{code:?} {text}");
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
}

#[test]
fn a_verified_plan_is_applied_unless_it_was_worse() {
    let host = Host::new();
    // it is unknown what this machine receives meanwhile, so each of the answers is possible
    let (code, text) = output_of(&host.run("apply", &["--yes", "--verify=50ms"]));
    let worse = text.contains(": worse");
    let answers =
        ["not verified: nothing is received", "no difference shown", ": better", ": worse"];
    assert!(answers.iter().any(|words| text.contains(words)), "{text}");
    let (expected, in_effect) = if worse { (1, "01\n") } else { (0, "10") };
    assert_eq!(
        (code, host.affinities()),
        (Some(expected), [in_effect.to_owned(), in_effect.to_owned()]),
        "{text}"
    );
    let open = host.records("begin").len() - host.records("undone").len();
    assert_eq!(open, usize::from(!worse), "{text}");
}
