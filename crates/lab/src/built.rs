//! The programs that guests and measurements run.

use std::path::PathBuf;

use anyhow::{Result, ensure};

/// Returns the path of `netsilo`, built in the same folder as this program.
pub(crate) fn netsilo() -> Result<PathBuf> {
    program("netsilo")
}

/// Returns the path of `netsilo-bench`, which generates loads, built in the same folder as this
/// program.
pub(crate) fn netsilo_bench() -> Result<PathBuf> {
    program("netsilo-bench")
}

fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built: run `cargo build --release`", path.display());
    Ok(path)
}
