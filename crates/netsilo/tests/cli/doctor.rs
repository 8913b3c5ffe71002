//! `netsilo doctor` as a program: it names what is missing, on one screen.

use crate::conforms::conforming;
use crate::{bundles, code, run, stderr, stdout};
use std::process::Output;

#[test]
fn doctor_names_what_limits_netsilo_and_how_to_mend_it() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    bundles::write_tree(&tree, 8, &[("proc/812/comm", "irqbalance\n")]);
    let root = tree.to_str().unwrap();
    let config = dir.path().join("netsilo.toml");
    std::fs::write(&config, "exclud = 1\n").unwrap();
    let state = dir.path().join("state");
    let state = ["--root", root, "--state-dir", state.to_str().unwrap()];
    let doctor = |more: &[&str]| run(&[&["doctor", "--json"], &state[..], more].concat());
    let area = |output: &Output, name: &str| {
        let diagnosis = conforming("doctor", &output.stdout);
        assert_eq!(diagnosis["schema"], 1);
        let areas = diagnosis["areas"].as_array().unwrap();
        areas.iter().find(|area| area["name"] == name).unwrap().clone()
    };
    let limited = doctor(&[]);
    assert_eq!((code(&limited), stderr(&limited)), (0, ""));
    let other = &area(&limited, "other programs")["problems"][0];
    assert_eq!(other["what"], "irqbalance (pid 812) writes affinity of interrupts");
    assert_eq!(area(&limited, "kernel")["severity"], "warning", "the tree has no BTF");
    assert_eq!(code(&doctor(&["--fail-on", "warning"])), 11);
    let bad = doctor(&["--config", config.to_str().unwrap()]);
    assert_eq!(code(&bad), 11);
    let words = area(&bad, "daemon")["problems"][0]["what"].to_string();
    assert!(words.contains("unknown key exclud"), "{words}");
}

#[test]
fn doctor_looks_at_this_machine() {
    let output = run(&["doctor", "--fail-on", "critical"]);
    assert_eq!(stderr(&output), "");
    for name in ["kernel ", "privileges ", "eBPF hooks ", "other programs "] {
        assert!(stdout(&output).contains(name), "{}", stdout(&output));
    }
}

/// Number of rows that a terminal of 80 columns needs for a text.
fn rows(text: &str) -> usize {
    text.lines().map(|line| line.chars().count().div_ceil(80).max(1)).sum()
}

#[test]
fn doctor_fits_one_screen_where_little_is_degraded() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    // a kernel with BTF, and irqbalance
    let files = [("proc/812/comm", "irqbalance\n"), ("sys/kernel/btf/vmlinux", "")];
    bundles::write_tree(&tree, 8, &files);
    let state = dir.path().join("state");
    let (root, state) = (tree.to_str().unwrap(), state.to_str().unwrap());
    let output = run(&["doctor", "--root", root, "--state-dir", state]);
    let text = stdout(&output);
    assert!(text.contains("irqbalance (pid 812)") && text.ends_with("problems\n"), "{text}");
    assert!(rows(text) <= 24, "{} rows: {text}", rows(text));
}
