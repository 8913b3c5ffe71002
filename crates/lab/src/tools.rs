//! Debian's tools that tests need, unpacked into the cache instead of installed.

use crate::apt::Suite;
use crate::cache::Cache;
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Returns the path of `promtool`, which checks metrics. It is the machine's own, or that of Debian
/// 12's package `prometheus`.
pub fn promtool() -> Result<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    if let Some(own) =
        std::env::split_paths(&own).map(|dir| dir.join("promtool")).find(|path| path.is_file())
    {
        return Ok(own);
    }
    let cache = Cache::open()?;
    let dir = cache.build("promtool", |dir| {
        let suite = Suite::new(&cache, "bookworm")?;
        suite.update(false)?;
        let package =
            suite.package("prometheus")?.context("Debian 12 has no package prometheus")?;
        suite.unpack(&[package], dir)
    })?;
    Ok(dir.join("usr/bin/promtool"))
}
