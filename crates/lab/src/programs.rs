//! Debian's programs that tests run in a guest; installing them on this machine would start them.

use crate::apt::Suite;
use crate::cache;
use crate::cache::Cache;
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Unpacks Debian 12's irqbalance in the cache; returns its path, which a guest sees too.
///
/// Its libraries are among those that QEMU needs.
pub fn irqbalance() -> Result<PathBuf> {
    program("irqbalance", "usr/sbin/irqbalance")
}

/// Unpacks Debian 12's `udevadm` in the same way.
pub fn udevadm() -> Result<PathBuf> {
    program("udev", "bin/udevadm")
}

/// Unpacks Debian 12's tuned in the same way; returns the folder of its Python modules.
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

/// Unpacks the newest version of a package; without a network, uses the cached one.
fn unpacked(package: &str) -> Result<PathBuf> {
    let cache = Cache::open()?;
    match download(&cache, package) {
        Ok(root) => Ok(root),
        Err(error) => {
            match cache::oldest_first(&cache.path(package)).into_iter().rfind(|path| path.is_dir())
            {
                Some(root) => {
                    crate::message::note(&format!(
                        "{package}: using the cached version: {error:#}"
                    ));
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
