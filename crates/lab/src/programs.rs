//! Debian's programs that a test wants to run in a guest and that must not be installed here, where
//! they would start.

use crate::apt::Suite;
use crate::cache;
use crate::cache::Cache;
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// irqbalance of Debian 12, unpacked in the cache: the program's path, here and in a guest.
///
/// Its libraries are those that QEMU needs too.
pub fn irqbalance() -> Result<PathBuf> {
    program("irqbalance", "usr/sbin/irqbalance")
}

/// `udevadm` of Debian 12, in the same way.
pub fn udevadm() -> Result<PathBuf> {
    program("udev", "bin/udevadm")
}

/// The folder of tuned's Python modules, Debian 12's, in the same way.
pub fn tuned() -> Result<PathBuf> {
    Ok(unpacked("tuned")?.join("usr/lib/python3/dist-packages"))
}

fn program(package: &str, path: &str) -> Result<PathBuf> {
    let program = unpacked(package)?.join(path);
    let libraries = output(Command::new("ldd").arg(&program))?;
    if libraries.contains("not found") {
        bail!(
            "{} lacks libraries: scripts/setup installs them with qemu-system-x86: {libraries}",
            program.display()
        );
    }
    Ok(program)
}

/// The newest version of a package, or the one that is in the cache.
fn unpacked(package: &str) -> Result<PathBuf> {
    let cache = Cache::open()?;
    match download(&cache, package) {
        Ok(root) => Ok(root),
        Err(error) => {
            match cache::oldest_first(&cache.path(package)).into_iter().rfind(|path| path.is_dir())
            {
                Some(root) => {
                    crate::note(&format!("{package}: using the cached one: {error:#}"));
                    Ok(root)
                }
                None => Err(error),
            }
        }
    }
}

fn download(cache: &Cache, package: &str) -> Result<PathBuf> {
    let suite = Suite::new(cache, "bookworm")?;
    suite.update(false)?;
    let package =
        suite.package(package)?.with_context(|| format!("bookworm has no package {package}"))?;
    let place = format!("{}/{}", package.name, package.version);
    cache.build(&place, |dir| suite.unpack(std::slice::from_ref(&package), dir))
}
