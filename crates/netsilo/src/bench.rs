//! `netsilo bench`: generates and answers network loads, and compares settings under them.
//!
//! `load_args` describes a load, `serve` and `run` are its two ends. The `definition` of an
//! experiment names settings and loads; `setup` observes this machine, `settings` makes the changes
//! (`command_setting` those of a command), `experiment` starts or resumes the run, `runner` runs
//! its trials, `folder` keeps them.
//! May use `tell`, `args`, `views` and `temporary_changes`; figures are computed in
//! `netsilo-trial`, loads are generated in `netsilo-load`.

mod command_setting;
mod commands;
mod definition;
mod drop_rule;
mod expectation;
pub(crate) mod experiment;
pub(crate) mod folder;
mod load_args;
mod offload;
mod run;
pub(crate) mod runner;
mod serve;
mod settings;
mod setup;

use anyhow::Result;
use clap::Subcommand;

use crate::bench::run::RunArgs;
use crate::bench::serve::ServeArgs;
use crate::tell::exit::Exit;

/// Verbs of `netsilo bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Answer the loads of bench run until interrupted
    Serve(ServeArgs),
    /// Generate a load against bench serve; report its rate and what it costs both machines
    Run(Box<RunArgs>),
    /// Compare settings of this machine under loads, in rounds and random order
    Experiment(Box<experiment::Args>),
    #[command(hide = true)]
    Instance {
        /// Internal task of this process
        task: String,
    },
}

/// Runs a verb of `netsilo bench`.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    match args {
        Args::Serve(args) => serve::serve(args)?,
        Args::Run(args) => return run::run(args),
        Args::Experiment(args) => return experiment::run(args),
        Args::Instance { task } => netsilo_load::instance(task)?,
    }
    Ok(Exit::Done)
}
