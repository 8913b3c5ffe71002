//! Debian's tools that tests need, unpacked into the cache instead of installed.

use crate::apt::Suite;
use crate::cache::Cache;
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Returns the path of `promtool`, which checks metrics.
pub fn promtool() -> Result<PathBuf> {
    tool("prometheus", "promtool")
}

/// Returns the path of `wg`, which configures WireGuard.
pub fn wg() -> Result<PathBuf> {
    tool("wireguard-tools", "wg")
}

/// Returns the path of `wireguard-go`, for kernels without WireGuard.
pub fn wireguard_go() -> Result<PathBuf> {
    tool("wireguard-go", "wireguard-go")
}

/// Returns the path of a program. It is the machine's own, or that of a package of Debian 12.
fn tool(package: &str, name: &str) -> Result<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    if let Some(own) =
        std::env::split_paths(&own).map(|dir| dir.join(name)).find(|path| path.is_file())
    {
        return Ok(own);
    }
    let cache = Cache::open()?;
    let dir = cache.build(name, |dir| {
        let suite = Suite::new(&cache, "bookworm")?;
        suite.update(false)?;
        let package = suite
            .package(package)?
            .with_context(|| format!("Debian 12 has no package {package}"))?;
        suite.unpack(&[package], dir)
    })?;
    Ok(dir.join("usr/bin").join(name))
}
