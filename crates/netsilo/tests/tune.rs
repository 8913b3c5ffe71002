//! Tests of `netsilo tune` in network namespaces. A search on the running kernel's RPS finds the
//! truth, keeps only the winner, and leaves nothing else, however it ends.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

mod conforms;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use conforms::conforming;
use netsilo_lab::{Cable, output_of, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

/// The machine under test is the second namespace.
struct Bench {
    cable: Cable,
    dir: tempfile::TempDir,
    /// Programs that the test started.
    children: Vec<Child>,
}

impl Bench {
    fn new(name: &str) -> Self {
        let (cable, dir) = (Cable::new(name).unwrap(), tempfile::tempdir().unwrap());
        Self { cable, dir, children: Vec::new() }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Returns a command in a namespace; `ip` execs the program, so a signal reaches it.
    fn netsilo(&self, end: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.cable.0[end], env!("CARGO_BIN_EXE_netsilo")]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Returns a command of the other program, built in the same folder.
    fn bench(&self, end: usize, arguments: &[&str]) -> Command {
        let path = netsilo_lab::bench_of(env!("CARGO_BIN_EXE_netsilo"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.cable.0[end]]).arg(path);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn on_the_machine(&self, arguments: &[&str]) -> Command {
        let mut command = self.netsilo(1, arguments);
        command.arg("--state-dir").arg(self.dir.path().join("state"));
        if ["tune", "run"].contains(&arguments[0]) {
            command.arg("--outcomes-dir").arg(self.outcomes());
        }
        command
    }

    /// The folder where searches keep their outcomes.
    fn outcomes(&self) -> PathBuf {
        self.dir.path().join("outcomes")
    }

    /// Runs a verb that uses outcomes and writes nothing. Returns its JSON.
    fn with_outcomes(&self, arguments: &[&str]) -> Json {
        let mut command = self.netsilo(1, arguments);
        let output = command.arg("--outcomes-dir").arg(self.outcomes()).output().unwrap();
        let error = || panic!("{arguments:?}: {}", output_of(&output).1);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| error())
    }

    fn plan(&self, options: &[&str]) -> Json {
        self.with_outcomes(&[&["plan", "--json", "--netdev", "veth0"], options].concat())
    }

    /// The plan, which must be based on an outcome.
    fn plan_by_outcome(&self) -> Json {
        let plan = self.plan(&[]);
        assert!(!plan["measured"].is_null(), "{}", plan["unchanged"]);
        plan
    }

    /// A search between RPS and the current state, with the options before a command.
    fn tune(&self, options: &[&str], script: Option<&str>) -> Command {
        let scope = ["tune", "--yes", "--netdev", "veth0", "--only", "rps", "--seed", "7"];
        let mut command = self.on_the_machine(&[&scope, options].concat());
        if let Some(script) = script {
            command.args(["--settle", "0s", "--", "sh", "-c", script]);
        }
        command
    }

    /// A script that prints one number, and another while RPS is on.
    fn script(with_rps: &str, without: &str) -> String {
        let file = "/sys/class/net/veth0/queues/rx-0/rps_cpus";
        format!("case $(cat {file}) in *[1-9a-f]*) {with_rps};; *) {without};; esac")
    }

    fn result(&self, options: &[&str], script: Option<&str>) -> Json {
        let output = self.tune(&[options, &["--json"]].concat(), script).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", output_of(&output).1);
        conforming("tune", &output.stdout)
    }

    /// Sends 5000 datagrams per second from the first namespace to the machine under test until the
    /// test ends. They are few enough that even a busy machine can measure.
    fn load(&mut self) {
        let mut server = self.bench(1, &["serve", "--bind", "192.0.2.2"]);
        let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on 192.0.2.2:12870"), "{line}");
        self.children.push(server);
        let words = "run 192.0.2.2 -t UDP_STREAM -m 1000 --rate 5000 -d 10m";
        let mut client = self.bench(0, &words.split(' ').collect::<Vec<_>>());
        client.stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(client.spawn().unwrap());
    }

    /// Stops the sender of the load while RPS is on, until the test ends.
    fn stop_the_load_under_rps(&mut self) {
        let client = self.children.last().unwrap().id();
        let on = Self::script(&format!("kill -STOP {client}"), &format!("kill -CONT {client}"));
        let script = format!("while sleep 0.05; do {on}; done");
        let mut watch = Command::new("ip");
        watch.args(["netns", "exec", &self.cable.0[1], "sh", "-c", &script]);
        self.children.push(watch.stderr(Stdio::null()).spawn().unwrap());
    }

    /// Measures that RPS is better, and keeps it. Returns the id of the outcome.
    fn rps_wins(&self) -> String {
        let script = Self::script("sleep 0.1; echo 90", "sleep 0.1; echo 100");
        let options = ["--for", "60s", "--objective", "latency"];
        let (code, text) = output_of(&self.tune(&options, Some(&script)).output().unwrap());
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("rps is better than the current state"), "{text}");
        let listed = self.with_outcomes(&["tune", "--outcomes", "--json"]);
        conforming("outcomes", listed.to_string().as_bytes());
        let outcome = &listed["outcomes"][0];
        let best = (&outcome["won"], &outcome["best"]["name"]);
        assert_eq!(best, (&true.into(), &"rps".into()), "{text}");
        let id = outcome["id"].as_str().unwrap();
        assert!(text.contains(&format!("outcome {id} is stored")), "{text}");
        id.to_owned()
    }

    fn forget(&self, id: &str) {
        let mut command = self.netsilo(1, &["tune", "--forget", id]);
        let output = command.arg("--outcomes-dir").arg(self.outcomes()).output().unwrap();
        assert_eq!(output_of(&output), (Some(0), "1 outcome removed\n".into()));
    }

    /// Starts a daemon that runs until the test ends. It verifies for longer than that, because
    /// whether RPS costs more here is measured elsewhere.
    fn start_daemon(&mut self, more: &str) {
        let file = self.dir.path().join("netsilo.toml");
        let config =
            "interval = \"1s\"\nwindow = \"always\"\n[controller]\nverify-windows = 1000\n";
        std::fs::write(&file, format!("{config}{more}")).unwrap();
        let mut command = self.on_the_machine(&["run", "--config", file.to_str().unwrap()]);
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        self.children.push(command.stderr(log).spawn().unwrap());
    }

    /// Waits until the status of the daemon holds.
    fn daemon_until(&self, what: &str, holds: impl Fn(&Json) -> bool) -> Json {
        self.daemon_sees(what, holds).unwrap_or_else(|error| panic!("{error}"))
    }

    fn daemon_sees(&self, what: &str, holds: impl Fn(&Json) -> bool) -> Result<Json, String> {
        let status = || self.run(&["status", "--json"]).stdout;
        let look = || serde_json::from_slice(&status()).unwrap_or(Json::Null);
        let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap();
        until(what, look, holds).map_err(|error| format!("{error}\n{}", log()))
    }

    /// Reads the knobs that the candidates of these tests change, byte for byte.
    fn knobs(&self) -> String {
        let script = "cat /sys/class/net/veth0/queues/rx-0/rps_*";
        let output = Command::new("ip")
            .args(["netns", "exec", &self.cable.0[1], "sh", "-c", script])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The journal's records of this kind.
    fn journal(&self, kind: &str) -> Vec<Json> {
        let file = self.dir.path().join("state/journal");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let records = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
        records.filter(|record| record["record"] == kind).collect()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.on_the_machine(arguments).output().unwrap()
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        until(what, || holds(self), |it| *it).unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The candidate of this name in a result.
fn candidate<'a>(result: &'a Json, name: &str) -> &'a Json {
    let all = result["candidates"].as_array().unwrap();
    all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name} in {result}"))
}

/// Whether RPS is better here is measured, not claimed: on some machines it is.
#[test]
fn a_search_on_the_live_load_keeps_a_winner_or_nothing_and_undoes_the_rest() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut bench = Bench::new("tune");
    bench.load();
    let before = bench.knobs();
    let folder = bench.folder();
    let options = ["--for", "15s", "--window", "500ms", "--settle", "50ms", "-o"];
    let result = bench.result(&[&options[..], &[folder.to_str().unwrap()]].concat(), None);
    let won = result["result"].get("won").is_some();
    assert!(won || result["result"] == "no_difference_shown", "{result}");
    assert_eq!((won, won), (bench.knobs() != before, !result["transaction"].is_null()), "{result}");
    assert!(result["windows"].as_u64().unwrap() >= 4, "{result}");
    assert!(candidate(&result, "present")["windows"].as_u64().unwrap() >= 1, "{result}");
    let (code, text) = output_of(&bench.run(&["undo"]));
    assert_eq!((code, text == "nothing to undo\n"), (Some(0), !won), "{text}");
    assert_eq!(bench.knobs(), before);
    // each window with RPS was a separate transaction, and each one is undone
    let begun = bench.journal("begin").len();
    assert!(begun > 0 && bench.journal("undone").len() == begun, "{begun}");
}

#[test]
fn the_winner_stays_as_one_transaction_and_undo_restores_the_state_before() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("winner");
    let before = bench.knobs();
    let script = Bench::script("echo 120", "echo 100");
    let result = bench.result(&["--for", "60s", "--objective", "throughput"], Some(&script));
    assert_eq!(result["result"]["won"]["candidate"], 1, "{result}");
    assert!((result["result"]["won"]["change"]["value"].as_f64().unwrap() - 0.2).abs() < 1e-9);
    assert_eq!(candidate(&result, "rps")["is_better"], true);
    assert_ne!(bench.knobs(), before);
    let open = bench.journal("begin").len() - bench.journal("undone").len();
    assert_eq!((open, bench.journal("confirmed").len()), (1, 1), "{result}");
    let (code, text) = output_of(&bench.run(&["undo"]));
    assert_eq!((code, bench.knobs()), (Some(0), before), "{text}");
}

#[test]
fn a_candidate_beyond_the_guard_rail_is_out_after_one_window() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("rail");
    let before = bench.knobs();
    let script = Bench::script("echo 50", "echo 100");
    let output = bench.tune(&["--for", "60s"], Some(&script)).output().unwrap();
    let (code, text) = output_of(&output);
    assert_eq!((code, bench.knobs()), (Some(0), before), "{text}");
    assert!(text.contains("throughput 50.0 breaks the guard rail 95.0"), "{text}");
    assert!(text.contains("no difference shown\neverything is restored"), "{text}");
    // for latency it is the other direction
    let latency = ["--for", "60s", "--objective", "latency"];
    let result = bench.result(&latency, Some(&script));
    assert_eq!(result["result"]["won"]["candidate"], 1, "{result}");
}

#[test]
fn a_candidate_under_which_traffic_stops_is_taken_back_before_its_window_ends() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut bench = Bench::new("stops");
    bench.load();
    let before = bench.knobs();
    bench.stop_the_load_under_rps();
    let folder = bench.folder();
    let options = ["--for", "3m", "--window", "3s", "--settle", "0s", "-o"];
    let result = bench.result(&[&options[..], &[folder.to_str().unwrap()]].concat(), None);
    assert_eq!(bench.knobs(), before, "{result}");
    let out = &candidate(&result, "rps")["status"]["out"]["why"]["rail"];
    assert_eq!(out["rail"], "traffic", "{result}");
    let records = std::fs::read_to_string(folder.join("records.jsonl")).unwrap();
    let records = records.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let broke: Vec<Json> = records.filter(|it| it["end"]["broke"].is_object()).collect();
    let parts = |record: &Json| record["peeks"].as_array().unwrap().len();
    assert!(broke.iter().all(|it| it["candidate"] == 1 && parts(it) < 3000 / 250), "{broke:?}");
}

#[test]
fn a_dry_run_prints_the_candidates_by_its_schema_and_writes_nothing() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("dry");
    let before = bench.knobs();
    let output = bench.tune(&["--dry-run", "--json"], None).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", output_of(&output).1);
    let listed = conforming("tune-dry-run", &output.stdout);
    assert_eq!(listed["tried"][0]["name"], "rps", "{listed}");
    assert_eq!(bench.knobs(), before);
}

#[test]
fn a_kill_at_any_moment_leaves_the_state_before() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("killed");
    let before = bench.knobs();
    // the command outlives the search by only a few seconds
    let script = Bench::script("sleep 20", "echo 100");
    // in the middle of a trial: as soon as the write is seen, and a little later
    for later in [300, 0, 3, 1].map(Duration::from_millis) {
        let undone = bench.journal("undone").len();
        let mut child = bench
            .tune(&["--for", "1h"], Some(&script))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        bench.until("RPS is on", |it| it.knobs() != before);
        std::thread::sleep(later);
        child.kill().unwrap();
        child.wait().unwrap();
        bench.until("the guard restores", |it| it.knobs() == before);
        bench.until("the guard is done", |it| it.journal("undone").len() > undone);
        assert_eq!(bench.journal("undone").last().unwrap()["by"], "guard");
    }
    let (code, text) = output_of(&bench.run(&["undo"]));
    assert_eq!((code, text.as_str()), (Some(0), "nothing to undo\n"));
}

#[test]
fn an_interrupted_search_restores_goes_on_and_has_a_report() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("resume");
    let before = bench.knobs();
    let folder = bench.folder();
    let folder = folder.to_str().unwrap();
    let script = Bench::script("sleep 0.2; echo 90", "sleep 0.2; echo 100");
    let options = ["--for", "60s", "--objective", "latency", "-o", folder];
    let child = bench
        .tune(&options, Some(&script))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let records = || std::fs::read_to_string(bench.folder().join("records.jsonl"));
    bench.until("RPS is on after some windows", |it| {
        records().unwrap_or_default().lines().count() > 4 && it.knobs() != before
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let (code, text) = output_of(&child.wait_with_output().unwrap());
    assert_eq!((code, bench.knobs()), (Some(1), before.clone()), "{text}");
    assert!(text.contains("interrupted: everything is restored"), "{text}");
    let (code, text) =
        output_of(&bench.on_the_machine(&["tune", "--resume", folder, "--yes"]).output().unwrap());
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("rps is better than the current state (-10.0% .. -10.0%, 95%)"),
        "{text}"
    );
    assert_ne!(bench.knobs(), before);
    assert_eq!(output_of(&bench.run(&["undo"])).0, Some(0));
    assert_eq!(bench.knobs(), before);
    // a search that has ended returns its result again, without another window
    let windows = records().unwrap();
    let again = &["tune", "--resume", folder, "--yes", "--json"];
    let output = bench.on_the_machine(again).output().unwrap();
    let json = conforming("tune", &output.stdout);
    assert_eq!(json["result"]["won"]["candidate"], 1);
    assert_eq!(records().unwrap(), windows);
}

#[test]
fn plan_follows_a_winner_until_it_is_in_effect_or_forgotten() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut bench = Bench::new("learn");
    bench.load();
    assert_eq!(bench.plan(&[])["measured"], Json::Null);
    let id = &bench.rps_wins();
    // in effect: nothing to do, because of the outcome
    let plan = bench.plan_by_outcome();
    assert_eq!(
        (&plan["measured"]["outcome"], &plan["changes"]),
        (&Json::from(id.as_str()), &Json::Array(vec![]))
    );
    let (code, text) = output_of(&bench.run(&["undo"]));
    assert_eq!(code, Some(0), "{text}");
    let plan = bench.plan_by_outcome();
    assert_eq!(plan["measured"]["outcome"], id.as_str(), "{plan}");
    assert_eq!(plan["changes"][0]["target"]["knob"], "rps_cpus", "{plan}");
    let reason = plan["changes"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("ago by tune: latency -10.0% (-10.0% .. -10.0%)"), "{reason}");
    for options in [&["--no-outcomes"][..], &["--algorithm", "auto"]] {
        let plan = bench.plan(options);
        assert_eq!((&plan["measured"], &plan["changes"]), (&Json::Null, &Json::Array(vec![])));
    }
    // the plan is applied like any other
    let file = bench.dir.path().join("plan.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    let (code, text) = output_of(&bench.run(&["apply", "--yes", "--plan", file.to_str().unwrap()]));
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(bench.plan(&[])["changes"], Json::Array(vec![]));
    bench.forget(id);
    assert_eq!(bench.plan(&[])["measured"], Json::Null);
    assert_eq!(output_of(&bench.run(&["undo"])).0, Some(0));
}

#[test]
fn the_daemon_follows_a_winner_and_undo_restores_the_state_before() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut bench = Bench::new("follow");
    bench.load();
    let before = bench.knobs();
    let id = bench.rps_wins();
    let with_rps = bench.knobs();
    let (code, text) = output_of(&bench.run(&["undo"]));
    assert_eq!((code, bench.knobs() == before), (Some(0), true), "{text}");
    bench.start_daemon("");
    let status = bench.daemon_until("the daemon follows", |it| {
        it["totals"]["changes"] == 1 && it["pending"] == Json::Array(vec![])
    });
    assert_eq!(
        (&status["measured"]["outcome"], bench.knobs()),
        (&Json::from(id.as_str()), with_rps)
    );
    assert_eq!(status["log"][0]["what"], "follow", "{status}");
    let (_, text) = output_of(&bench.run(&["status"]));
    let basis = format!("placed by outcome {id}, measured ");
    assert!(text.contains(&basis) && text.contains("latency -10.0% (-10.0% .. -10.0%)"), "{text}");
    bench.forget(&id);
    let status = bench.daemon_until("it plans by the model", |it| it["measured"].is_null());
    assert_eq!(status["unused_outcome"], Json::Null, "{status}");
    let (code, text) = output_of(&bench.run(&["undo"]));
    assert_eq!((code, bench.knobs() == before), (Some(0), true), "{text}");
}
