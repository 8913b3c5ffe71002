//! Traffic with exact counts: the reference for tests of attribution, and the demo's load.
//!
//! One program for guests, peers and plain namespaces, `netsilo-lab traffic VERB`, prints one JSON
//! value at its end. Clients wait for their server to appear, so callers need no sleeps.

mod consume;
mod consume_args;
mod consumed;
mod latency;
mod pipeline;
mod print;
mod produce;
mod proto;
mod recvmmsg;
mod rr_client;
mod rr_server;
mod socket;
mod udp;
mod uring;
mod zerocopy;

pub use consume_args::{ConsumeArgs, Mode};
pub use consumed::{Consumed, ConsumedSocket};
pub use pipeline::Pipeline;
pub use produce::{ProduceArgs, Produced, ProducedFlow};
pub use proto::Proto;
pub use rr_client::{Connection, RrClient, RrReport};
pub use rr_server::{RrServed, RrServer};
pub use socket::CpuList;

use anyhow::{Context, Result};
use clap::Subcommand;
use std::path::PathBuf;

use crate::traffic::print::print;

/// Verbs of `netsilo-lab traffic`.
#[derive(Debug, Clone, Subcommand)]
pub enum Traffic {
    /// Answer requests with one pinned process per CPU, the i-th on port + i; print JSON per worker
    /// on SIGTERM
    RrServer(RrServer),
    /// Send requests one after the other on each of many connections, for a given time
    RrClient(RrClient),
    /// Answer UDP requests by two processes, each on its CPU: one reads, the other answers
    Pipeline(Pipeline),
    /// Receive streams in a given way and count every byte
    Consume(ConsumeArgs),
    /// Send an exact number of bytes on each of several flows
    Produce(ProduceArgs),
}

/// Runs a verb and prints its result as JSON.
pub fn run(traffic: &Traffic) -> Result<()> {
    match traffic {
        Traffic::RrServer(server) => rr_server::run(server),
        Traffic::RrClient(client) => print(&rr_client::run(client)?),
        Traffic::Pipeline(pipeline) => pipeline::run(pipeline),
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
