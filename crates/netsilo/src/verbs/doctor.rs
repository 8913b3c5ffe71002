//! `netsilo doctor`: what limits netsilo on this machine, and how to fix it.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use netsilo_decide::judge::doctor::{DaemonFacts, Machine, diagnose};
use netsilo_decide::judge::findings::Severity;
use netsilo_model::snapshot::attribution::Hook;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use netsilo_sys::read::prerequisites::prerequisites;
use netsilo_sys::transaction::journal;

use crate::args::named;
use crate::args::state_dir::StateDir;
use crate::daemon::config;
use crate::tell::exit::{Exit, in_words};
use crate::tell::out;
use crate::tell::status::Mode;
use crate::verbs::status;
use crate::views;

/// Arguments of `netsilo doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Exit with 11 if a problem is at least this severe
    #[arg(
        long,
        value_name = "SEVERITY",
        default_value = "critical",
        value_parser = named::severities()
    )]
    fail_on: Severity,
    /// Configuration of the daemon: a file, or a folder with netsilo.toml and conf.d/*.toml
    #[arg(long, value_name = "FILE|DIR", default_value = config::CONFIG_DIR)]
    config: PathBuf,
    /// Print the result as JSON (schema 1)
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    state: StateDir,
}

/// Reads what netsilo needs, attaches each eBPF program once, and prints what is missing.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let root = args.state.root()?;
    let prerequisites = prerequisites(&root);
    let hooks = if root.is_live() { attached() } else { Vec::new() };
    let diagnosis = diagnose(&Machine {
        prerequisites: &prerequisites,
        snapshot: &netsilo_sys::snapshot(&root).context("cannot read this machine")?,
        hooks: &hooks,
        daemon: daemon(args)?,
    });
    if args.json {
        out::json(&diagnosis)?;
    } else {
        out::styled(&views::doctor::render(&diagnosis).into());
    }
    Ok(if diagnosis.severity() >= args.fail_on { Exit::Findings } else { Exit::Printed })
}

/// Attaches the programs of all views, and detaches them again.
fn attached() -> Vec<Hook> {
    let all = Options { runqueue: true, ..Options::of_check() };
    Tracer::attach(all).hooks()
}

fn daemon(args: &Args) -> Result<DaemonFacts> {
    let mut facts = DaemonFacts::default();
    if let Ok(status) = status::read(args.state.path()) {
        facts.running = views::status::head(&status).lines().next().map(str::to_owned);
        facts.hindered = match status.mode {
            Mode::ObserveOnly(why) => Some(why),
            Mode::Placing | Mode::HintsOnly => status.notes.first().cloned(),
        };
    }
    facts.bad_configuration =
        config::load_if_there(&args.config).err().map(|error| in_words(&error));
    match journal::read_without_lock(&args.state.kernel()?, args.state.path()) {
        Ok(history) => {
            let all = history.map(|history| history.transactions).unwrap_or_default();
            let open = || all.iter().filter(|it| it.is_open());
            facts.open_transactions = open().count();
            facts.unfinished_transactions = open().filter(|it| it.is_unfinished()).count();
        }
        // another user's journal is private
        Err(error) if error.is_permission() => {}
        Err(error) => facts.bad_journal = Some(error.to_string()),
    }
    Ok(facts)
}
