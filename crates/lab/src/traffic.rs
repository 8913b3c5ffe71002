//! Traffic with exact counts: the ground truth that attribution is tested against, and the demo's
//! load.
//!
//! One program for guests, peers and plain namespaces: `netsilo-lab traffic VERB`, which prints one
//! JSON value when done. Clients wait for their server to appear, so nobody needs to sleep.

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

/// What to do with traffic.
#[derive(Debug, Clone, Subcommand)]
pub enum Traffic {
    /// Answer requests: one pinned process per CPU, the i-th on port + i; JSON per worker on
    /// SIGTERM
    RrServer(RrServer),
    /// Send requests one after the other on each of many connections, for a time
    RrClient(RrClient),
    /// Receive streams in a given way, counting every byte
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

/// Does it, and prints the result as JSON.
pub fn run(traffic: &Traffic) -> Result<()> {
    match traffic {
        Traffic::RrServer(server) => rr_server::run(server),
        Traffic::RrClient(client) => print(&rr_client::run(client)?),
        Traffic::Consume(consume) => print(&consume::run(consume)?),
        Traffic::Produce(produce) => print(&produce::run(produce)?),
    }
}

/// The `netsilo-lab` program, to be run in guests and peers: this one, or the one built beside this
/// test.
pub fn program() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let candidates = this.ancestors().take(3).map(|dir| dir.with_file_name("netsilo-lab"));
    let found = std::iter::once(this.clone())
        .chain(candidates)
        .find(|path| path.file_name().is_some_and(|name| name == "netsilo-lab") && path.is_file());
    found.with_context(|| {
        format!("no netsilo-lab beside {}: cargo build -p netsilo-lab", this.display())
    })
}

/// The shell command that runs one of these programs.
pub(crate) fn command(words: &str) -> Result<String> {
    Ok(format!("exec '{}' traffic {words}", program()?.display()))
}

fn print(report: &impl Serialize) -> Result<()> {
    // In one write: several workers may share this output.
    std::io::stdout().write_all(format!("{}\n", serde_json::to_string(report)?).as_bytes())?;
    Ok(())
}
