//! Unpacks an untrusted bundle: writes and links nothing outside of it, within size limits.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

/// In bytes; ten times the size for a machine of 512 CPUs and 4000 interrupts.
const MOST_BYTES: u64 = 1 << 30;
const MOST_ENTRIES: usize = 1_000_000;

/// Why a bundle was refused.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It is not a readable compressed archive.
    #[error("cannot unpack it: {0}")]
    Read(#[from] io::Error),
    /// An entry that no capture writes; the whole bundle is rejected.
    #[error("refused entry {entry:?}: {why}")]
    Refused {
        /// Its path.
        entry: String,
        /// The problem with it.
        why: &'static str,
    },
    /// It exceeds the size limits.
    #[error("it unpacks to more than {MOST_BYTES} bytes or {MOST_ENTRIES} entries")]
    TooLarge,
}

/// Unpacks a bundle into an empty directory.
pub(crate) fn unpack(file: File, dir: &Path) -> Result<(), UnpackError> {
    unpack_within(file, dir, MOST_BYTES, MOST_ENTRIES)
}

fn unpack_within(
    file: File,
    dir: &Path,
    mut bytes_left: u64,
    most_entries: usize,
) -> Result<(), UnpackError> {
    // headers count too: an archive bomb may consist of headers only
    let unpacked = zstd::Decoder::new(file)?.take(bytes_left);
    let mut archive = tar::Archive::new(unpacked);
    let mut links = BTreeSet::new();
    for (number, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        if number >= most_entries || entry.size() > bytes_left {
            return Err(UnpackError::TooLarge);
        }
        bytes_left -= entry.size();
        let path = entry.path()?.into_owned();
        let refuse = |why| UnpackError::Refused { entry: path.to_string_lossy().into_owned(), why };
        let inner =
            plain(&path).ok_or_else(|| refuse("its path is absolute or contains \"..\""))?;
        if inner.ancestors().skip(1).any(|parent| links.contains(parent)) {
            return Err(refuse("its path goes through a link"));
        }
        let place = dir.join(&inner);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        match entry.header().entry_type() {
            tar::EntryType::Directory => fs::create_dir_all(&place)?,
            tar::EntryType::Regular => {
                let mut file = File::create_new(&place)?;
                io::copy(&mut entry, &mut file)?;
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name()?.ok_or_else(|| refuse("it links to nothing"))?;
                if !stays_inside(&inner, &target) {
                    return Err(refuse("it links out of the bundle"));
                }
                symlink(target, &place)?;
                links.insert(inner);
            }
            _ => return Err(refuse("it is not a file, directory or symbolic link")),
        }
    }
    Ok(())
}

/// The path, if all its components are plain names.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut inner = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => inner.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (!inner.as_os_str().is_empty()).then_some(inner)
}

/// Whether a link at `inner` stays in its sample (`0/`, `1/`).
///
/// Allows `..` only at the start: after a name that is itself a link it could leave the sample.
fn stays_inside(inner: &Path, target: &Path) -> bool {
    let up = target.components().take_while(|c| matches!(c, Component::ParentDir)).count();
    let depth = inner.components().count() - 1;
    up < depth && target.components().skip(up).all(|c| matches!(c, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    fn bundle(fill: impl Fn(&mut tar::Builder<&mut Vec<u8>>)) -> File {
        let mut bytes = Vec::new();
        let mut archive = tar::Builder::new(&mut bytes);
        fill(&mut archive);
        archive.finish().unwrap();
        drop(archive);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&zstd::encode_all(bytes.as_slice(), 0).unwrap()).unwrap();
        file.rewind().unwrap();
        file
    }

    /// A header with an unchecked path: the library refuses to write hostile paths.
    fn header(path: &str, kind: tar::EntryType, link: &str, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        header
    }

    fn refused(entries: &[(&str, tar::EntryType, &str)]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("inside");
        fs::create_dir(&inside).unwrap();
        let file = bundle(|archive| {
            for (path, kind, link) in entries {
                archive.append(&header(path, *kind, link, 0), io::empty()).unwrap();
            }
        });
        let error = unpack(file, &inside).unwrap_err().to_string();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a file was written outside");
        error
    }

    #[test]
    fn escapes_are_refused() {
        use tar::EntryType as E;
        assert!(refused(&[("/etc/x", E::Regular, "")]).contains("absolute"));
        assert!(refused(&[("0/../../x", E::Regular, "")]).contains("\"..\""));
        assert!(refused(&[("0/l", E::Symlink, "/etc")]).contains("links out"));
        assert!(refused(&[("0/l", E::Symlink, "../1/x")]).contains("links out"));
        assert!(refused(&[("0/a/l", E::Symlink, "b/../../../x")]).contains("links out"));
        assert!(
            refused(&[("0/p/l", E::Symlink, "../sys"), ("0/p/l/x", E::Regular, "")])
                .contains("goes through a link")
        );
        assert!(refused(&[("0/h", E::Link, "0/x")]).contains("it is not a file"));
        assert!(refused(&[("0/f", E::Fifo, "")]).contains("it is not a file"));
        assert!(refused(&[("0/d", E::Char, "")]).contains("it is not a file"));
    }

    #[test]
    fn a_duplicate_file_is_refused() {
        assert!(
            refused(&[("0/x", tar::EntryType::Regular, ""), ("0/x", tar::EntryType::Regular, "")])
                .contains("exists")
        );
    }

    #[test]
    fn sizes_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let lie = bundle(|archive| {
            archive
                .append(&header("0/x", tar::EntryType::Regular, "", 1 << 40), io::empty())
                .unwrap()
        });
        assert!(matches!(unpack(lie, dir.path()), Err(UnpackError::TooLarge)));
        let long = bundle(|archive| {
            archive
                .append(&header("0/x", tar::EntryType::Regular, "", 9000), &[0; 9000][..])
                .unwrap();
            archive
                .append(&header("0/y", tar::EntryType::Regular, "", 9000), &[0; 9000][..])
                .unwrap();
        });
        assert!(unpack_within(long, dir.path(), 10_000, 10).is_err());
        let many = bundle(|archive| {
            for name in ["0/p", "0/q", "0/r"] {
                archive.append(&header(name, tar::EntryType::Regular, "", 0), io::empty()).unwrap();
            }
        });
        assert!(matches!(unpack_within(many, dir.path(), 1 << 20, 2), Err(UnpackError::TooLarge)));
    }

    #[test]
    fn sysfs_links_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = bundle(|archive| {
            let link = header(
                "0/sys/class/net/eth0",
                tar::EntryType::Symlink,
                "../../devices/pci/net/eth0",
                0,
            );
            archive.append(&link, io::empty()).unwrap();
        });
        unpack(file, dir.path()).unwrap();
        let target = fs::read_link(dir.path().join("0/sys/class/net/eth0")).unwrap();
        assert_eq!(target, Path::new("../../devices/pci/net/eth0"));
    }

    #[test]
    fn garbage_is_not_a_bundle() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello").unwrap();
        file.rewind().unwrap();
        assert!(
            unpack(file, Path::new("/nonexistent"))
                .unwrap_err()
                .to_string()
                .starts_with("cannot unpack it")
        );
    }
}
