//! What a run of a program takes, counted by valgrind: the same in each run on one machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Counts of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Counted {
    /// In user space.
    pub(crate) instructions: u64,
    pub(crate) system_calls: u64,
    /// How often memory of the heap was allocated.
    pub(crate) allocations: u64,
    /// The most bytes of the heap in use at once.
    pub(crate) heap_bytes: u64,
}

impl Counted {
    /// Each count, with its name.
    pub(crate) fn each(&self) -> [(&'static str, u64); 4] {
        [
            ("instructions", self.instructions),
            ("system-calls", self.system_calls),
            ("allocations", self.allocations),
            ("heap-bytes", self.heap_bytes),
        ]
    }
}

/// Runs a program to its end. It must succeed, or end with exit code 11 (`check` has findings).
pub(crate) fn counted(program: &Path, arguments: &[&str]) -> Counted {
    let dir = tempfile::tempdir().unwrap();
    let [log, profile] = ["log", "profile"].map(|name| dir.path().join(name));
    let mut command = Command::new("valgrind");
    command.args(["--tool=dhat", "--trace-syscalls=yes"]);
    command.arg(format!("--log-file={}", log.display()));
    command.arg(format!("--dhat-out-file={}", profile.display()));
    command.arg(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().expect("valgrind is installed (scripts/setup --test)");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        matches!(output.status.code(), Some(0 | 11)),
        "{arguments:?}: {}: {told}",
        output.status
    );
    let log = fs::read_to_string(log).unwrap();
    let profile: serde_json::Value = serde_json::from_slice(&fs::read(profile).unwrap()).unwrap();
    // `==7== Total:     1,234 bytes in 56 blocks`, and the same at the peak (`t-gmax`)
    let number = |row: &str, word: usize| -> u64 {
        let (_, rest) = log.lines().find_map(|line| line.split_once(row)).unwrap();
        rest.split_ascii_whitespace().nth(word).unwrap().replace(',', "").parse().unwrap()
    };
    // The result of a call that waited is on a line of its own.
    let is_call = |line: &&str| line.starts_with("SYSCALL[") && !line.contains(") ... [async]");
    Counted {
        instructions: profile["te"].as_u64().unwrap(),
        system_calls: log.lines().filter(is_call).count() as u64,
        allocations: number("Total:", 3),
        heap_bytes: number("At t-gmax:", 0),
    }
}
