//! `netsilo run --check`: checks whether the daemon accepts a configuration.

use std::path::Path;

use anyhow::Result;

use crate::daemon::config;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::words::plural;

/// Reads the configuration and lists its files.
pub(super) fn check(path: &Path) -> Result<Exit> {
    let config = config::load(path)?;
    for file in &config.files {
        out::text(&format!("{}\n", file.display()));
    }
    if config.files.is_empty() {
        let why = "neither netsilo.toml nor conf.d/*.toml is there: the daemon uses its defaults";
        out::text(&format!("{}: {why}\n", path.display()));
        return Ok(Exit::Printed);
    }
    out::text(&format!("{}: no error\n", plural(config.files.len(), "file")));
    Ok(Exit::Printed)
}
