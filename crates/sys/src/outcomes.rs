//! The folder of outcomes. Each search stores what it measured in one file, private to its owner.
//!
//! Reads only complete files of bounded size to which nobody else can write, and keeps only the
//! newest. This module does not know what the files contain.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use crate::files::{regular, trust};

/// Default folder; it survives a reboot.
pub const OUTCOMES_DIR: &str = "/var/lib/netsilo/outcomes";

/// Maximum number of files. Storing another one removes the oldest.
pub const MOST_FILES: usize = 64;

/// Maximum size of a file in bytes. The file of a machine with a thousand queues has 300 kB.
const MOST_BYTES: u64 = 1 << 20;

const SUFFIX: &str = ".json";

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeFile {
    /// Its name without the suffix. Ids of later files are greater.
    pub id: String,
    /// Its contents.
    pub text: Vec<u8>,
}

/// The files of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutcomeFiles {
    /// The files that can be trusted, the newest first.
    pub outcomes: Vec<OutcomeFile>,
    /// The files that were not read, and why.
    pub notes: Vec<String>,
}

/// Why an outcome could not be stored or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {source}", path.display())]
pub struct OutcomeError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl OutcomeError {
    /// Whether the error is a lack of permission.
    pub fn is_permission(&self) -> bool {
        matches!(self.source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OutcomeError {
    move |source| OutcomeError { doing, path: path.to_owned(), source }
}

/// Reads the newest files of a folder. A missing folder has no files.
pub fn load(dir: &Path) -> OutcomeFiles {
    let mut loaded = OutcomeFiles::default();
    let note = |path: &Path, error: io::Error| format!("{} is not used: {error}", path.display());
    let ids = match ids(dir) {
        Ok(ids) => ids,
        Err(error) => {
            loaded.notes.push(note(dir, error));
            return loaded;
        }
    };
    for id in ids.into_iter().rev().take(MOST_FILES) {
        let path = file_of(dir, &id);
        match read(&path) {
            Ok(text) => loaded.outcomes.push(OutcomeFile { id, text }),
            Err(error) => loaded.notes.push(note(&path, error)),
        }
    }
    loaded
}

/// Writes a file atomically under an id that sorts after all earlier ones. Removes the oldest files
/// above [`MOST_FILES`]. Returns the id.
pub fn store(dir: &Path, when: &str, text: &[u8]) -> Result<String, OutcomeError> {
    trust::make_dir(dir, 0o700).map_err(|error| failed("create", dir)(error.into()))?;
    // temporary files have mode 0600
    let mut file = NamedTempFile::new_in(dir).map_err(failed("write to", dir))?;
    let written = file.write_all(text).and_then(|()| file.as_file().sync_all());
    written.map_err(failed("write to", dir))?;
    let id = persist(file, dir, when).map_err(failed("write to", dir))?;
    let ids = ids(dir).map_err(failed("list", dir))?;
    for old in ids.iter().take(ids.len().saturating_sub(MOST_FILES)) {
        forget(dir, old)?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))?;
    Ok(id)
}

/// Removes the file that has this id of [`ids`].
pub fn forget(dir: &Path, id: &str) -> Result<(), OutcomeError> {
    let path = file_of(dir, id);
    std::fs::remove_file(&path).map_err(failed("remove", &path))
}

/// The ids of all files in a folder, the oldest first. Fails if others can write to the folder.
pub fn ids(dir: &Path) -> io::Result<Vec<String>> {
    if trust::check(dir)?.is_none() {
        return Ok(Vec::new());
    }
    let mut ids = Vec::new();
    for entry in dir.read_dir()? {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        ids.extend(id.filter(|id| !id.starts_with('.')).map(str::to_owned));
    }
    ids.sort_unstable();
    Ok(ids)
}

fn file_of(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}{SUFFIX}"))
}

/// Gives the file its name. If two searches end at the same time, a number is added.
fn persist(mut file: NamedTempFile, dir: &Path, when: &str) -> io::Result<String> {
    let ids = (2..100).map(|number| format!("{when}-{number}"));
    for id in std::iter::once(when.to_owned()).chain(ids) {
        match file.persist_noclobber(file_of(dir, &id)) {
            Ok(_) => return Ok(id),
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => file = error.file,
            Err(error) => return Err(error.error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Reads a regular file that belongs to this user or root, without following a link.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    trust::check(path)?;
    let file = regular::open_with(OpenOptions::new().read(true), OFlags::NOFOLLOW, path)?;
    regular::read_rest(file, MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("lib/outcomes");
        (above, dir)
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn loaded_ids(dir: &Path) -> Vec<String> {
        load(dir).outcomes.into_iter().map(|it| it.id).collect()
    }

    #[test]
    fn outcomes_are_read_newest_first_and_are_private() {
        let (_above, dir) = folder();
        assert_eq!(load(&dir), OutcomeFiles::default());
        store(&dir, "2026-01-01", b"a").unwrap();
        store(&dir, "2026-01-02", b"b").unwrap();
        assert_eq!(store(&dir, "2026-01-02", b"c").unwrap(), "2026-01-02-2");
        let outcome = |id: &str, text: &[u8]| OutcomeFile { id: id.into(), text: text.into() };
        let all = [
            outcome("2026-01-02-2", b"c"),
            outcome("2026-01-02", b"b"),
            outcome("2026-01-01", b"a"),
        ];
        assert_eq!(load(&dir), OutcomeFiles { outcomes: all.into(), notes: vec![] });
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join("2026-01-01.json"))), (0o700, 0o600));
        forget(&dir, "2026-01-02").unwrap();
        assert_eq!(loaded_ids(&dir), ["2026-01-02-2", "2026-01-01"]);
        assert!(forget(&dir, "2026-01-02").unwrap_err().to_string().starts_with("cannot remove "));
    }

    #[test]
    fn above_the_limit_the_oldest_goes() {
        let (_above, dir) = folder();
        for at in 0..MOST_FILES + 2 {
            store(&dir, &format!("2026-{at:03}"), b"x").unwrap();
        }
        let ids = ids(&dir).unwrap();
        assert_eq!((ids.len(), ids[0].as_str()), (MOST_FILES, "2026-002"));
    }

    #[test]
    fn what_others_may_have_written_links_and_large_files_are_named_and_skipped() {
        let (above, dir) = folder();
        for id in ["1-good", "2-open", "4-large", "5-fifo"] {
            store(&dir, id, b"x").unwrap();
        }
        set_mode(&dir.join("2-open.json"), 0o666);
        std::os::unix::fs::symlink(above.path().join("x"), dir.join("3-link.json")).unwrap();
        std::fs::write(dir.join("4-large.json"), vec![b' '; (MOST_BYTES + 1) as usize]).unwrap();
        std::fs::remove_file(dir.join("5-fifo.json")).unwrap();
        let (fifo, mode) = (dir.join("5-fifo.json"), rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let loaded = load(&dir);
        assert_eq!(loaded.outcomes.len(), 1, "{:?}", loaded.outcomes);
        let words = [
            "name a regular file",
            "more than 1 MiB",
            "symbolic links",
            "can be written by others",
        ];
        for (note, words) in loaded.notes.iter().zip(words) {
            assert!(note.contains(words), "{note}");
        }
        assert_eq!(loaded.notes.len(), 4);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let (_above, dir) = folder();
        store(&dir, "1", b"x").unwrap();
        set_mode(&dir, 0o777);
        let loaded = load(&dir);
        assert!(loaded.outcomes.is_empty() && loaded.notes[0].contains("can be written by others"));
        assert!(store(&dir, "2", b"x").is_err());
    }
}
