//! The folder that holds kernels, emulators and initrds between runs, with its lock.

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a mirror's answer stays valid.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);

/// The cache folder. It is locked while this value lives, so concurrent labs wait for each other.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    _lock: File,
}

impl Cache {
    /// Waits for the lock on the folder `NETSILO_LAB_CACHE`, or on `netsilo-lab` in the user's
    /// cache folder.
    pub(crate) fn open() -> Result<Self> {
        let dir = folder()?;
        let what =
            || format!("cannot use the lab's cache {}: set NETSILO_LAB_CACHE", dir.display());
        fs::create_dir_all(&dir).with_context(what)?;
        let lock = File::create(dir.join("lock")).with_context(what)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            crate::message::note("waiting for another lab that uses the cache");
            flock(&lock, FlockOperation::LockExclusive).with_context(what)?;
        }
        Ok(Self { dir, _lock: lock })
    }

    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.join(relative)
    }

    /// True if `touch(relative)` was called within the last day.
    pub(crate) fn is_fresh(&self, relative: &str) -> bool {
        let modified = fs::metadata(self.path(relative)).and_then(|meta| meta.modified());
        modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < FRESH))
    }

    /// Records that `relative` is up to date now.
    pub(crate) fn touch(&self, relative: &str) -> Result<()> {
        let path = self.path(relative);
        fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))
    }

    /// Fills a scratch folder and renames it to `relative`, so that it is never seen incomplete.
    pub(crate) fn build(
        &self,
        relative: &str,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let wanted = self.path(relative);
        if wanted.exists() {
            return Ok(wanted);
        }
        let scratch = self.path("scratch");
        let what = || format!("cannot create {}", wanted.display());
        if scratch.exists() {
            fs::remove_dir_all(&scratch).with_context(what)?;
        }
        fs::create_dir_all(&scratch).with_context(what)?;
        fill(&scratch)?;
        if let Some(parent) = wanted.parent() {
            fs::create_dir_all(parent).with_context(what)?;
        }
        fs::rename(&scratch, &wanted).with_context(what)?;
        Ok(wanted)
    }
}

fn folder() -> Result<PathBuf> {
    let env = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = env("NETSILO_LAB_CACHE")
        .or_else(|| Some(env("XDG_CACHE_HOME")?.join("netsilo-lab")))
        .or_else(|| Some(env("HOME")?.join(".cache/netsilo-lab")))
        .context("no cache folder: set NETSILO_LAB_CACHE")?;
    Ok(std::path::absolute(dir)?)
}

/// Returns the entries of `dir`, oldest first. Empty if the folder does not exist.
pub(crate) fn oldest_first(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}
