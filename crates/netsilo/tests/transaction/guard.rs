//! `apply --confirm-within`: the guard outlives the terminal, the command line and an `apply` that
//! hangs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netsilo_lab::output_of;
use rustix::process::Signal;

use super::conforms::conforming;
use super::host::Host;
use super::host::kill;
use netsilo_sys::clock::since_boot;

const OLD: [&str; 2] = ["01\n", "01\n"];
const NEW: [&str; 2] = ["10", "10"];

/// Returns the deadline of the only transaction.
fn deadline(host: &Host) -> Duration {
    serde_json::from_value(host.records("begin")[0]["confirm_by"].clone()).unwrap()
}

fn restored_by_the_guard(host: &Host) {
    host.until("the guard restores", |host| !host.records("undone").is_empty());
    assert!(since_boot() >= deadline(host), "not before the deadline");
    assert_eq!(host.affinities(), OLD);
    assert_eq!(host.records("undone")[0]["by"], "guard");
    host.until("the guard ends", |host| host.guards().is_empty());
}

/// Ends an apply before its deadline without confirmation. Repeats with more time on a busy
/// machine.
fn ended_before_the_deadline(end: impl Fn(&Host, &str)) -> Host {
    for within in ["2s", "10s", "60s"] {
        let host = Host::new();
        end(&host, within);
        let seen = (host.guards().len(), host.affinities());
        if since_boot() < deadline(&host) {
            assert_eq!(seen.0, 1, "the guard is there");
            assert_ne!(seen.1, OLD, "and has done nothing");
            return host;
        }
        restored_by_the_guard(&host);
    }
    panic!("it took more than a minute")
}

#[test]
fn the_guard_outlives_the_terminal() {
    let host = ended_before_the_deadline(|host, within| {
        // `script` is the terminal: when it dies, all processes in it get SIGHUP.
        let mut terminal = Command::new("script");
        let apply = format!("exec {}", host.words("apply", &["--yes", "--confirm-within", within]));
        terminal.args(["-qec", &apply, "/dev/null"]);
        let mut terminal = terminal.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        host.until("all is written", |host| !host.records("done").is_empty());
        let apply = host.records("begin")[0]["pid"].as_i64().unwrap() as i32;
        terminal.kill().unwrap();
        terminal.wait().unwrap();
        host.until("apply is hung up on", |_| kill(apply, Signal::CONT).is_err());
    });
    assert_eq!(host.affinities(), NEW);
    restored_by_the_guard(&host);
}

#[test]
fn the_guard_does_not_keep_inherited_descriptors_open() {
    let host = Host::new();
    let apply = host.words("apply", &["--yes", "--confirm-within", "600s"]);
    let began = Instant::now();
    let output = Command::new("sh").args(["-c", &format!("exec {apply} 7>&1")]).output().unwrap();
    assert!(output.status.success() && began.elapsed() < Duration::from_secs(300));
    assert_eq!(host.guards().len(), 1);
    host.run("undo", &[]);
    assert_eq!(host.affinities(), OLD);
}

#[test]
fn the_guard_outlives_apply() {
    let host = ended_before_the_deadline(|host, within| {
        let mut apply = host.start("apply", &["--yes", "--confirm-within", within]);
        host.until("something was written", |host| !host.records("wrote").is_empty());
        apply.kill().unwrap();
        apply.wait().unwrap();
    });
    restored_by_the_guard(&host);
    let (code, text) = output_of(&host.run("confirm", &[]));
    assert_eq!(code, Some(1));
    assert!(
        text.contains("too late: transaction 1 was undone when its time limit passed"),
        "{text}"
    );
}

#[test]
fn a_confirmed_transaction_stays_and_its_guard_ends_at_once() {
    let host = Host::new();
    let (code, text) = output_of(&host.run("apply", &["--yes", "--confirm-within", "1h"]));
    assert_eq!(code, Some(0), "{text}");
    let hint = format!("run `{}` within 1h or they are restored", host.hint("confirm"));
    assert!(text.contains(&hint), "{text}");
    assert_eq!(host.guards().len(), 1);
    let (code, text) = output_of(&host.run("confirm", &[]));
    assert_eq!((code, text.contains("transaction 1 is confirmed")), (Some(0), true), "{text}");
    host.until("the guard ends", |host| host.guards().is_empty());
    assert_eq!(host.affinities(), NEW);
    assert_eq!(output_of(&host.run("undo", &[])).0, Some(0));
    assert_eq!(host.affinities(), OLD);
    let (code, text) = output_of(&host.run("confirm", &[]));
    let nothing = "nothing awaits confirmation: undo undid transaction 1";
    assert!(code == Some(1) && text.contains(nothing), "{text}");
}

#[test]
fn a_confirmation_just_before_the_guards_end_counts() {
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes", "--confirm-within", "1h"])).0, Some(0));
    let guard = host.guards()[0];
    kill(guard, Signal::STOP).unwrap();
    let kept = host.run("confirm", &["--json"]);
    assert_eq!(conforming("confirm", &kept.stdout)["confirmed"], 1);
    // it sees both at once
    kill(guard, Signal::TERM).unwrap();
    kill(guard, Signal::CONT).unwrap();
    host.until("the guard ends", |host| host.guards().is_empty());
    assert_eq!((host.affinities(), host.records("undone").len()), (NEW.map(str::to_owned), 0));
}

#[test]
fn undo_before_the_deadline_leaves_the_guard_nothing_to_do() {
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes", "--confirm-within", "1h"])).0, Some(0));
    assert_eq!(output_of(&host.run("undo", &[])).0, Some(0));
    host.until("the guard ends", |host| host.guards().is_empty());
    assert_eq!((host.affinities(), host.records("undone").len()), (OLD.map(str::to_owned), 1));
}

#[test]
fn a_guard_that_is_terminated_restores_first() {
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes", "--confirm-within", "1h"])).0, Some(0));
    let guard = host.guards()[0];
    for deaf in [Signal::HUP, Signal::INT] {
        kill(guard, deaf).unwrap();
    }
    kill(guard, Signal::TERM).unwrap();
    host.until("the guard ends", |host| host.guards().is_empty());
    assert_eq!((host.affinities(), host.records("undone").len()), (OLD.map(str::to_owned), 1));
}

#[test]
fn the_deadline_counts_even_if_the_guard_was_killed() {
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes", "--confirm-within", "3s"])).0, Some(0));
    kill(host.guards()[0], Signal::KILL).unwrap();
    host.until("the deadline is over", |host| since_boot() > deadline(host));
    assert_eq!(host.affinities(), NEW);
    let (code, text) = output_of(&host.run("confirm", &[]));
    assert_eq!(code, Some(1));
    assert!(text.contains("its time limit had passed and its guard process was gone"), "{text}");
    assert_eq!(host.affinities(), OLD);
}

#[test]
fn the_guard_ends_an_apply_that_hangs_and_restores() {
    let host = Host::new();
    let mut apply = host.hanging_apply("01\n", &["--yes", "--confirm-within", "1s"]);
    restored_by_the_guard(&host);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(apply.wait().unwrap().signal(), Some(9));
}

#[test]
fn undo_restores_after_a_kill_in_the_middle_of_writing() {
    let host = Host::new();
    let mut apply = host.hanging_apply("01\n", &["--yes"]);
    let (code, text) = output_of(&host.run("undo", &[]));
    assert_eq!(code, Some(1));
    assert!(
        text.contains(&format!("another netsilo (pid {}) is changing settings now", apply.id())),
        "{text}"
    );
    apply.kill().unwrap();
    apply.wait().unwrap();
    let (code, text) = output_of(&host.run("apply", &["--yes"]));
    assert_eq!(code, Some(1));
    assert!(
        text.contains(
            "an earlier apply (transaction 1) did not finish; run `netsilo undo --state-dir "
        ),
        "{text}"
    );
    assert_eq!(output_of(&host.run("undo", &[])).0, Some(0));
    assert_eq!(host.affinities(), OLD);
}
