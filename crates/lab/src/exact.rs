//! Small programs with exact counts, for tests of attribution: readers of every kind that report
//! what they read, a program that takes packets like a virtual machine, and servers whose threads
//! and sleeps are known.
//!
//! `netsilo-lab exact VERB` runs in guests, at peers and in plain namespaces. Senders wait for
//! their receiver, so callers need no sleeps. Other load comes from `netsilo-bench`.

mod answer;
mod ask;
mod peer;
mod pin;
mod receive;
mod receive_args;
mod receive_udp;
mod received;
mod send;
mod tls;
mod uring;
mod vhost;
mod vmm;
mod zerocopy;

pub use answer::{Echo, Pipeline};
pub use ask::{Ask, Asked};
pub use receive_args::{Mode, Receive};
pub use received::{Received, ReceivedSocket};
pub use send::Send;
pub use vmm::{Taken, Vmm};

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Serialize;

/// Verbs of `netsilo-lab exact`.
#[derive(Debug, Clone, Subcommand)]
pub enum Exact {
    /// Receive flows in a given way, and count every byte
    Receive(Receive),
    /// Send an exact number of bytes on each of several flows
    Send(Send),
    /// Send back what arrives, in one thread
    Echo(Echo),
    /// Answer UDP requests with two processes, each on its CPU: one reads, the other answers
    Pipeline(Pipeline),
    /// Send requests one after another on each of several connections
    Ask(Ask),
    /// Take all packets of a tap, as the program of a virtual machine does
    Vmm(Vmm),
}

/// Runs a verb. Prints its counts as JSON.
pub fn run(exact: &Exact) -> Result<()> {
    match exact {
        Exact::Receive(receive) => print(&receive::run(receive)?),
        Exact::Send(send) => send.run(),
        Exact::Echo(echo) => echo.run(),
        Exact::Pipeline(pipeline) => pipeline.run(),
        Exact::Ask(ask) => print(&ask.run()?),
        Exact::Vmm(vmm) => print(&vmm.run()?),
    }
}

/// Returns the path of `netsilo-lab`, to run in guests and peers. It is this program, or the one
/// built in the same folder as this test.
pub fn program() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let candidates = this.ancestors().take(3).map(|dir| dir.with_file_name("netsilo-lab"));
    let found = std::iter::once(this.clone())
        .chain(candidates)
        .find(|path| path.file_name().is_some_and(|name| name == "netsilo-lab") && path.is_file());
    found.with_context(|| {
        format!("no netsilo-lab next to {}: run cargo build -p netsilo-lab", this.display())
    })
}

/// Returns the shell command that runs a verb.
pub fn command(words: &str) -> Result<String> {
    Ok(format!("exec '{}' exact {words}", program()?.display()))
}

fn print(counts: &impl Serialize) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(counts)?)?)
}
