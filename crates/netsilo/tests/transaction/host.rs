//! A host of plain files with two interrupts, and netsilo's verbs on it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use netsilo_lab::until;
use rustix::fs::{CWD, FileType, Mode};
use serde_json::json;

pub(crate) struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        host.put("proc/sys/kernel/random/boot_id", "6a5b\n");
        host.put("sys/devices/system/cpu/possible", "0-7\n");
        host.put("sys/devices/system/cpu/online", "0-7\n");
        for (irq, action) in [(27, "virtio0-input.0"), (28, "virtio0-input.1")] {
            host.put(&format!("proc/irq/{irq}/smp_affinity"), "01\n");
            host.put(&format!("sys/kernel/irq/{irq}/actions"), &format!("{action}\n"));
            host.put(&format!("sys/kernel/irq/{irq}/per_cpu_count"), "9,0,0,0,0,0,0,0\n");
        }
        let change = |irq: u32, n: u32| {
            let action = format!("virtio0-input.{n}");
            let target = json!({
                "knob": "irq_affinity", "irq": irq, "action": action, "netdev": null,
            });
            json!({
                "target": target, "old": { "cpus": "0" }, "new": { "cpus": "4" },
                "reason": "rx follows its reader",
            })
        };
        host.put("plan.json", &json!({ "changes": [change(27, 0), change(28, 1)] }).to_string());
        host
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn affinity_file(&self, irq: u32) -> PathBuf {
        self.root().join(format!("proc/irq/{irq}/smp_affinity"))
    }

    /// Reads the affinity files of both interrupts.
    pub(crate) fn affinities(&self) -> [String; 2] {
        [27, 28].map(|irq| std::fs::read_to_string(self.affinity_file(irq)).unwrap())
    }

    /// A command line as netsilo hints at it.
    pub(crate) fn hint(&self, verb: &str) -> String {
        let (state, root) = (self.state(), self.root());
        format!("netsilo {verb} --state-dir {} --root {}", state.display(), root.display())
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root().join("run/netsilo")
    }

    /// Returns a verb with this host's folders; `apply` with its plan.
    pub(crate) fn verb(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
        command.arg(verb).arg("--root").arg(self.root()).arg("--state-dir").arg(self.state());
        if verb == "apply" {
            command.arg("--plan").arg(self.root().join("plan.json"));
        }
        command.args(more).stdin(Stdio::null());
        command
    }

    /// Returns the same command for a shell.
    pub(crate) fn words(&self, verb: &str, more: &[&str]) -> String {
        let command = self.verb(verb, more);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        words.join(" ")
    }

    pub(crate) fn run(&self, verb: &str, more: &[&str]) -> Output {
        self.verb(verb, more).output().unwrap()
    }

    /// Starts a verb and discards its output.
    pub(crate) fn start(&self, verb: &str, more: &[&str]) -> Child {
        self.verb(verb, more).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts an apply that hangs while it writes the second knob and holds the lock. Every other
    /// reader of that knob gets `text`.
    pub(crate) fn hanging_apply(&self, text: &str, more: &[&str]) -> Child {
        let (knob, pipe) = (self.affinity_file(28), self.root().join("pipe"));
        std::fs::remove_file(&knob).unwrap();
        rustix::fs::mknodat(CWD, &knob, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let apply = self.start("apply", more);
        // apply first reads the old value through the pipe, then hangs when it opens the pipe for
        // writing.
        std::fs::write(&knob, "01\n").unwrap();
        self.until("the first knob is written", |host| host.records("wrote").len() == 1);
        std::fs::rename(&knob, pipe).unwrap();
        std::fs::write(&knob, text).unwrap();
        apply
    }

    /// Lets the hanging apply finish its write.
    pub(crate) fn let_it_write(&self) {
        assert_eq!(std::fs::read_to_string(self.root().join("pipe")).unwrap(), "10");
    }

    pub(crate) fn edit_plan(&self, edit: impl FnOnce(&mut serde_json::Value)) {
        let text = std::fs::read_to_string(self.root().join("plan.json")).unwrap();
        let mut plan = serde_json::from_str(&text).unwrap();
        edit(&mut plan);
        self.put("plan.json", &plan.to_string());
    }

    /// Returns the process ids of the guards of this host's journal.
    pub(crate) fn guards(&self) -> Vec<i32> {
        let state = self.state().to_string_lossy().into_owned();
        let of_this_host = |pid: &i32| {
            let cmdline =
                std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = cmdline.split('\0');
            words.nth(1) == Some("guard") && words.any(|word| word == state)
        };
        let pids = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(of_this_host).collect()
    }

    /// Returns the journal's records of this kind.
    pub(crate) fn records(&self, kind: &str) -> Vec<serde_json::Value> {
        let journal = std::fs::read_to_string(self.state().join("journal")).unwrap_or_default();
        let records =
            journal.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        records.filter(|record| record["record"] == kind).collect()
    }

    /// Waits until `holds` is true. Fails the test after two minutes.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let log = || std::fs::read_to_string(self.state().join("guard.log")).unwrap_or_default();
        until(what, || holds(self), |it| *it)
            .unwrap_or_else(|error| panic!("{error}; guard.log: {}", log()));
    }
}

/// Kills all guards, so that none outlives its test.
impl Drop for Host {
    fn drop(&mut self) {
        for pid in self.guards() {
            let _ = kill(pid, rustix::process::Signal::KILL);
        }
    }
}

pub(crate) fn kill(pid: i32, signal: rustix::process::Signal) -> rustix::io::Result<()> {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal)
}
