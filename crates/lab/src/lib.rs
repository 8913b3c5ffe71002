//! Real kernels with real NIC queues in small virtual machines: netsilo's laboratory.
//!
//! [`Lab::boot`] a [`Spec`], [`Lab::run`] commands in it (the host's own tools and freshly built binaries, at
//! the same paths), [`Peer::run`] commands at the other end of its cables. Dropped, or killed, it leaves nothing.

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
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// How long `run` waits for a command: ten times what the slowest takes on an idle machine.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(180);

/// How long something that was told to end may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// For tests: true if the lab cannot run here, having said why; an error if `NETSILO_NO_SKIP` forbids that.
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

/// Tells the person at the terminal; a closed standard error is no reason to fail.
fn note(message: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {message}");
}

/// A command as an error message shows it.
fn one_line(command: &str) -> String {
    let mut line: String = command.chars().take(120).map(|c| if c == '\n' { ';' } else { c }).collect();
    if line.len() < command.len() {
        line.push_str("...");
    }
    line
}
