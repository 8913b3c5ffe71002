//! Debian's programs that a test wants to run in a guest and that must not be installed here, where they would start.

use crate::apt::Suite;
use crate::cache::{self, Cache};
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// irqbalance of Debian 12, unpacked in the cache: the program's path, here and in a guest.
///
/// Its libraries are those that QEMU needs too.
pub fn irqbalance() -> Result<PathBuf> {
    let cache = Cache::open()?;
    let newest_cached = || cache::oldest_first(&cache.path("irqbalance")).into_iter().rfind(|path| path.is_dir());
    let root = match download(&cache) {
        Ok(root) => root,
        Err(error) => match newest_cached() {
            Some(root) => {
                crate::note(&format!("irqbalance: using the cached one: {error:#}"));
                root
            }
            None => return Err(error),
        },
    };
    let program = root.join("usr/sbin/irqbalance");
    let libraries = output(Command::new("ldd").arg(&program))?;
    if libraries.contains("not found") {
        bail!("{} lacks libraries: scripts/setup installs them with qemu-system-x86: {libraries}", program.display());
    }
    Ok(program)
}

fn download(cache: &Cache) -> Result<PathBuf> {
    let suite = Suite::new(cache, "bookworm")?;
    suite.update(false)?;
    let package = suite.package("irqbalance")?.context("bookworm has no package irqbalance")?;
    cache.build(&format!("irqbalance/{}", package.version), |dir| suite.unpack(std::slice::from_ref(&package), dir))
}
