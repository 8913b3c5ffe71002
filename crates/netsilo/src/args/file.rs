//! Files that people write: their size is limited.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_sys::files::{regular, trust};

/// Most bytes of a configuration; a plan has more, one change of each interrupt and queue.
pub(crate) const CONFIGURATION: u64 = 1 << 20;
pub(crate) const PLAN: u64 = 16 << 20;

/// Reads a regular file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    regular::read(path, most).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads standard input for the path `-`, else a regular file; at most `most` bytes.
pub(crate) fn read_or_stdin(path: &Path, most: u64) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return read(path, most);
    }
    regular::read_rest(std::io::stdin().lock(), most).context("cannot read standard input")
}

/// Reads a configuration: a regular file that, for root, only root can change.
pub fn read_configuration(path: &Path) -> Result<String> {
    refuse_foreign(path)?;
    String::from_utf8(read(path, CONFIGURATION)?)
        .with_context(|| format!("cannot read {}: it is not UTF-8", path.display()))
}

/// Refuses for root what others can change; another user's configuration changes no setting.
pub(crate) fn refuse_foreign(path: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        trust::check(path)?;
    }
    Ok(())
}
