//! The netsilo that guests run.

use std::path::PathBuf;

use anyhow::{Result, ensure};

/// Returns the path of `netsilo`, built in the same folder as this program.
pub(crate) fn netsilo() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("netsilo");
    ensure!(path.is_file(), "{} is not built: run `cargo build --release`", path.display());
    Ok(path)
}
