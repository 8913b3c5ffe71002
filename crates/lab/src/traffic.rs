//! Traffic with exact counts: the reference for tests of attribution, and the demo's load.
//!
//! One program for guests, peers and plain namespaces, `netsilo-lab traffic VERB`, prints one JSON
//! value at its end. Clients wait for their server to appear, so callers need no sleeps.

mod consume;
mod produce;
mod recvmmsg;
mod rr_client;
mod rr_server;
mod socket;
mod udp;
mod uring;
mod zerocopy;

pub use consume::{Consume, Consumed, ConsumedSocket, Mode};
pub use produce::{Produce, Produced, ProducedFlow};
pub use rr_client::{Connection, RrClient, RrReport};
pub use rr_server::{RrServed, RrServer};
pub use socket::CpuList;

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// How long clients wait for their server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Verbs of `netsilo-lab traffic`.
#[derive(Debug, Clone, Subcommand)]
pub enum Traffic {
    /// Answer requests with one pinned process per CPU, the i-th on port + i; print JSON per worker
    /// on SIGTERM
    RrServer(RrServer),
    /// Send requests one after the other on each of many connections, for a given time
    RrClient(RrClient),
    /// Receive streams in a given way and count every byte
    Consume(Consume),
    /// Send an exact number of bytes on each of several flows
    Produce(Produce),
}

/// Layer-4 protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl std::fmt::Display for Proto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Tcp { "tcp" } else { "udp" })
    }
}

/// Runs a verb and prints its result as JSON.
pub fn run(traffic: &Traffic) -> Result<()> {
    match traffic {
        Traffic::RrServer(server) => rr_server::run(server),
        Traffic::RrClient(client) => print(&rr_client::run(client)?),
        Traffic::Consume(consume) => print(&consume::run(consume)?),
        Traffic::Produce(produce) => print(&produce::run(produce)?),
    }
}

/// Returns the path of `netsilo-lab`, to run in guests and peers: this program, or the one built in
/// the same folder as this test.
pub fn program() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let candidates = this.ancestors().take(3).map(|dir| dir.with_file_name("netsilo-lab"));
    let found = std::iter::once(this.clone())
        .chain(candidates)
        .find(|path| path.file_name().is_some_and(|name| name == "netsilo-lab") && path.is_file());
    found.with_context(|| {
        format!("no netsilo-lab beside {}: run cargo build -p netsilo-lab", this.display())
    })
}

/// Returns the shell command that runs a traffic verb.
pub(crate) fn command(words: &str) -> Result<String> {
    Ok(format!("exec '{}' traffic {words}", program()?.display()))
}

fn print(report: &impl Serialize) -> Result<()> {
    // A single write: several workers may share this output.
    std::io::stdout().write_all(format!("{}\n", serde_json::to_string(report)?).as_bytes())?;
    Ok(())
}
