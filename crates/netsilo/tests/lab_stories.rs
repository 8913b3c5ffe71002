//! The stories in `tests/`, with the programs that `cargo test --workspace` builds.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The most lines of a story.
const LINES: usize = 40;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// Runs a story; what it prints is shown if it fails.
fn told(story: &str) {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = netsilo_lab::exact::program().unwrap();
    let mut command = Command::new(folder().join(story));
    let output = command.env("NETSILO_PROGRAMS", lab.parent().unwrap()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{story}: {}", output.status);
}

macro_rules! stories {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            told(&stringify!($name).replace('_', "-"));
        })*

        #[test]
        fn each_story_runs_here_and_has_at_most_40_lines() {
            let mut found = BTreeSet::new();
            for entry in fs::read_dir(folder()).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().replace('-', "_");
                if !["README.md", "story"].contains(&name.as_str()) {
                    let lines = fs::read_to_string(&path).unwrap().lines().count();
                    assert!(lines <= LINES, "{name}: {lines}");
                    found.insert(name);
                }
            }
            assert_eq!(found, [$(stringify!($name).to_owned()),*].into());
        }
    };
}

stories! {
    a_pod_drops
    a_report_from_elsewhere
    a_router
    a_vm_waits
    does_it_help_here
    irqbalance_fights
    kill_9
    one_queue_fills_a_cpu
    readers_on_the_wrong_node
    reboot
}
