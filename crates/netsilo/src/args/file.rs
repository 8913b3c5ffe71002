//! Files that people write: their size is limited.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_sys::files::{regular, trust};

/// Maximum size of a configuration in bytes. A plan may be larger, because it has a change for each
/// interrupt and queue.
pub(crate) const CONFIGURATION: u64 = 1 << 20;
pub(crate) const PLAN: u64 = 16 << 20;

/// Reads a regular file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    regular::read(path, most).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads standard input if the path is `-`, else a regular file. Reads at most `most` bytes.
pub(crate) fn read_or_stdin(path: &Path, most: u64) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return read(path, most);
    }
    regular::read_rest(std::io::stdin().lock(), most).context("cannot read standard input")
}

/// Reads a configuration, which is a regular file. For root, only root may be able to change the
/// file.
pub fn read_configuration(path: &Path) -> Result<String> {
    refuse_foreign(path)?;
    String::from_utf8(read(path, CONFIGURATION)?)
        .with_context(|| format!("cannot read {}: it is not UTF-8", path.display()))
}

/// For root, refuses a file that others can change. The configuration of another user changes no
/// setting.
pub(crate) fn refuse_foreign(path: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        trust::check(path)?;
    }
    Ok(())
}
