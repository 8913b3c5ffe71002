//! `netsilo check-config`: checks whether the daemon accepts a configuration.

use std::path::PathBuf;

use anyhow::Result;

use crate::daemon::config;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::words::plural;

/// Arguments of `netsilo check-config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file, or folder with netsilo.toml and conf.d/*.toml
    #[arg(value_name = "FILE|DIR", default_value = config::CONFIG_DIR)]
    path: PathBuf,
}

/// Reads the configuration and lists its files.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let config = config::load(&args.path)?;
    for file in &config.files {
        out::text(&format!("{}\n", file.display()));
    }
    if config.files.is_empty() {
        let why = "neither netsilo.toml nor conf.d/*.toml is there: the daemon uses its defaults";
        out::text(&format!("{}: {why}\n", args.path.display()));
        return Ok(Exit::Printed);
    }
    out::text(&format!("{}: no error\n", plural(config.files.len(), "file")));
    Ok(Exit::Printed)
}
