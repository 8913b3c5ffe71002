//! Saves everything read through a [`Root`](crate::files::root::Root) as a tree that the same
//! readers can read.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::files::error::ReadError;
use crate::files::private_dir;
use crate::files::tree_facts::{TREE_FACTS, TreeFacts};

/// Writes a tree.
#[derive(Debug)]
pub struct Recorder {
    dir: PathBuf,
    facts: Mutex<TreeFacts>,
}

impl Recorder {
    pub(crate) fn new(dir: &Path) -> Result<Self, ReadError> {
        let _hold = private_dir::hold();
        fs::create_dir_all(dir).map_err(|source| save_error(&dir.to_string_lossy(), source))?;
        Ok(Self { dir: dir.to_owned(), facts: Mutex::default() })
    }

    /// Writes the facts that plain files cannot hold. This completes the tree.
    pub fn finish(&self) -> Result<(), ReadError> {
        let json = serde_json::to_vec_pretty(&*self.facts())
            .map_err(|e| save_error(TREE_FACTS, io::Error::other(e)))?;
        fs::write(self.dir.join(TREE_FACTS), json).map_err(|source| save_error(TREE_FACTS, source))
    }

    /// Creates a file whose contents are written as they are read. Replaces an earlier file.
    pub(crate) fn create(&self, path: &str) -> Result<File, ReadError> {
        let at = self.place(path)?;
        File::create(at).map_err(|source| save_error(path, source))
    }

    pub(crate) fn file(&self, path: &str, contents: &[u8]) -> Result<(), ReadError> {
        let at = self.place(path)?;
        fs::write(at, contents).map_err(|source| save_error(path, source))
    }

    /// Writes an empty file for a name in a listed directory. Reading the file later replaces this
    /// placeholder.
    pub(crate) fn placeholder(&self, path: &str, is_folder: bool) -> Result<(), ReadError> {
        let at = self.place(path)?;
        if at.symlink_metadata().is_ok() {
            return Ok(());
        }
        let made = if is_folder { fs::create_dir(at) } else { fs::write(at, "") };
        made.map_err(|source| save_error(path, source))
    }

    pub(crate) fn directory(&self, path: &str) -> Result<(), ReadError> {
        let at = self.place(path)?;
        let _hold = private_dir::hold();
        fs::create_dir_all(at).map_err(|source| save_error(path, source))
    }

    pub(crate) fn link(&self, path: &str, target: &str) -> Result<(), ReadError> {
        let at = self.place(path)?;
        if at.symlink_metadata().is_ok_and(|meta| meta.is_symlink() || meta.is_file()) {
            fs::remove_file(&at).map_err(|source| save_error(path, source))?;
        }
        symlink(target, at).map_err(|source| save_error(path, source))
    }

    pub(crate) fn mode(&self, path: &str, mode: u32) {
        self.facts().modes.insert(path.to_owned(), mode);
    }

    pub(crate) fn at(&self, at: Duration) {
        self.facts().at = Some(at);
    }

    /// Records an error that the tree itself cannot reproduce. It can reproduce a missing file and
    /// a path that is not a link.
    pub(crate) fn failed(&self, path: &str, errno: i32) {
        let enoent = rustix::io::Errno::NOENT.raw_os_error();
        if errno != enoent {
            self.facts().errnos.insert(path.to_owned(), errno);
        }
    }

    /// The location of `path` in the tree. Creates its parent directories.
    fn place(&self, path: &str) -> Result<PathBuf, ReadError> {
        let at = self.dir.join(path.trim_start_matches('/'));
        let _hold = private_dir::hold();
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent).map_err(|source| save_error(path, source))?;
        }
        Ok(at)
    }

    fn facts(&self) -> MutexGuard<'_, TreeFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn save_error(path: &str, source: io::Error) -> ReadError {
    ReadError::Save { path: path.to_owned(), source }
}
