//! The filter `--ndjson` as a program. Its answers equal those of the verbs, and its memory is
//! limited.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

mod conforms;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Output, Stdio};
use std::thread;

use conforms::conforming;
use netsilo_lab::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const HOST: &str = include_str!("../../../fixtures/observation-schema-1.ndjson");
const BUNDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/igb-6.12.tar.zst");

fn filter(verb: &str, input: String) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    fed(command.args([verb, "--ndjson"]), input)
}

/// Runs a command with this standard input.
fn fed(command: &mut Command, input: String) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// The lines of an output. Each conforms to the schema of lines.
fn conforming_lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| conforming("ndjson", line.as_bytes())).collect()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_answer_for_a_bundle_is_that_of_the_verb() {
    for verb in ["plan", "check"] {
        let alone = Command::new(env!("CARGO_BIN_EXE_netsilo"))
            .args([verb, "--json", "--from", BUNDLE])
            .output()
            .unwrap();
        let output = filter(verb, format!("{BUNDLE}\n"));
        assert_eq!(output.status.code(), Some(0));
        let line = &conforming_lines(&output)[0];
        let mut alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
        // A line has its own schema number, and needs no version.
        alone.as_object_mut().unwrap().retain(|name, _| name != "schema" && name != "netsilo");
        assert_eq!(line[verb], alone);
        assert_eq!((&line["bundle"], &line["host"]["name"]), (&BUNDLE.into(), &"host".into()));
    }
}

#[test]
fn a_forecast_is_that_of_the_verb_and_a_host_without_one_has_the_reason() {
    let veth = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/outcomes/veth/tcp-rr-x-16-from-0-0.tar.zst"
    );
    let asked = ["predict", "--setting", "same-cpu", "--setting", "rps=0-1"];
    let mut alone = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    let alone = alone.args(asked).args(["--json", "--from", veth]).output().unwrap();
    let mut alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
    alone.as_object_mut().unwrap().remove("schema");
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    let output = fed(command.args(asked).arg("--ndjson"), format!("{veth}\n{BUNDLE}\n"));
    assert_eq!(output.status.code(), Some(12));
    let lines = conforming_lines(&output);
    assert_eq!(lines[0]["forecast"], alone);
    assert!(lines[1]["error"].as_str().unwrap().starts_with("cannot predict: "), "{}", lines[1]);
}

#[test]
fn the_exit_code_counts_lines_that_could_not_be_used() {
    let output = filter("check", format!("{HOST}{{}}\n{HOST}"));
    assert_eq!(output.status.code(), Some(12));
    let lines = conforming_lines(&output);
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[1]["line"], lines[1].get("check")), (&2.into(), None));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "netsilo: 1 of 3 lines could not be used: each has an \"error\" with the reason\n"
    );
}

/// The child processes of a process.
fn children(pid: u32) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    let pids = tasks.filter_map(|task| of_task(task.ok()?).ok()).collect::<Vec<_>>().concat();
    let pid = |pid: &str| Pid::from_raw(pid.parse().unwrap()).unwrap();
    pids.split_whitespace().map(pid).collect()
}

/// The state of a process, and what follows it in `stat`.
fn state(process: &Pid) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap();
    stat.rsplit_once(") ").unwrap().1.to_owned()
}

/// Whether a process has input that it has not read.
fn has_input(process: &Pid) -> bool {
    let pid = process.as_raw_nonzero();
    let stdin = std::fs::File::open(format!("/proc/{pid}/fd/0"));
    stdin.is_ok_and(|stdin| rustix::io::ioctl_fionread(stdin).is_ok_and(|bytes| bytes > 0))
}

#[test]
fn a_line_that_ends_its_worker_has_an_error_and_later_lines_are_answered() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    command.args(["check", "--ndjson"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut filter = command.spawn().unwrap();
    let mut stdin = filter.stdin.take().unwrap();
    let mut stdout = BufReader::new(filter.stdout.take().unwrap());
    // each worker answers one line, and waits for the next
    let workers = thread::available_parallelism().unwrap().get();
    stdin.write_all(HOST.repeat(workers).as_bytes()).unwrap();
    let mut answers = String::new();
    for _ in 0..workers {
        stdout.read_line(&mut answers).unwrap();
    }
    let all = children(filter.id());
    assert_eq!(all.len(), workers);
    for worker in &all {
        kill_process(*worker, Signal::STOP).unwrap();
        until("it stops", || state(worker), |state| state.starts_with('T')).unwrap();
    }
    stdin.write_all(HOST.as_bytes()).unwrap();
    let with_line = || all.iter().copied().find(has_input);
    let with_line = until("a worker has the line", with_line, Option::is_some).unwrap().unwrap();
    // as a panic in a release build
    kill_process(with_line, Signal::ABORT).unwrap();
    for worker in &all {
        kill_process(*worker, Signal::CONT).unwrap();
    }
    stdin.write_all(HOST.repeat(3).as_bytes()).unwrap();
    drop(stdin);
    stdout.read_to_string(&mut answers).unwrap();
    assert_eq!(filter.wait().unwrap().code(), Some(12));
    let lines: Vec<Value> =
        answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let errors: Vec<&Value> = lines.iter().filter(|line| line["error"].is_string()).collect();
    assert_eq!((lines.len(), errors.len()), (workers + 4, 1), "{lines:?}");
    let why = "a defect of netsilo: its worker ended (signal: 6 (SIGABRT)";
    assert!(errors[0]["error"].as_str().unwrap().starts_with(why), "{}", errors[0]);
    assert_eq!(errors[0]["line"], workers + 1);
}

#[test]
fn no_number_of_the_input_sizes_the_memory() {
    // Each number of an observation in turn, set to the limits of its type.
    let document: Value = serde_json::from_str(HOST).unwrap();
    let mut paths = Vec::new();
    numbers(&document, String::new(), &mut paths);
    assert!(paths.len() > 500, "{}", paths.len());
    let mut input = String::new();
    for (path, value) in
        paths.iter().step_by(13).zip([u64::from(u32::MAX), u64::MAX].iter().cycle())
    {
        let mut changed = document.clone();
        *changed.pointer_mut(path).unwrap() = (*value).into();
        input += &format!("{changed}\n");
    }
    let count = input.lines().count();
    // 512 MiB of address space for threads, program and lines
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -v 524288; exec \"$0\" plan --ndjson",
        env!("CARGO_BIN_EXE_netsilo"),
    ]);
    let output = fed(&mut command, input);
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 12)), "{:?} {stderr}", output.status);
    assert_eq!(lines(&output).len(), count);
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// The JSON pointers of all numbers.
fn numbers(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(at, it)| numbers(it, format!("{path}/{at}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, it)| numbers(it, format!("{path}/{name}"), found));
        }
        _ => (),
    }
}

#[test]
fn what_capture_prints_is_read() {
    let captured = Command::new(env!("CARGO_BIN_EXE_netsilo"))
        .args(["capture", "--ndjson", "--no-bpf", "--interval", "100ms", "--for", "200ms"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(captured.stderr).unwrap();
    assert_eq!(captured.status.code(), Some(0), "{stderr}");
    let windows = String::from_utf8(captured.stdout).unwrap();
    assert_eq!(windows.lines().count(), 2);
    let output = filter("plan", windows);
    assert_eq!(output.status.code(), Some(0));
    let name = lines(&output)[1]["host"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("host-"), "the name is replaced: {name}");
}
