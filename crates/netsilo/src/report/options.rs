//! What `netsilo report` reads, and how it writes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `netsilo report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of a run of netsilo bench experiment
    #[arg(value_name = "RUN", required_unless_present = "incident")]
    run: Option<PathBuf>,
    /// Write to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Write all figures as JSON (docs/bench.md) [default: Markdown]
    #[arg(short, long)]
    pub(super) json: bool,
    /// Write a page (HTML) about this machine now, or about a bundle, to attach to a ticket:
    /// findings, queues, plan, and the bundle itself
    #[arg(long, requires = "output", conflicts_with_all = ["run", "json"])]
    incident: bool,
    #[command(flatten)]
    about: IncidentArgs,
}

/// What the page about an incident shows.
#[derive(Debug, clap::Args)]
pub(crate) struct IncidentArgs {
    /// With --incident: read this bundle (from `netsilo capture`) instead of this machine
    #[arg(long, value_name = "BUNDLE", requires = "incident")]
    pub(super) from: Option<PathBuf>,
    /// With --incident: time to observe this machine (500ms, 2s, 1m) [default: 5s]
    #[arg(
        short,
        long,
        value_name = "TIME",
        requires = "incident",
        conflicts_with = "from",
        value_parser = crate::args::parse::duration
    )]
    pub(super) interval: Option<Duration>,
    /// With --incident: observe without eBPF
    #[arg(long, requires = "incident", conflicts_with = "from")]
    pub(super) no_bpf: bool,
    /// With --incident: keep hardware addresses, addresses and ports of flows, and the host name
    /// [default: replaced]
    #[arg(long, requires = "incident")]
    pub(super) with_addresses: bool,
}

/// What is reported.
pub(super) enum About<'a> {
    /// The folder of a run.
    Run(&'a Path),
    /// This machine, or a bundle.
    Incident(&'a IncidentArgs),
}

impl Args {
    /// What to report; clap demands a folder or `--incident`.
    pub(super) fn about(&self) -> About<'_> {
        match &self.run {
            Some(run) => About::Run(run),
            None => About::Incident(&self.about),
        }
    }
}
