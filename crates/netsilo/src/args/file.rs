//! Files that people write: their size is limited.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use netsilo_sys::files::regular;

/// Most bytes of a configuration; a plan has more, one change of each interrupt and queue.
pub(crate) const CONFIGURATION: u64 = 1 << 20;
pub(crate) const PLAN: u64 = 16 << 20;

const WRITABLE_BY_OTHERS: u32 = 0o022;

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
pub(crate) fn read_configuration(path: &Path) -> Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let open = || -> Result<Vec<u8>> {
        let file = regular::open(path)?;
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        trusted(&file.metadata()?)?;
        trusted(&std::fs::metadata(folder.unwrap_or(Path::new(".")))?).context("its folder")?;
        Ok(regular::read_rest(file, CONFIGURATION)?)
    };
    let text = open().with_context(cannot)?;
    String::from_utf8(text).context("it is not UTF-8").with_context(cannot)
}

/// Whether a file or folder belongs to this user and nobody else can write to it.
pub(crate) fn is_own(path: &Path) -> Result<bool> {
    let of = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(of.uid() == rustix::process::geteuid().as_raw() && of.mode() & WRITABLE_BY_OTHERS == 0)
}

/// Refuses for root what others can change; in a folder like /tmp only owners can.
fn trusted(of: &Metadata) -> Result<()> {
    const STICKY: u32 = 0o1000;
    let is_shared = of.is_dir() && of.mode() & STICKY != 0;
    let others_write = of.mode() & WRITABLE_BY_OTHERS != 0 && !is_shared;
    ensure!(
        !rustix::process::geteuid().is_root() || of.uid() == 0 && !others_write,
        "others than root can change it: chown root and chmod go-w"
    );
    Ok(())
}
