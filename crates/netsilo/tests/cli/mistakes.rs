//! What is said of a command line or a name with a mistake, and of a failure with `--json`.

use std::process::Command;

use super::bundles::VIRTIO;
use super::predict::outcome;
use super::{code, run, stderr, stdout};

#[test]
fn near_misses_are_named() {
    for (words, tip) in [
        (&["check", "2s"][..], "to observe so long, write --interval 2s"),
        (&["help", "topic"], "netsilo help topics"),
        (&["help", "subject"], "netsilo help subjects"),
        (&["chek"], "a similar subcommand exists: 'check'"),
        (&["show", "et0", "--from", &VIRTIO], "did you mean eth0?"),
        (&["pin", "redis"], "--cpus <CPUS>"),
    ] {
        let output = run(words);
        assert!(code(&output) != 0 && stdout(&output).is_empty(), "{words:?}");
        assert!(stderr(&output).contains(tip), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn hints_repeat_what_the_command_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("its state");
    let list = ["undo", "--transaction", "9", "--state-dir", dir.to_str().unwrap()];
    let hint = format!("netsilo undo --list --state-dir '{}' shows them", dir.display());
    assert!(stderr(&run(&list)).contains(&hint), "{}", stderr(&run(&list)));
    let check = run(&["check", "--from", &VIRTIO]);
    assert!(stderr(&check).contains(&format!("netsilo plan --from {}", *VIRTIO)), "{check:?}");
}

#[test]
fn with_json_each_failure_is_json_on_standard_error() {
    for (words, exit_code) in [
        (&["check", "--json", "--from", "/nowhere"][..], 1),
        (&["show", "-j", "--from", "/nowhere"], 1),
        (&["plan", "--json", "--from", "/nowhere"], 1),
        (&["explain", "--json", "cpu9999", "--from", &VIRTIO], 1),
        (&["predict", "--json", "--setting", "foo=1", "--from", &VIRTIO], 2),
        (&["undo", "--json", "--no-such-option"], 2),
        (&["chek", "--json"], 2),
    ] {
        let output = run(words);
        let json: serde_json::Value = serde_json::from_str(stderr(&output)).unwrap();
        assert_eq!((code(&output), stdout(&output)), (exit_code, ""), "{words:?}");
        assert_eq!((&json["schema"], &json["exit_code"]), (&1.into(), &exit_code.into()), "{json}");
        let is_text = |key: &str| json[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_text("error") && is_text("meaning"), "{json}");
        super::conforming("error", &output.stderr);
    }
}

#[test]
fn a_netdev_or_a_reader_can_be_shown_alone() {
    let only = run(&["show", "eth0", "--from", &VIRTIO]);
    assert_eq!(code(&only), 0);
    assert_eq!(stdout(&only), stdout(&run(&["show", "-n", "eth0", "--from", &VIRTIO])));
    assert!(stdout(&only).contains("\neth0  virtio_net"), "{}", stdout(&only));
    let reader = run(&["explain", "netsilo", "--from", &outcome("veth/tcp-rr-x-16-from-0-0")]);
    let text = stdout(&reader);
    assert!(text.contains("nv0 rx-0 on cpu 0") && text.contains("reads on cpus 1"), "{text}");
    assert!(text.contains("it has no interrupt: whoever sends to it lets it be polled"), "{text}");
}

#[test]
fn a_command_needs_no_stack_of_its_caller() {
    let limited = "ulimit -s 64; exec \"$0\" show --from \"$1\"";
    let netsilo = env!("CARGO_BIN_EXE_netsilo");
    let output = Command::new("sh").args(["-c", limited, netsilo, &VIRTIO]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}
