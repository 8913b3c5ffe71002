//! `netsilo pin` on processes of the test itself; `lab_pin.rs` tests cgroups in a guest.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

mod conforms;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use conforms::conforming;
use netsilo_model::machine::cpuset::CpuSet;
use serde_json::Value;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Lock for one test at a time, because pinning this process also pins what other tests start in
/// it.
static ONE: Mutex<()> = Mutex::new(());

/// Returns whether the test cannot run here, and prints why.
fn skip() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "moving threads needs root"
    } else if std::thread::available_parallelism().unwrap().get() < 2 {
        "there is only one cpu"
    } else {
        return false;
    };
    assert!(std::env::var_os("NETSILO_NO_SKIP").is_none(), "{why}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
    true
}

fn netsilo(arguments: &[&str], state: &std::path::Path) -> Output {
    let mut command = Command::new(NETSILO);
    command.args(arguments).arg("--state-dir").arg(state).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns the CPUs of each thread of a process.
fn cpus(pid: u32) -> BTreeMap<u32, CpuSet> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tid = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse().unwrap()
    };
    let allowed = |tid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        (tid, CpuSet::parse_list(list.trim()).unwrap())
    };
    tasks.map(tid).map(allowed).collect()
}

struct Sleeper(Child);

impl Sleeper {
    /// Starts a process whose name no other process has.
    fn start(program: &std::path::Path) -> Self {
        Self(Command::new(program).arg("600").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_thread_is_pinned_and_undo_restores_each_threads_cpus() {
    if skip() {
        return;
    }
    let _one = ONE.lock();
    let state = tempfile::tempdir().unwrap();
    let me = std::process::id();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || wait.recv().is_err());
    let before = cpus(me);
    assert!(before.len() > 1);
    // The harness itself starts and ends threads.
    let as_before = || cpus(me).iter().all(|(tid, now)| before.get(tid).is_none_or(|it| it == now));
    let one = before.values().next().unwrap().lowest().unwrap().to_string();
    let pid = me.to_string();
    let pin = |more: &[&str]| {
        netsilo(&[&["pin", "--pid", &pid, "--cpus", &one], more].concat(), state.path())
    };
    let planned = pin(&["--dry-run"]);
    assert!(said(&planned).contains("requested: it runs only on cpus"), "{}", said(&planned));
    assert!(as_before());
    let unasked = pin(&[]);
    assert_eq!((unasked.status.code(), as_before()), (Some(2), true), "{}", said(&unasked));
    let pinned = pin(&["--yes"]);
    let one = CpuSet::parse_list(&one).unwrap();
    let now = cpus(me);
    assert!(
        pinned.status.success()
            && before.keys().filter_map(|tid| now.get(tid)).all(|cpus| *cpus == one),
        "{}",
        said(&pinned)
    );
    assert!(said(&pin(&["--yes"])).contains("nothing to do"));
    let nothing: Value = serde_json::from_slice(&pin(&["--yes", "--json"]).stdout).unwrap();
    assert_eq!(nothing["transaction"], Value::Null);
    let undone = netsilo(&["undo"], state.path());
    assert!(as_before(), "{}", said(&undone));
    drop(done);
    assert!(thread.join().unwrap());
}

#[test]
fn undo_shows_what_was_written_and_what_it_would_restore() {
    if skip() {
        return;
    }
    let _one = ONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let sleepers = [(); 2].map(|()| Sleeper::start("/bin/sleep".as_ref()));
    let pids = sleepers.iter().map(|it| it.0.id().to_string()).collect::<Vec<_>>().join(",");
    let undo = |arguments: &[&str]| netsilo(&[&["undo"], arguments].concat(), dir.path());
    assert_eq!(said(&undo(&["--list"])), "nothing was written since boot\n");
    let pinned = netsilo(&["pin", "--pid", &pids, "--cpus", "0", "--yes"], dir.path());
    assert!(pinned.status.success(), "{}", said(&pinned));
    let (other, first) = (tempfile::tempdir().unwrap(), sleepers[0].0.id().to_string());
    let moved = netsilo(&["pin", "--pid", &first, "--cpus", "1", "--yes"], other.path());
    assert!(moved.status.success(), "{}", said(&moved));
    let list = said(&undo(&["--list"]));
    let rows = ["by pin: not undone", "-> 0; another program or the driver has changed it to 1"];
    assert!(rows.iter().all(|row| list.contains(row)), "{list}");
    assert!(list.ends_with("-> 0; in effect\nundo would restore 1 setting\n"), "{list}");
    assert_eq!(said(&undo(&["--dry-run"])), list);
    let missing = undo(&["--transaction", "99"]);
    assert_eq!(missing.status.code(), Some(1), "{}", said(&missing));
    assert!(said(&missing).contains("no transaction 99 since boot"), "{}", said(&missing));
    assert!(said(&undo(&["--yes"])).contains("1 of 2 settings restored"));
    let json = undo(&["--list", "--json"]);
    let list = conforming("undo-list", &json.stdout);
    let [one] = &list["transactions"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!((&one["state"], &one["verb"]), (&"undone by undo".into(), &"pin".into()));
    assert!(one["at"].as_u64().unwrap() > 1_700_000_000, "{list}");
    assert_eq!(said(&undo(&["--dry-run"])), "undo would restore 0 settings\n");
}

#[test]
fn processes_are_found_by_name_and_missing_ones_are_named() {
    if skip() {
        return;
    }
    let _one = ONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let name = format!("ns-pin-{}", std::process::id() % 1_000_000);
    let program = dir.path().join(&name);
    std::fs::copy("/bin/sleep", &program).unwrap();
    let sleepers = [Sleeper::start(&program), Sleeper::start(&program)];
    let before: Vec<_> = sleepers.iter().map(|it| cpus(it.0.id())).collect();
    let one = before[0].values().next().unwrap().lowest().unwrap().to_string();
    let pinned = netsilo(&["pin", "--comm", &name, "--cpus", &one, "--yes"], dir.path());
    assert!(pinned.status.success(), "{}", said(&pinned));
    for sleeper in &sleepers {
        assert!(cpus(sleeper.0.id()).values().all(|cpus| cpus.to_string() == one));
    }
    let undone = said(&netsilo(&["undo"], dir.path()));
    assert!(undone.contains("2 of 2 settings restored"), "{undone}{}", said(&pinned));
    assert_eq!(sleepers.iter().map(|it| cpus(it.0.id())).collect::<Vec<_>>(), before);
    let refused = |arguments: &[&str]| {
        let output = netsilo(&[&["pin", "--yes"], arguments].concat(), dir.path());
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    assert!(
        refused(&["--comm", "no-such-name", "--cpus", "0"])
            .contains("no process is called \"no-such-name\"")
    );
    assert!(refused(&["--pid", "4294967295", "--cpus", "0"]).contains("no process 4294967295"));
    assert!(refused(&["--comm", &name, "--cpus", "0,8191"]).contains("cpus 8191: not online"));
    let neither = netsilo(&["pin", "--cpus", "0"], dir.path());
    assert_eq!(neither.status.code(), Some(2), "{}", said(&neither));
}
