//! Tests of the built binary's command line, on bundles.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

#[path = "cli/bundles.rs"]
mod bundles;
#[path = "cli/completions.rs"]
mod completions;
mod conforms;
#[path = "cli/cpus.rs"]
mod cpus;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/mistakes.rs"]
mod mistakes;
#[path = "cli/output.rs"]
mod output;
#[path = "cli/predict.rs"]
mod predict;
#[path = "cli/reports.rs"]
mod reports;

use std::process::{Command, Output, Stdio};

use bundles::{OWNED, VIRTIO};
use conforms::conforming;
use netsilo::cli::examples::ENDINGS;
use predict::{outcome, scenario};

fn netsilo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    command.args(arguments).stdin(Stdio::null()).env_remove("COLUMNS");
    command
}

fn run(arguments: &[&str]) -> Output {
    netsilo(arguments).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A document that a newer netsilo wrote, of any kind.
const NEWER: &str = r#"{ "schema": 9, "netsilo": "0.4.0", "steps": [] }"#;

/// Why such a document is refused.
fn refused_newer() -> String {
    format!(
        "schema 9, written by netsilo 0.4.0; this is {}, which reads up to 1: use netsilo 0.4.0 or \
         newer",
        env!("CARGO_PKG_VERSION")
    )
}

/// Returns exit code and stderr of a failure. Asserts that stdout is empty.
fn refusal(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(stdout(&output), "", "{arguments:?}");
    format!("{} {}", code(&output), stderr(&output).trim_end())
}

#[test]
fn help_lists_the_verbs_as_recorded() {
    let output = run(&["--help"]);
    assert_eq!((code(&output), stderr(&output)), (0, ""));
    insta::assert_snapshot!("help-", stdout(&output));
}

#[test]
fn the_help_of_every_verb_fits_100_columns_and_ends_with_examples_and_exit_codes() {
    for ending in ENDINGS {
        let words: Vec<&str> = ending.verb.split(' ').chain(["--help"]).collect();
        let output = run(&words);
        let help = stdout(&output);
        assert_eq!((code(&output), stderr(&output)), (0, ""), "{words:?}");
        assert!(help.contains(&format!("Usage: netsilo {}", ending.verb)), "{help}");
        assert_eq!(help.lines().find(|line| line.chars().count() > 100), None, "{words:?}");
        let (_, end) = help.split_once("\nExamples:\n").expect(ending.verb);
        let (examples, exits) = end.split_once("\nExit codes:\n").expect(ending.verb);
        let examples = examples.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = ending.examples.map(|(example, does)| format!("{example} {does}"));
        assert_eq!(examples, expected.join(" "));
        for (number, meaning) in ending.exits() {
            assert!(exits.contains(&format!("  {number:<2}  {meaning}")), "{exits}");
        }
    }
}

#[test]
fn help_prints_the_help_of_a_verb_and_the_pages_of_all_topics() {
    let same = |help: &[&str], verb: &[&str]| {
        let (help, verb) = (run(help), run(verb));
        assert_eq!((code(&help), stdout(&help)), (code(&verb), stdout(&verb)));
    };
    same(&["help"], &["--help"]);
    same(&["help", "rss", "show"], &["rss", "show", "--help"]);
    let topics = run(&["help", "topics"]);
    insta::assert_snapshot!(stdout(&topics), @r#"
    cpus        Sets of CPUs
    subjects    Names of the machine's parts
    units       Times and units
    drops       Reasons of dropped packets
    safety      What changes the machine, and how it is undone
    privileges  Privileges
    files       Files
    exit-codes  Exit codes
    "#);
    for line in stdout(&topics).lines() {
        let (topic, title) = line.split_once(' ').unwrap();
        let page = run(&["help", topic]);
        assert_eq!(stdout(&page).lines().next(), Some(format!("# {}", title.trim()).as_str()));
    }
    assert!(refusal(&["help", "shw"]).contains("'show'"));
}

#[test]
fn run_check_names_the_line_and_the_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("netsilo.toml");
    std::fs::write(&path, "interval = \"5s\"\n[goal]\nexclud = \"0\"\n").unwrap();
    let path = path.to_str().unwrap();
    let error = refusal(&["run", "--check-config", "--config", path]);
    assert_eq!(error, format!("1 netsilo: {path}:3: unknown key exclud; did you mean exclude?"));
    std::fs::write(path, "interval = \"5s\"\n").unwrap();
    let output = run(&["run", "--check-config", "--config", path]);
    assert_eq!(
        (code(&output), stdout(&output)),
        (0, format!("{path}\n1 file: no error\n").as_str())
    );
    assert!(
        refusal(&["run", "--check-config", "--config", "nowhere.toml"])
            .starts_with("1 netsilo: cannot read nowhere.toml: No such file")
    );
}

#[test]
fn an_invalid_command_line_is_a_usage_error() {
    for line in [&["shw"][..], &[], &["plan", "--algorithm", "magic"], &["plan", "--rfs", "0"]] {
        let output = run(line);
        assert_eq!((code(&output), stdout(&output)), (2, ""), "{line:?}");
    }
    assert!(refusal(&["plan", "-a", "magic"]).contains("possible values: auto, "));
}

#[test]
fn an_objective_of_tune_fits_its_command() {
    let refused = [
        (
            &["--objective", "latency"][..],
            "2 netsilo: latency needs a command that prints a number: ",
        ),
        (&["--objective", "locality", "--", "true"], "2 netsilo: locality is measured on the live"),
        (&["--window", "1ms"], "2 netsilo: --window must be at least 50ms"),
        (&["--for", "1ms"], "2 netsilo: --for must be at least 50ms"),
        (&["--resume", "nowhere"], "1 netsilo: cannot read nowhere: No such file"),
    ];
    for (line, words) in refused {
        let refusal = refusal(&[&["tune"], line].concat());
        assert!(refusal.starts_with(words), "{line:?}: {refusal}");
    }
    assert!(refusal(&["tune", "--objective", "magic"]).contains("possible values: cpu-per-mega"));
    for line in [
        &["tune", "--dry-run", "--resume", "x"][..],
        &["tune", "--never-worse-than", "x"],
        &["tune", "--trust"],
        &["tune", "-o", "a", "--resume", "b"],
    ] {
        assert!(refusal(line).starts_with("2 error: "), "{line:?}");
    }
}

#[test]
fn fixing_findings_and_a_goal_exclude_each_other() {
    for goal in [&["--steer", "443/tcp=1"][..], &["--rps", "1"], &["--no-irqs"], &["-n", "eth0"]] {
        let refused = refusal(&[&["plan", "--fix", "nic-drops"], goal].concat());
        assert!(refused.starts_with("2 error: the argument '--fix"), "{refused}");
        assert!(refused.contains("cannot be used with"), "{refused}");
    }
}

#[test]
fn show_prints_a_bundle_as_text_and_as_json_of_schema_1() {
    let screen = run(&["show", "--from", &VIRTIO]);
    assert_eq!((code(&screen), stderr(&screen)), (0, ""));
    insta::assert_snapshot!("show", stdout(&screen));
    let json = run(&["show", "--from", &VIRTIO, "--json"]);
    let report = conforming("show", &json.stdout);
    assert_eq!((code(&json), &report["schema"]), (0, &1.into()));
    let eth0 = report["netdevs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|netdev| netdev["name"] == "eth0")
        .unwrap();
    assert_eq!(eth0["queues"][3]["consumers"][0]["comm"], "redis-server");
    serde_json::from_value::<netsilo_decide::report::Report>(report).unwrap();
}

#[test]
fn explain_refuses_options_without_use_and_subjects_that_do_not_exist() {
    for options in
        [&["--json"][..], &["--from", VIRTIO.as_str()], &["--interval", "1s"], &["--no-bpf"]]
    {
        for subject in [&["nic-drops"][..], &[]] {
            let output = run(&[&["explain"], subject, options].concat());
            assert_eq!((code(&output), stdout(&output)), (2, ""), "{options:?}");
            assert!(stderr(&output).contains("name a cpu, interrupt"), "{}", stderr(&output));
        }
    }
    let misspelt = run(&["explain", "nic-dropz", "--from", &VIRTIO]);
    let error = stderr(&misspelt);
    assert_eq!((code(&misspelt), stdout(&misspelt)), (1, ""));
    assert!(error.contains("no finding (netsilo explain) and no netdev"), "{error}");
}

#[test]
fn what_each_verb_prints_of_a_bundle_conforms_to_its_schema() {
    let flow = "10.0.0.1:40000-10.0.0.2:443/tcp";
    for (schema, verb) in [
        ("check", &["check"][..]),
        ("plan", &["plan", "-v"]),
        ("rss-show", &["rss", "show", "--netdev", "eth0"]),
        ("rss-where", &["rss", "where", flow, "--netdev", "eth0"]),
        ("show", &["show", "--watch", "1"]),
        ("explain", &["explain", "cpu0"]),
    ] {
        let output = run(&[verb, &["--from", &VIRTIO, "--json"]].concat());
        assert_eq!(conforming(schema, &output.stdout)["schema"], 1, "{}", stderr(&output));
    }
    let scenario = ["predict", "--scenario", &scenario("request-response"), "--json"];
    assert_eq!(conforming("predict", &run(&scenario).stdout)["against"], "none");
    let veth = outcome("veth/tcp-rr-x-16-from-0-0");
    let observed = run(&["predict", "--from", &veth, "--json"]);
    assert_eq!(conforming("predict-observed", &observed.stdout)["load"], 1.0);
    let plan = run(&["plan", "--from", &veth, "--predict", "--json"]);
    assert_eq!(conforming("plan", &plan.stdout)["forecast"]["settings"][0]["name"], "as it is");
    let sweep = run(&[&scenario[..], &["--sweep", "load.instances=1..2000/8"]].concat());
    assert_eq!(conforming("predict-sweep", &sweep.stdout)["points"][0]["value"], 1.0);
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("host.tar.zst");
    let capture = ["capture", "--no-bpf", "-i", "1ms", "--json", "-o", bundle.to_str().unwrap()];
    assert_eq!(conforming("capture", &run(&capture).stdout)["windows"], serde_json::Value::Null);
}

#[test]
fn a_plan_of_another_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("plan.json");
    std::fs::write(&saved, NEWER).unwrap();
    let path = saved.to_str().unwrap();
    assert_eq!(
        refusal(&["export", "script", "--plan", path]),
        format!("1 netsilo: {path} has {}", refused_newer())
    );
}

#[test]
fn a_search_of_another_schema_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("race.json");
    std::fs::write(&plan, NEWER).unwrap();
    assert_eq!(
        refusal(&["tune", "--resume", dir.path().to_str().unwrap(), "--yes", "--trust"]),
        format!("1 netsilo: {}: it has {}", plan.display(), refused_newer())
    );
}

#[test]
fn the_exit_code_of_plan_tells_what_is_to_be_done() {
    let plan = |from: &str, more: &[&str]| {
        let output = run(&[&["plan", "--from", from, "--detailed-exitcode"], more].concat());
        (code(&output), stdout(&output).to_owned())
    };
    let (pending, text) = plan(&VIRTIO, &[]);
    assert_eq!(pending, 10);
    insta::assert_snapshot!("plan", text);
    assert_eq!(run(&["plan", "--from", &VIRTIO]).status.code(), Some(0));
    assert_eq!(plan(&VIRTIO, &["--no-irqs"]).0, 0);
    let (refused, text) = plan(&OWNED, &[]);
    assert_eq!(refused, 30);
    assert!(text.contains("irqbalance (pid 812)"), "{text}");
    assert_eq!(plan(&OWNED, &["--even-if-owned"]).0, 10);
}

#[test]
fn the_json_of_a_plan_is_the_plan() {
    let output = run(&["plan", "--from", &VIRTIO, "--json"]);
    let plan: netsilo_decide::plan::Plan = serde_json::from_slice(&output.stdout).unwrap();
    let targets: Vec<String> =
        plan.changes.iter().map(|change| change.target.to_string()).collect();
    assert_eq!(targets, ["irq 38 (virtio3-input.3)", "irq 39 (virtio3-output.3)"]);
}

#[test]
fn an_unknown_netdev_is_named() {
    let output = run(&["plan", "--from", &VIRTIO, "--netdev", "eth7"]);
    assert_eq!(code(&output), 1);
    insta::assert_snapshot!(stdout(&output), @r#"
    nothing can be done
    refused
      eth7: no such netdev; did you mean eth0? known netdevs: lo, eth0
    "#);
}

#[test]
fn the_error_about_an_invalid_bundle_names_each_cause_once() {
    insta::assert_snapshot!(
        refusal(&["show", "--from", "Cargo.toml"]),
        @"1 netsilo: cannot use the bundle or report: Cargo.toml: neither a netsilo bundle nor a \
         sosreport (tar.xz, tar.gz, tar.bz2, tar), nor a folder with a sosreport's files or \
         outputs of commands"
    );
    insta::assert_snapshot!(
        refusal(&["plan", "--from", "nowhere.tar.zst"]),
        @"1 netsilo: cannot use the bundle or report: nowhere.tar.zst: \
         No such file or directory (os error 2)"
    );
}

#[test]
fn apply_does_not_take_a_bundle() {
    assert!(
        refusal(&["apply", "--from", "host.tar.zst"])
            .starts_with("2 error: unexpected argument '--from'")
    );
}

#[test]
fn a_damaged_outcome_is_named_and_skipped_and_can_be_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let outcomes = |more: &[&str]| run(&[&["tune", "--outcomes-dir", folder], more].concat());
    let listed = outcomes(&["--outcomes"]);
    let none = "no outcome is stored: netsilo tune measures one\n";
    assert_eq!((code(&listed), stdout(&listed), stderr(&listed)), (0, none, ""));
    std::fs::write(dir.path().join("1.json"), "{\"schema\": 1, \"won\": 7}").unwrap();
    std::fs::write(dir.path().join("2.json"), NEWER).unwrap();
    std::fs::write(dir.path().join("3.json"), "\u{1b}[31m{").unwrap();
    for verb in [&["tune", "--outcomes"][..], &["plan", "--interval", "1ms", "--no-bpf"]] {
        let output = run(&[verb, &["--outcomes-dir", folder]].concat());
        let notes = stderr(&output);
        for words in [
            "outcome 1 in",
            "invalid type: integer `7`",
            &format!("outcome 2 in {folder} is not used: it has {}", refused_newer()),
            "outcome 3 in",
            "remove it with: netsilo tune --forget 3",
        ] {
            assert!(notes.contains(words), "{verb:?}: {words} in {notes}");
        }
        assert!(!notes.contains('\u{1b}'), "{notes}");
    }
    let wrong = refusal(&["tune", "--outcomes-dir", folder, "--forget", "../1"]);
    assert_eq!(wrong, "1 netsilo: no outcome has the id ../1; netsilo tune --outcomes lists them");
    assert_eq!(stdout(&outcomes(&["--forget", "1"])), "1 outcome removed\n");
    assert_eq!(stdout(&outcomes(&["--forget", "all"])), "2 outcomes removed\n");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn calibrate_stores_unless_dry_run_and_its_weights_are_not_used_on_another_machine() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let measure = |more: &[&str]| {
        run(&[&["calibrate", "--time", "100ms", "--costs-dir", folder], more].concat())
    };
    let dry = measure(&["--dry-run"]);
    assert_eq!((code(&dry), stderr(&dry)), (0, ""));
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    let kept = measure(&["--json"]);
    let path = dir.path().join("costs.json");
    assert_eq!(
        stderr(&kept),
        format!("netsilo: stored in {}: plan, apply and run use it now\n", path.display())
    );
    assert_eq!(stdout(&kept), std::fs::read_to_string(&path).unwrap());
    let plan = || run(&["plan", "--costs-dir", folder, "--interval", "1ms", "--no-bpf"]);
    assert!(!stderr(&plan()).contains("is not used"));
    let mut elsewhere = conforming("calibrate", &kept.stdout);
    elsewhere["machine"]["hostname"] = "elsewhere".into();
    std::fs::write(&path, elsewhere.to_string()).unwrap();
    assert!(
        stderr(&plan())
            .contains("it was measured on another machine: its host name is elsewhere, not ")
    );
}

#[test]
fn a_plan_of_a_bundle_is_exported_in_each_format() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    for (format, file) in [
        ("script", "netsilo-placement.sh"),
        ("irqbalance-policy", "netsilo-irqbalance-policy"),
        ("tuned", "tuned.conf"),
        ("systemd-link", "10-netsilo-eth0.link"),
    ] {
        let arguments = ["export", format, "--from", &VIRTIO, "--rps", "2-3"];
        let printed = run(&arguments);
        assert_eq!(code(&printed), 0, "{}", stderr(&printed));
        let written = run(&[&arguments[..], &["--dir", folder]].concat());
        assert_eq!((code(&written), stdout(&written)), (0, ""));
        assert_eq!(std::fs::read_to_string(dir.path().join(file)).unwrap(), stdout(&printed));
    }
    let saved = dir.path().join("plan.json");
    std::fs::write(&saved, stdout(&run(&["plan", "--json", "--from", &VIRTIO]))).unwrap();
    let again = run(&["export", "script", "--plan", saved.to_str().unwrap()]);
    assert_eq!(stdout(&again), stdout(&run(&["export", "script", "--from", &VIRTIO])));
    assert_eq!(
        refusal(&["export", "script", "--suggest"]),
        "2 netsilo: --suggest needs the format irqbalance-policy"
    );
}

#[test]
fn a_signal_removes_the_temporary_folder_which_only_its_owner_can_read() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let folders = || -> Vec<_> {
        std::fs::read_dir(dir.path().join("tmp")).unwrap().map(|it| it.unwrap().path()).collect()
    };
    std::fs::create_dir(dir.path().join("tmp")).unwrap();
    let capture = ["capture", "--no-bpf", "-i", "1h", "-o", "/dev/null"];
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // A child inherits which signals are ignored: HUP under nohup, INT in the background.
        let mut child = Command::new("env")
            .args(["--default-signal=HUP,INT,TERM", env!("CARGO_BIN_EXE_netsilo")])
            .args(capture)
            .env("TMPDIR", dir.path().join("tmp"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let made = netsilo_lab::until("a folder", folders, |made| !made.is_empty()).unwrap();
        let mode = made[0].metadata().unwrap().permissions().mode() & 0o777;
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!((mode, folders()), (0o700, vec![]), "{signal:?}: {status}");
        assert!(!status.success(), "it ended before the signal");
    }
}

#[test]
fn a_bundle_is_read_without_a_temporary_folder() {
    let case = "/../../cases/near-consumer-on-half-a-cache/before.tar.zst";
    let shown = Command::new(env!("CARGO_BIN_EXE_netsilo"))
        .args(["show", "--from", &(env!("CARGO_MANIFEST_DIR").to_owned() + case)])
        .env("TMPDIR", "/nowhere")
        .output()
        .unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
}

#[test]
fn a_time_that_no_clock_can_add_is_a_usage_error() {
    for arguments in [&["show", "-i", "18446744073709551615s"][..], &["capture", "-i", "31days"]] {
        let error = refusal(arguments);
        assert!(error.starts_with("2 ") && error.contains("at most 30 days"), "{error}");
    }
}

#[test]
fn no_control_character_of_a_file_reaches_the_terminal_through_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a\u{1b}[2J.toml");
    std::fs::write(&path, "\"\u{9b}2J\\u001b[2J\" = 1").unwrap();
    let name = path.to_str().unwrap();
    let missing = format!("{name}.zst");
    for arguments in [
        &["run", "--check-config", "--config", name][..],
        &["apply", "--plan", name],
        &["show", "--from", &missing],
    ] {
        let error = refusal(arguments);
        let is_escape = |c: char| c.is_control() && c != '\n';
        assert!(error.starts_with("1 ") && !error.contains(is_escape), "{error:?}");
        assert!(error.contains("\\u001b[2J"), "{error:?}");
    }
}

#[test]
fn a_file_that_is_a_pipe_is_refused_where_it_stands_and_nobody_waits() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    for name in ["plan.json", "experiment.json", "how.json", "race.json", "journal"] {
        let made = Command::new("mkfifo").arg(dir.path().join(name)).status();
        assert!(made.unwrap().success());
    }
    let pipe = format!("{folder}/plan.json");
    let state = ["--state-dir", folder];
    for arguments in [
        &["apply", "--plan", &pipe][..],
        &["export", "script", "--plan", &pipe],
        &["ab", "--a", "none", "--b", &pipe, "--", "true"],
        &["show", "--from", &pipe],
        &["plan", "--from", &VIRTIO, "--costs", &pipe],
        &["run", "--check-config", "--config", &pipe],
        &["tune", "--resume", folder],
        &["undo", state[0], state[1]],
    ] {
        let mut command = Command::new("timeout");
        command.arg("20").arg(env!("CARGO_BIN_EXE_netsilo")).args(arguments).stdin(Stdio::null());
        let output = command.output().unwrap();
        let error = stderr(&output);
        assert_eq!((code(&output), stdout(&output)), (1, ""), "{arguments:?}: {error}");
        let why = "it is a pipe: name a regular file";
        assert!(error.contains(folder) && error.contains(why), "{arguments:?}: {error}");
    }
}

#[test]
fn a_folder_without_configuration_says_that_the_defaults_apply() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["run", "--check-config", "--config", dir.path().to_str().unwrap()]);
    assert!(stdout(&output).contains("the daemon uses its defaults"), "{}", stdout(&output));
}
