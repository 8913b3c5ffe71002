//! The files of a root: in a folder, or in memory.

use std::ffi::OsString;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::{DirEntryExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::memory_tree::MemoryTree;

/// A folder with `proc/` and `sys/`, or a tree in memory. Paths are those of the kernel.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Folder(PathBuf),
    Memory(Arc<MemoryTree>),
}

/// A file to read.
pub(crate) enum Opened<'a> {
    File(File),
    Memory(&'a [u8]),
}

/// A name in a folder.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) is_folder: bool,
    /// 0 in memory.
    pub(crate) inode: u64,
}

impl Source {
    /// The file on a disk for this path.
    pub(crate) fn path(&self, path: &str) -> io::Result<PathBuf> {
        match self {
            Self::Folder(dir) => Ok(inside(dir, path)),
            Self::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) fn open(&self, path: &str) -> io::Result<Opened<'_>> {
        match self {
            Self::Folder(dir) => File::open(inside(dir, path)).map(Opened::File),
            Self::Memory(tree) => tree.file(path).map(Opened::Memory),
        }
    }

    /// What is in a folder.
    pub(crate) fn entries(&self, path: &str) -> io::Result<Vec<Entry>> {
        match self {
            Self::Folder(dir) => {
                fs::read_dir(inside(dir, path))?.map(|entry| entry.map(on_disk)).collect()
            }
            Self::Memory(tree) => Ok(tree.folder(path)?.iter().map(in_memory).collect()),
        }
    }

    /// The target of a link.
    pub(crate) fn link(&self, path: &str) -> io::Result<PathBuf> {
        match self {
            Self::Folder(dir) => fs::read_link(inside(dir, path)),
            Self::Memory(tree) => tree.link(path).map(PathBuf::from),
        }
    }

    /// The permission bits.
    pub(crate) fn mode(&self, path: &str) -> io::Result<u32> {
        match self {
            Self::Folder(dir) => Ok(fs::metadata(inside(dir, path))?.permissions().mode() & 0o7777),
            Self::Memory(tree) => tree.mode(path),
        }
    }
}

fn inside(dir: &Path, path: &str) -> PathBuf {
    dir.join(path.trim_start_matches('/'))
}

fn on_disk(entry: DirEntry) -> Entry {
    Entry {
        name: entry.file_name().to_string_lossy().into_owned(),
        is_folder: entry.file_type().is_ok_and(|kind| kind.is_dir()),
        inode: entry.ino(),
    }
}

fn in_memory((name, tree): (&OsString, &MemoryTree)) -> Entry {
    Entry { name: name.to_string_lossy().into_owned(), is_folder: tree.is_folder(), inode: 0 }
}
