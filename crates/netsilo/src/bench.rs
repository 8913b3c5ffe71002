//! `netsilo bench`: generates and answers network loads, and compares settings under them.
//!
//! `load_args` describes a load, `serve` and `run` are its two ends. An experiment (`matrix`,
//! `silo`, `stream`, `rps_guest`, `forward`) defines settings and loads (`defined`, `settings`,
//! `loads`); `experiment` starts or resumes it, `runner` runs its trials, `folder` keeps them.
//! May use `tell`, `args`, `views` and `temporary_changes`; figures are computed in
//! `netsilo-trial`, loads are generated in `netsilo-load`.

mod command_setting;
mod commands;
mod defined;
mod drop_rule;
mod early_drop;
mod expectation;
pub(crate) mod experiment;
pub(crate) mod folder;
mod forward;
mod load_args;
mod loads;
mod matrix;
mod rps_guest;
mod run;
pub(crate) mod runner;
mod serve;
mod settings;
mod silo;
mod stream;

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
    /// Compare settings of this machine under request loads from another machine (netperf's
    /// matrix), in rounds and random order
    Matrix(Box<matrix::Args>),
    /// Compare where one stream's interrupt runs: far from its reader, near to it, on its cpu
    Silo(Box<silo::Args>),
    /// Compare ways to send one stream at full speed: sizes, sendfile, offloads, socket buffers,
    /// one sender or two
    Stream(Box<stream::Args>),
    /// Compare RPS settings on a machine that is busy in user mode
    RpsGuest(Box<rps_guest::Args>),
    /// Measure what each stage costs when this machine forwards packets or drops them early
    Forward(Box<forward::Args>),
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
        Args::Matrix(args) => return matrix::run(args),
        Args::Silo(args) => return silo::run(args),
        Args::Stream(args) => return stream::run(args),
        Args::RpsGuest(args) => return rps_guest::run(args),
        Args::Forward(args) => return forward::run(args),
        Args::Instance { task } => netsilo_load::instance(task)?,
    }
    Ok(Exit::Done)
}
