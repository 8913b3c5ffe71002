//! Boots real kernels with real NIC queues in small virtual machines, for netsilo's tests.
//!
//! [`Lab::boot`] boots a [`Spec`]; [`Lab::run`] runs commands in it (the host's own tools and
//! freshly built binaries, at the same paths); [`Peer::run`] runs commands at the other end of its
//! cables. Nothing remains after a drop or a kill.

mod apt;
mod cable;
mod cache;
mod command;
mod emulator;
mod frame;
mod guest;
mod initrd;
mod kernels;
mod lab;
mod output;
mod programs;
mod qemu;
mod qmp;
mod room;
mod setup;
mod spec;
mod tools;
pub mod traffic;

pub use cable::Cable;
pub use emulator::Accel;
pub use guest::Job;
pub use kernels::{Image, Kernel};
pub use lab::Lab;
pub use output::Output;
pub use programs::{irqbalance, tuned, udevadm};
pub use room::{Peer, PeerJob};
pub use rustix::process::Signal;
pub use spec::{Nic, NicModel, Spec, Threads};
pub use tools::promtool;

use anyhow::{Result, bail};
use std::fmt::Debug;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long `run` waits for a command: ten times the slowest on an idle machine.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(180);

/// How long a condition may take to become true on a slow, busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a process may take to end after a request.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// For tests: prints why the lab cannot run here and returns `true`; an error instead if
/// `NETSILO_NO_SKIP` is set.
pub fn skip() -> Result<bool> {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/net/tun").exists() {
        "/dev/net/tun"
    } else {
        return Ok(false);
    };
    if std::env::var_os("NETSILO_NO_SKIP").is_some() {
        bail!("the lab needs {missing}, and NETSILO_NO_SKIP is set");
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED: the lab needs {missing}");
    Ok(true)
}

/// For tests: calls `look` until its value `fits`; the error shows the last value.
pub fn until<T: Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    mut fits: impl FnMut(&T) -> bool,
) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = look();
        if fits(&seen) {
            return Ok(seen);
        }
        if Instant::now() > end {
            bail!("not within {PATIENCE:?}: {what}; last seen: {seen:#?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// For tests: returns the exit code of a program that ran here, and all its output.
pub fn said(output: &std::process::Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Prints a message on standard error and ignores failure.
fn note(message: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {message}");
}

/// Shortens a command for an error message.
fn one_line(command: &str) -> String {
    let mut line: String =
        command.chars().take(120).map(|c| if c == '\n' { ';' } else { c }).collect();
    if line.len() < command.len() {
        line.push_str("...");
    }
    line
}
