//! Writes files that the user names: completely or not at all, and never through another user's
//! link.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use tempfile::NamedTempFile;

use crate::files::trust;

/// The usual mode of a file, before the umask is applied.
const READABLE: u32 = 0o666;

/// Writes a file. A new file in the same folder gets the name at the end, so a link with this name
/// is replaced, not followed. The new file has the mode of the file that it replaces. A device, a
/// pipe or an open file (`/dev/stdout`) is written to directly.
pub fn write<T>(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> io::Result<T> {
    if let Some(stream) = stream(path)? {
        return written(&stream, contents);
    }
    let old = path.symlink_metadata().ok().filter(|old| old.is_file());
    let mode = old.map(|old| Permissions::from_mode(old.mode() & 0o777));
    replace(path, mode, contents)
}

/// Writes a file like [`write()`], with this mode regardless of the umask. Never writes to a device
/// or pipe.
pub fn write_with_mode(path: &Path, mode: u32, text: &[u8]) -> io::Result<()> {
    replace(path, Some(Permissions::from_mode(mode)), |file| file.write_all(text))
}

/// Checks that a file can be written, before its contents exist.
pub fn check(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if stream(path)?.is_none() {
        beside(path)?;
    }
    Ok(())
}

fn replace<T>(
    path: &Path,
    mode: Option<Permissions>,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> io::Result<T> {
    let file = beside(path)?;
    if let Some(mode) = mode {
        file.as_file().set_permissions(mode)?;
    }
    let value = written(file.as_file(), contents)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(value)
}

fn written<T>(
    file: &File,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> io::Result<T> {
    let mut buffer = BufWriter::new(file);
    let value = contents(&mut buffer)?;
    buffer.flush()?;
    Ok(value)
}

/// A new file in the same folder (`O_EXCL`). It is removed unless it gets another name.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let mode = Permissions::from_mode(READABLE);
    tempfile::Builder::new().prefix(".netsilo-").permissions(mode).tempfile_in(folder)
}

/// Opens a path that names a device, a pipe or an open file. Returns `None` for everything else,
/// and for a path that another user may have put there.
fn stream(path: &Path) -> io::Result<Option<File>> {
    let Ok(named) = trust::follow(path) else { return Ok(None) };
    let Some(kind) = named.found.map(|found| found.file_type()) else { return Ok(None) };
    let is_stream =
        kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket();
    if !named.is_descriptor && !is_stream {
        return Ok(None);
    }
    // an open file keeps its contents: a shell may append to it
    OpenOptions::new().append(true).open(path).map(Some)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{lchown, symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn text(path: &Path, text: &str) -> io::Result<()> {
        write(path, |file| file.write_all(text.as_bytes()))
    }

    fn names(folder: &Path) -> usize {
        folder.read_dir().unwrap().count()
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (theirs, name) = (dir.path().join("passwd"), dir.path().join("host.tar.zst"));
        for target in [theirs.as_path(), Path::new("nowhere"), Path::new("/dev/null")] {
            std::fs::write(&theirs, "root").unwrap();
            symlink(target, &name).unwrap();
            if rustix::process::geteuid().is_root() {
                lchown(&name, Some(4242), None).unwrap();
                std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
            } else if target.starts_with("/dev") {
                continue;
            }
            text(&name, "new").unwrap();
            assert!(name.symlink_metadata().unwrap().is_file(), "{}", target.display());
            assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "root");
            assert_eq!(std::fs::read_to_string(&name).unwrap(), "new");
            std::fs::remove_file(&name).unwrap();
        }
        assert_eq!(names(dir.path()), 1);
    }

    #[test]
    fn a_file_is_written_whole_or_not_at_all_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("page");
        text(&name, "old").unwrap();
        std::fs::set_permissions(&name, Permissions::from_mode(0o640)).unwrap();
        let failed = write(&name, |file| {
            file.write_all(b"half")?;
            Err::<(), _>(io::Error::other("no"))
        });
        assert!(failed.is_err());
        assert_eq!((std::fs::read_to_string(&name).unwrap(), names(dir.path())), ("old".into(), 1));
        text(&name, "new").unwrap();
        check(&name).unwrap();
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "new");
        assert_eq!(name.metadata().unwrap().mode() & 0o777, 0o640);
        write_with_mode(&name, 0o755, b"run").unwrap();
        assert_eq!(name.metadata().unwrap().mode() & 0o777, 0o755);
        assert!(text(dir.path(), "x").is_err() && check(dir.path()).is_err());
        assert!(text(&dir.path().join("none/page"), "x").is_err());
        assert_eq!(names(dir.path()), 1);
    }

    #[test]
    fn devices_pipes_and_open_files_are_written_to_also_by_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, link) = (dir.path().join("fifo"), dir.path().join("link"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        symlink("fifo", &link).unwrap();
        for name in [&fifo, &link] {
            let reader = fifo.clone();
            let reader = std::thread::spawn(move || std::fs::read_to_string(reader).unwrap());
            text(name, "through").unwrap();
            assert_eq!(reader.join().unwrap(), "through");
        }
        assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());
        let full = text(Path::new("/dev/full"), "x").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let log = dir.path().join("log");
        std::fs::write(&log, "before ").unwrap();
        let open = OpenOptions::new().append(true).open(&log).unwrap();
        let number = open.as_raw_fd();
        let descriptor = dir.path().join("descriptor");
        symlink(format!("/dev/fd/{number}"), &descriptor).unwrap();
        for name in [format!("/dev/fd/{number}").as_ref(), descriptor.as_path()] {
            text(name, "x").unwrap();
        }
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "before xx");
        assert!(link.is_symlink() && descriptor.is_symlink());
    }
}
