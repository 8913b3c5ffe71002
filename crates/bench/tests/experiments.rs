//! Tests of `netsilo-bench experiment` between network namespaces: what it records, what it
//! changes, and that nothing of it remains.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

#[path = "experiments/forward.rs"]
mod forward;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use netsilo_lab::{Cable, output_of, until};
use netsilo_trial::experiment::{Experiment, Record, Step};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_netsilo-bench");

/// The other program, built in the same folder.
fn netsilo() -> String {
    let path = Path::new(PROGRAM).with_file_name("netsilo");
    assert!(path.is_file(), "{} is not built: run `cargo build -p netsilo`", path.display());
    path.display().to_string()
}

/// The machine under test is the second namespace. The load comes from the first.
struct Bench {
    cable: Cable,
    agent: Child,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(name: &str) -> Self {
        let cable = Cable::new(name).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &cable.0[0], PROGRAM]);
        command.args(["serve", "--bind", "192.0.2.1"]);
        let mut agent = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(agent.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on 192.0.2.1:12870"), "{line}");
        Self { cable, agent, dir: tempfile::tempdir().unwrap() }
    }

    /// Makes the device under test poll its packets, like a NIC. By default a veth puts them into a
    /// backlog, and then no queue receives anything (`veth_xmit`).
    fn polled(&self) {
        for (namespace, feature, value) in [(1, "gro", "on"), (0, "tso", "off")] {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.cable.0[namespace], "ethtool", "-K", "veth0"]);
            assert!(command.args([feature, value]).status().unwrap().success());
        }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Returns a verb of a program on the machine under test. `ip` execs the program, so a signal
    /// reaches it.
    fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.cable.0[1], program]).args(arguments);
        command.arg("--state-dir").arg(self.dir.path().join("state")).stdin(Stdio::null());
        command
    }

    /// Returns an experiment with these settings, under `TCP_RR` with these numbers of instances.
    fn compare(&self, settings: &[&str], instances: &str, more: &[&str]) -> Command {
        let file = self.dir.path().join("mine.toml");
        let load = format!("[[load]]\ntests = ['TCP_RR']\nbytes = [1]\ninstances = {instances}\n");
        std::fs::write(&file, format!("{}{load}", settings.concat())).unwrap();
        let mut command = self.program(PROGRAM, &["experiment", "--yes"]);
        command.arg(file).args(["--peer", "192.0.2.1", "--netdev", "veth0", "-o"]);
        command.arg(self.folder()).args(["--warm-up", "0s", "--pause", "0s"]).args(more);
        command
    }

    fn resume(&self, more: &[&str]) -> Output {
        let folder = self.folder();
        let resume = ["experiment", "--yes", "--resume", folder.to_str().unwrap()];
        self.program(PROGRAM, &resume).args(more).output().unwrap()
    }

    fn experiment(&self) -> Experiment {
        serde_json::from_slice(&std::fs::read(self.folder().join("experiment.json")).unwrap())
            .unwrap()
    }

    fn records(&self) -> Vec<Record> {
        let text = std::fs::read_to_string(self.folder().join("records.jsonl")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn trials(&self) -> Vec<Step> {
        let step = |record| if let Record::Trial(trial) = record { Some(trial.step) } else { None };
        self.records().into_iter().filter_map(step).collect()
    }

    /// Runs a script on the machine under test.
    fn sh(&self, script: &str) -> String {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.cable.0[1], "sh", "-c", script])
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Reads the knobs that the settings of these tests change.
    fn knobs(&self) -> String {
        self.sh("cat /sys/class/net/veth0/queues/rx-0/rps_* /proc/sys/net/ipv4/tcp_rmem")
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        until(what, || holds(self), |it| *it).unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

const NONE: &str = "[[setting]]\nname = 'none'\n";
const RPS_RFS: &str = "[[setting]]\nname = 'rps+rfs'\nrps = 'all'\nrfs = 32768\n";

/// A command: two knobs of one queue, and a sysctl.
const PEER: &str = "echo 1 >/sys/class/net/veth0/queues/rx-0/rps_cpus; \
                    echo 64 >/sys/class/net/veth0/queues/rx-0/rps_flow_cnt; \
                    echo 4096 131072 6000000 >/proc/sys/net/ipv4/tcp_rmem";

/// The setting that a command makes.
fn peer(command: &str) -> String {
    format!("[[setting]]\nname = 'peer'\ncommand = '{command}'\n")
}

/// Under each load, the other settings are predicted before any is measured.
fn predictions_precede_measurements(records: &[Record]) {
    let mut measured = BTreeSet::new();
    let mut predicted = 0;
    for record in records {
        match record {
            Record::Trial(trial) => _ = measured.insert(trial.step.load.clone()),
            Record::Expected(it) => {
                assert!(!measured.contains(&it.load), "{}", it.load);
                assert_eq!(it.why_not, None, "{}", it.load);
                let [steered, peer] = &it.settings[..] else { panic!("{it:#?}") };
                assert_eq!((&*steered.setting, &*peer.setting), ("rps+rfs", "peer"));
                assert!(steered.change.is_some(), "{it:#?}");
                assert!(peer.not_modeled.iter().any(|it| it == "net.ipv4.tcp_rmem"), "{it:#?}");
                predicted += 1;
            }
            Record::Map(_) | Record::Failed(_) => {}
        }
    }
    assert_eq!(predicted, 2);
}

#[test]
fn each_step_is_recorded_in_order_and_nothing_remains() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("matrix");
    bench.polled();
    let before = bench.knobs();
    let settings = [NONE, RPS_RFS, &peer(PEER)];
    let mut run = bench.compare(&settings, "[1, 3]", &["-d", "300ms", "--rounds", "2"]);
    let (code, text) = output_of(&run.output().unwrap());
    assert_eq!((code, bench.knobs()), (Some(0), before), "{text}");
    let experiment = bench.experiment();
    let names: Vec<&str> = experiment.settings.iter().map(|it| it.name.as_str()).collect();
    assert_eq!((experiment.check(), names), (Ok(()), vec!["none", "rps+rfs", "peer"]));
    assert_eq!(experiment.kind, "mine");
    // each change of the command is a separate knob
    let peer = &experiment.settings[2];
    let changes: Vec<String> =
        peer.changes.iter().map(|it| format!("{} {}", it.target, it.new)).collect();
    assert_eq!(
        changes,
        [
            "veth0 rx-0 rps_cpus 0",
            "veth0 rx-0 rps_flow_cnt 64",
            "net.ipv4.tcp_rmem 4096 131072 6000000"
        ]
    );
    assert_eq!(bench.trials(), experiment.steps(), "{text}");
    let records = bench.records();
    let maps = records.iter().filter(|record| matches!(record, Record::Map(_))).count();
    assert_eq!((records.len(), maps), (2 * 2 * 3 + 2 * 3 + 2, 2 * 3));
    predictions_precede_measurements(&records);
    let mut requests = 0;
    for record in &records {
        let Record::Trial(trial) = record else { continue };
        // this machine was the server, the other the client; both were measured
        let run = &trial.runs[0];
        assert_eq!(run.server.totals.requests, run.totals.requests);
        requests += run.totals.requests;
        assert!(run.address.starts_with("192.0.2.2:") && trial.between.is_none());
        assert!(trial.under_test().unwrap().rates.netdevs.contains_key("veth0"));
    }
    assert!(requests > 0);
    let commands = std::fs::read_to_string(bench.folder().join("commands.txt")).unwrap();
    for words in [
        "netsilo-bench serve --bind 192.0.2.1 --port 12870",
        "netsilo-bench run 192.0.2.2 -t TCP_RR -n 3",
    ] {
        assert!(commands.contains(words), "{commands}");
    }
    let machine = bench.folder().join("machine.tar.zst");
    let shown = Command::new(netsilo()).args(["show", "--from"]).arg(machine).output().unwrap();
    assert!(shown.status.success(), "{}", output_of(&shown).1);
    let (code, text) = output_of(&bench.resume(&[]));
    assert!(code == Some(0) && text.contains("no trial is missing"), "{text}");
    // if others can write to a folder, they may have written its commands
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(bench.folder().join("experiment.json"), mode(0o666)).unwrap();
    let (code, text) = output_of(&bench.resume(&[]));
    assert!(code == Some(1) && text.contains("use --trust"), "{text}");
    let (code, text) = output_of(&bench.resume(&["--trust"]));
    assert!(code == Some(0) && text.contains("no trial is missing"), "{text}");
}

#[test]
fn an_interrupted_run_restores_everything_and_can_be_resumed() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("resume");
    let before = bench.knobs();
    let more = ["-d", "1s", "--rounds", "2", "--no-map"];
    let mut run = bench.compare(&[NONE, RPS_RFS], "[1]", &more);
    let child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    bench.until("a setting is in effect after a trial", |it| {
        !it.trials().is_empty() && it.knobs() != before
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let (code, text) = output_of(&child.wait_with_output().unwrap());
    assert_eq!((code, bench.knobs()), (Some(1), before.clone()), "{text}");
    assert!(text.contains("interrupted; everything is restored"), "{text}");
    // a machine that dies may leave an incomplete last line
    let file = std::fs::OpenOptions::new().append(true).open(bench.folder().join("records.jsonl"));
    file.unwrap().write_all(b"{\"trial\":{\"round\":0,").unwrap();
    // another program changed a knob of a setting meanwhile
    bench.sh("echo 2 >/sys/class/net/veth0/queues/rx-0/rps_cpus");
    let (code, text) = output_of(&bench.resume(&[]));
    assert!(code == Some(1) && text.contains("was none when the run began"), "{text}");
    bench.sh("echo 0 >/sys/class/net/veth0/queues/rx-0/rps_cpus");
    let (code, text) = output_of(&bench.resume(&[]));
    assert_eq!((code, bench.knobs()), (Some(0), before), "{text}");
    assert_eq!(bench.trials(), bench.experiment().steps());
}

#[test]
fn a_guard_restores_however_a_run_ends() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("killed");
    let before = bench.knobs();
    let end_when_changed = |mut run: Command, signal: Signal| {
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        bench.until("something is changed", |it| it.knobs() != before);
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
    };
    // SIGABRT: a panic in a release build
    for signal in [Signal::ABORT, Signal::KILL] {
        let more = ["-d", "4s", "--rounds", "6", "--no-map"];
        end_when_changed(bench.compare(&[NONE, RPS_RFS], "[1]", &more), signal);
        bench.until("the guard restores", |it| it.knobs() == before);
        std::fs::remove_dir_all(bench.folder()).unwrap();
    }
    // while the command of a setting has done half of its work, there is no guard
    let half = peer(&format!("{PEER}; sleep 600"));
    end_when_changed(bench.compare(&[NONE, &half], "[1]", &["-d", "1s"]), Signal::KILL);
    let (code, text) = output_of(&bench.program(&netsilo(), &["undo"]).output().unwrap());
    assert_eq!((code, bench.knobs()), (Some(0), before.clone()), "{text}");
    let sleeping = bench.sh("pgrep -f '[s]leep 600' || true");
    for pid in sleeping.split_whitespace() {
        let in_here = bench.sh(&format!("ip netns identify {pid}"));
        if in_here.trim() == bench.cable.0[1] {
            kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
        }
    }
}

#[test]
fn a_command_that_changes_more_than_netsilo_can_restore_is_refused() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let bench = Bench::new("refused");
    let before = bench.knobs();
    let refused = |command: &str, why: &str| {
        let mut run = bench.compare(&[NONE, &peer(command)], "[1]", &["-d", "100ms"]);
        let (code, text) = output_of(&run.output().unwrap());
        assert!(code == Some(1) && text.contains(why), "{code:?} {text}");
        assert_eq!(bench.knobs(), before, "{text}");
        assert!(!bench.folder().exists());
    };
    let length = format!("{PEER}; ip link set veth0 txqueuelen 77");
    refused(&length, "veth0 txqueuelen was 1000 and is 77");
    refused(
        "echo 77 >/proc/sys/net/ipv4/tcp_fin_timeout",
        "net.ipv4.tcp_fin_timeout was 60 and is 77",
    );
    refused(
        &format!("{PEER}; exit 3"),
        "its command failed (exit status: 3); its changes are undone",
    );
    refused("true", "peer: changes nothing here, so it is left out");
    refused("true", "there is nothing to compare");
}

/// Reads the records of a run.
fn records(folder: &Path) -> Vec<Record> {
    let records = std::fs::read_to_string(folder.join("records.jsonl")).unwrap();
    records.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn without_a_reachable_peer_nothing_is_started() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut bench = Bench::new("alone");
    bench.agent.kill().unwrap();
    bench.agent.wait().unwrap();
    let mut run = bench.compare(&[NONE, RPS_RFS], "[1]", &["-d", "100ms"]);
    let (code, text) = output_of(&run.output().unwrap());
    assert!(code == Some(1) && text.contains("no server at 192.0.2.1:12870"), "{text}");
    assert!(!bench.folder().exists());
}
