//! `netsilo predict`, and the forecast of `plan`.

use crate::bundles::VIRTIO;
use crate::{code, refusal, run, stderr, stdout};

pub(super) fn scenario(name: &str) -> String {
    format!("{}/../../cases/predict/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_plan_ends_with_its_forecast_or_the_reason_why_it_has_none() {
    let last = |from: &str| {
        let output = run(&["plan", "--from", from, "--algorithm", "same-cpu"]);
        stdout(&output).lines().last().unwrap_or_default().to_owned()
    };
    let line = last(&outcome("veth/tcp-rr-x-16-from-0-0"));
    assert!(line.starts_with("forecast: this load fits x"), "{line}");
    assert!(line.contains(" now (limit: ") && line.contains("% to "), "{line}");
    let line = last(&VIRTIO);
    assert!(line.starts_with("forecast: ") || line.starts_with("no forecast: "), "{line}");
}

#[test]
fn the_page_of_predict_shows_what_is_printed() {
    let page = format!("{}/../../docs/predict.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).unwrap();
    let file = scenario("request-response");
    for more in [&[][..], &["--sweep", "load.instances=1..2000/8"]] {
        let output = run(&[&["predict", "--scenario", &file], more].concat());
        assert_eq!((code(&output), stderr(&output)), (0, ""));
        let block: String = stdout(&output).lines().map(|line| format!("    {line}\n")).collect();
        assert!(page.contains(&block), "docs/predict.md lacks:\n{block}");
    }
}

/// A bundle that a measurement of outcomes stored.
pub(super) fn outcome(name: &str) -> String {
    format!("{}/../../fixtures/outcomes/{name}.tar.zst", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn settings_and_plans_are_predicted_for_an_observed_machine() {
    let veth = outcome("veth/tcp-rr-x-16-from-0-0");
    let predict = |more: &[&str]| {
        let output = run(&[&["predict", "--from", &veth], more].concat());
        assert_eq!((code(&output), stderr(&output)), (0, ""));
        stdout(&output).to_owned()
    };
    let page = format!("{}/../../docs/predict.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).unwrap();
    let shown = predict(&["--setting", "same-cpu", "--setting", "rps=0-1"]);
    let block: String = shown.lines().map(|line| format!("    {line}\n")).collect();
    assert!(page.contains(&block), "docs/predict.md lacks:\n{block}");

    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.json");
    let made = run(&["plan", "--from", &veth, "--algorithm", "same-cpu", "--json"]);
    std::fs::write(&plan, &made.stdout).unwrap();
    let of_plan = predict(&["--plan", plan.to_str().unwrap()]);
    let line = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line(&of_plan, "plan.json"), line(&shown, "same-cpu"));
    insta::assert_snapshot!(
        "predict-twice",
        predict(&["--load", "x2", "--setting", "same-cpu", "-v"])
    );
}

#[test]
fn what_no_setting_can_do_has_no_forecast_of_no_change() {
    let veth = outcome("veth/tcp-rr-x-16-from-0-0");
    let predict = |more: &[&str]| run(&[&["predict", "--from", &veth], more].concat());
    for (setting, why) in [
        ("rps=9", "rps=9: rps: cpu 9 is not present; online are 0-1"),
        ("rx-usecs=5", "rx-usecs, rx-frames, adaptive-rx: no netdev on this machine reports it"),
        ("irq=1", "irq is a key of --scenario; for an observed machine write cpus=1"),
    ] {
        let refused = predict(&["--setting", setting]);
        assert!(code(&refused) != 0 && stdout(&refused).is_empty(), "{setting}");
        assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    }
    let other = predict(&["--setting", "rps=9", "--setting", "same-cpu"]);
    assert_eq!(code(&other), 0);
    assert!(!stdout(&other).contains("rps=9"), "{}", stdout(&other));
    // other cpus are a question about places
    assert!(stdout(&predict(&["--setting", "cpus=1"])).contains("softirq of cpu 1"));
    for of_a_file in [&["--set", "load.bytes=5"], &["--sweep", "load.bytes=1..5"]] {
        assert_eq!(code(&predict(of_a_file)), 2);
    }
}

#[test]
fn a_forecast_that_cannot_be_made_is_refused_with_the_reason() {
    let told = |more: &[&str]| refusal(&[&["predict"], more].concat());
    let veth = outcome("veth/tcp-rr-x-16-from-0-0");
    insta::assert_snapshot!(told(&["--from", &outcome("guest/booted")]), @r"1 netsilo: cannot predict: a packet seems to take 1446 us of softirq time: this guest's CPUs are emulated or often stopped, and tell no times");
    insta::assert_snapshot!(told(&["--from", &veth, "--setting", "rps=x"]), @r#"2 netsilo: --setting: "x": unexpected 'x' at column 1 of "x""#);
    insta::assert_snapshot!(told(&["--from", &veth, "--setting", "rpss=0"]), @r"2 netsilo: --setting: unknown key rpss; did you mean rps?");
    // the algorithms stand between: a list that grows
    let unknown = told(&["--from", &veth, "--setting", "magic"]);
    let first = "2 netsilo: unknown setting magic: give `plan`, an algorithm (auto, ";
    assert!(unknown.starts_with(first) && unknown.ends_with("), or KEY=VALUE"), "{unknown}");
    insta::assert_snapshot!(told(&["--from", &veth, "--load", "x0"]), @r#"
    2 error: invalid value 'x0' for '--load <xFACTOR>': write a multiple from x0.01 to x100

    For more information, try '--help'.
    "#);
}

#[test]
fn each_kind_of_scenario_is_predicted_with_the_times_of_its_cpus() {
    for name in ["forward", "send", "service-in-a-guest"] {
        let output = run(&["predict", "--scenario", &scenario(name), "-v"]);
        assert_eq!((code(&output), stderr(&output)), (0, ""));
        insta::assert_snapshot!(format!("predict-{name}"), stdout(&output));
    }
}

#[test]
fn what_is_wrong_with_a_scenario_is_told_with_its_line_or_key() {
    let file = scenario("request-response");
    let told = |more: &[&str]| {
        refusal(&[&["predict", "--scenario", &file], more].concat()).replace(&file, "FILE")
    };
    insta::assert_snapshot!(
        told(&["--set", "machine.core=8"]),
        @"1 netsilo: FILE: machine.core: unknown key core; did you mean cores?"
    );
    insta::assert_snapshot!(
        told(&["--set", "load.instances=many"]),
        @r#"1 netsilo: FILE: load.instances: invalid type: string "many", expected a number"#
    );
    insta::assert_snapshot!(
        told(&["--set", "load.instances=0"]),
        @"1 netsilo: FILE: load.instances: must be 1 to 10000000"
    );
    insta::assert_snapshot!(
        told(&["--set", "nic=8"]),
        @"1 netsilo: FILE: nic: invalid type: integer `8`, expected a table of keys"
    );
    insta::assert_snapshot!(
        told(&["--setting", "rps=0-99"]),
        @"1 netsilo: FILE: settings.rps=0-99: the machine has CPUs 0 to 15"
    );
    insta::assert_snapshot!(
        told(&["--set", r#"load.cpus="4,16""#]),
        @"1 netsilo: FILE: load.cpus: the machine has CPUs 0 to 15"
    );
    insta::assert_snapshot!(
        told(&["--setting", "rps=x"]),
        @r#"1 netsilo: FILE: rps: "x": unexpected 'x' at column 1 of "x""#
    );
    insta::assert_snapshot!(
        told(&["--setting", "rfs_only"]),
        @r"2 netsilo: no setting rfs_only; the file has irq_affinity, irq_affinity+rps_rfs, none, rps_rfs"
    );
    insta::assert_snapshot!(
        told(&["--sweep", "load.bytes=0..10"]),
        @"1 netsilo: FILE: load.bytes: must be 1 to 1000000000"
    );
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own.toml");
    let told = |text: &str| {
        std::fs::write(&own, text).unwrap();
        let own = own.to_str().unwrap();
        refusal(&["predict", "--scenario", own]).replace(own, "FILE")
    };
    insta::assert_snapshot!(
        told("[machine]\ncores = 4\nclock = 2"),
        @r"1 netsilo: FILE: line 3: unknown key clock; known are sockets, cores, threads, ghz, kernel, virtual"
    );
    insta::assert_snapshot!(
        told("[machine]\ncores = 4"),
        @"1 netsilo: FILE: line 1: missing field `load`"
    );
    insta::assert_snapshot!(
        told("[machine]\ncores = 4\n[load]\nkind = \"tcp\""),
        @r#"1 netsilo: FILE: line 4: "tcp": known are tcp-rr, udp-rr, forward, send, service"#
    );
    insta::assert_snapshot!(
        told("[machine\n"),
        @"1 netsilo: FILE: line 1: unclosed table, expected `]`"
    );
}
