//! Unpacks an untrusted bundle into memory, within size limits.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use crate::files::memory_tree::MemoryTree;
use crate::files::root::LONGEST_FILE;

/// Limits of one bundle: several times the size of a machine with 512 CPUs and 4000 interrupts.
const LIMITS: Limits =
    Limits { bytes: 256 << 20, file_bytes: LONGEST_FILE, entries: 80_000, name_bytes: 16 << 20 };

/// Maximum length of a path in bytes, and maximum number of names in it. Paths in sysfs are below
/// 250 and 25.
const MOST_PATH: u64 = 1024;
const MOST_DEPTH: usize = 40;

/// The decoder's memory as a power of two: 8 MiB. A bundle needs 2 MiB; `zstd -19` needs 8.
const WINDOW_LOG: u32 = 23;

/// Why a bundle was refused.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The file is not a readable compressed archive.
    #[error("cannot unpack it: {0}")]
    Read(#[from] io::Error),
    /// An entry that no capture writes. The whole bundle is rejected.
    #[error("refused entry {entry:?}: {why}")]
    Refused {
        /// Its path.
        entry: String,
        /// The problem with it.
        why: &'static str,
    },
    /// It exceeds the size limits.
    #[error(
        "it unpacks to more than {} MiB, a file of {} MiB, or {} entries",
        LIMITS.bytes >> 20, LIMITS.file_bytes >> 20, LIMITS.entries
    )]
    TooLarge,
    /// A report of another collector exceeds its size limits.
    #[error(
        "it has too many files or netdevs, or too large files: netsilo reads at most 48 MiB of a \
         report"
    )]
    TooLargeReport,
}

/// How much may still be unpacked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of the archive. Headers count too, because an archive bomb may consist of headers
    /// only.
    pub(super) bytes: u64,
    /// Bytes of one file.
    pub(super) file_bytes: u64,
    /// Number of entries, including folders that no entry names.
    pub(super) entries: u64,
    /// Bytes of all paths, because they stay in memory.
    pub(super) name_bytes: u64,
}

/// Unpacks a bundle. If an entry is refused, no memory is taken for the contents.
pub(crate) fn unpack(file: File) -> Result<MemoryTree, UnpackError> {
    unpack_within(file, LIMITS)
}

fn unpack_within(mut file: File, limits: Limits) -> Result<MemoryTree, UnpackError> {
    go_through(&file, None, limits)?;
    file.rewind()?;
    let mut tree = MemoryTree::default();
    go_through(&file, Some(&mut tree), limits)?;
    Ok(tree)
}

/// Checks all entries, and puts them into the tree if one is given.
fn go_through(
    file: &File,
    tree: Option<&mut MemoryTree>,
    limits: Limits,
) -> Result<(), UnpackError> {
    let mut decoder = zstd::Decoder::new(file)?;
    decoder.window_log_max(WINDOW_LOG)?;
    let mut archive = tar::Archive::new(decoder.take(limits.bytes));
    let mut target = Target::new(tree, limits);
    let (mut long_name, mut long_link) = (None, None);
    // raw: otherwise the library would read an extension header of any size into memory
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::GNULongName | EntryType::GNULongLink) {
            let name = Some(read_name(&mut entry)?);
            *(if kind == EntryType::GNULongName { &mut long_name } else { &mut long_link }) = name;
            continue;
        }
        let path = match long_name.take() {
            Some(path) => path,
            None => entry.path()?.into_owned(),
        };
        let link = match long_link.take() {
            None => entry.link_name()?.map(|link| link.into_owned()),
            link => link,
        };
        target.put(&mut entry, &path, link)?;
    }
    Ok(())
}

/// What the entries add up to.
pub(super) struct Target<'a> {
    tree: Option<&'a mut MemoryTree>,
    left: Limits,
    /// All paths so far, and whether each is a folder.
    known: HashMap<PathBuf, bool>,
}

impl<'a> Target<'a> {
    /// Nothing yet.
    pub(super) fn new(tree: Option<&'a mut MemoryTree>, limits: Limits) -> Self {
        Self { tree, left: limits, known: HashMap::new() }
    }

    /// Adds one entry.
    pub(super) fn put(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        path: &Path,
        link: Option<PathBuf>,
    ) -> Result<(), UnpackError> {
        let refuse = |why| refused(path, why);
        let inner = plain(path).ok_or_else(|| refuse("its path is absolute or contains \"..\""))?;
        if inner.components().count() > MOST_DEPTH {
            return Err(refuse("its path has too many folders"));
        }
        match entry.header().entry_type() {
            EntryType::Directory => self.folder(&inner)?,
            EntryType::Regular => {
                self.add(&inner, entry.size())?;
                if let Some(tree) = &mut self.tree {
                    let mut contents = Vec::new();
                    entry.read_to_end(&mut contents)?;
                    tree.insert(&inner, MemoryTree::File(contents.into()));
                }
            }
            EntryType::Symlink => {
                let link = link.filter(|link| !link.as_os_str().is_empty());
                self.link(&inner, link.ok_or_else(|| refuse("it links to nothing"))?)?;
            }
            _ => return Err(refuse("it is not a file, directory or symbolic link")),
        }
        Ok(())
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, inner: &Path, to: PathBuf) -> Result<(), UnpackError> {
        if !stays_inside(inner, &to) {
            return Err(refused(inner, "it links out of the bundle"));
        }
        self.add(inner, to.as_os_str().len() as u64)?;
        if let Some(tree) = &mut self.tree {
            tree.insert(inner, MemoryTree::Link(to.into()));
        }
        Ok(())
    }

    /// Adds a file with its contents.
    pub(super) fn file(&mut self, inner: &Path, contents: Vec<u8>) -> Result<(), UnpackError> {
        self.add(inner, contents.len() as u64)?;
        if let Some(tree) = &mut self.tree {
            tree.insert(inner, MemoryTree::File(contents.into()));
        }
        Ok(())
    }

    /// Makes a folder and those above it, if they do not exist yet.
    fn folder(&mut self, inner: &Path) -> Result<(), UnpackError> {
        match self.known.get(inner) {
            Some(true) => return Ok(()),
            Some(false) => return Err(refused(inner, "its path goes through a link or a file")),
            None => {}
        }
        self.parent(inner)?;
        self.take(inner, 0)?;
        self.known.insert(inner.to_owned(), true);
        if let Some(tree) = &mut self.tree {
            tree.insert(inner, MemoryTree::default());
        }
        Ok(())
    }

    fn parent(&mut self, inner: &Path) -> Result<(), UnpackError> {
        let named = |folder: &&Path| !folder.as_os_str().is_empty();
        inner.parent().filter(named).map_or(Ok(()), |folder| self.folder(folder))
    }

    /// Adds a file or a link, with the folders above it.
    fn add(&mut self, inner: &Path, bytes: u64) -> Result<(), UnpackError> {
        self.parent(inner)?;
        self.take(inner, bytes)?;
        match self.known.insert(inner.to_owned(), false) {
            Some(_) => Err(refused(inner, "its path exists already")),
            None => Ok(()),
        }
    }

    /// Subtracts an entry with its path and its bytes from the limits.
    fn take(&mut self, inner: &Path, bytes: u64) -> Result<(), UnpackError> {
        let left = &mut self.left;
        let fits = |left: u64, used: u64| left.checked_sub(used).ok_or(UnpackError::TooLarge);
        fits(left.file_bytes, bytes)?;
        left.bytes = fits(left.bytes, bytes)?;
        left.entries = fits(left.entries, 1)?;
        left.name_bytes = fits(left.name_bytes, inner.as_os_str().len() as u64)?;
        Ok(())
    }
}

pub(super) fn refused(entry: &Path, why: &'static str) -> UnpackError {
    UnpackError::Refused { entry: entry.to_string_lossy().into_owned(), why }
}

/// Reads an extension header, which holds the path or target of the next entry.
pub(super) fn read_name(entry: &mut tar::Entry<'_, impl Read>) -> Result<PathBuf, UnpackError> {
    if entry.size() > MOST_PATH {
        return Err(refused(Path::new("(long name)"), "it is too long"));
    }
    let mut name = Vec::new();
    entry.read_to_end(&mut name)?;
    name.truncate(memchr::memchr(0, &name).unwrap_or(name.len()));
    Ok(OsString::from_vec(name).into())
}

/// The path; an error unless all its components are plain names.
pub(super) fn plain(path: &Path) -> Option<PathBuf> {
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
/// Allows `..` only at the start. After a name that is itself a link, `..` could leave the sample.
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

    /// A header with an unchecked path. The library refuses to write hostile paths.
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
        let file = bundle(|archive| {
            for (path, kind, link) in entries {
                archive.append(&header(path, *kind, link, 0), io::empty()).unwrap();
            }
        });
        unpack(file).unwrap_err().to_string()
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
        assert!(
            refused(&[
                ("0/x/y", tar::EntryType::Regular, ""),
                ("0/x", tar::EntryType::Regular, "")
            ])
            .contains("exists")
        );
    }

    #[test]
    fn sizes_are_bounded() {
        let lie = bundle(|archive| {
            archive
                .append(&header("0/x", tar::EntryType::Regular, "", 1 << 40), io::empty())
                .unwrap()
        });
        assert!(matches!(unpack(lie), Err(UnpackError::TooLarge)));
        let long = bundle(|archive| {
            archive
                .append(&header("0/x", tar::EntryType::Regular, "", 9000), &[0; 9000][..])
                .unwrap();
            archive
                .append(&header("0/y", tar::EntryType::Regular, "", 9000), &[0; 9000][..])
                .unwrap();
        });
        let limits = Limits { bytes: 10_000, ..LIMITS };
        assert!(unpack_within(long, limits).is_err());
        let many = bundle(|archive| {
            for name in ["0/p", "0/q", "0/r"] {
                archive.append(&header(name, tar::EntryType::Regular, "", 0), io::empty()).unwrap();
            }
        });
        let limits = Limits { entries: 3, ..LIMITS };
        assert!(matches!(unpack_within(many, limits), Err(UnpackError::TooLarge)));
    }

    #[test]
    fn long_names_are_bounded_and_count_their_folders() {
        let named = |name: &[u8]| {
            bundle(|archive| {
                let size = name.len() as u64;
                let long = header("././@LongLink", EntryType::GNULongName, "", size);
                archive.append(&long, name).unwrap();
                archive.append(&header("x", EntryType::Regular, "", 0), io::empty()).unwrap();
            })
        };
        let long = format!("0/{}/x\0", "a".repeat(200));
        let tree = unpack(named(long.as_bytes())).unwrap();
        assert_eq!(tree.file(long.trim_end_matches('\0')).unwrap(), b"");
        let refused = |name: &[u8]| unpack(named(name)).unwrap_err().to_string();
        assert!(refused(&[b'a'; 2000]).contains("too long"));
        assert!(refused("b/".repeat(400).as_bytes()).contains("too many folders"));
        let limits = Limits { entries: 9, ..LIMITS };
        let deep = unpack_within(named("c/".repeat(10).as_bytes()), limits);
        assert!(matches!(deep, Err(UnpackError::TooLarge)));
        let pax = bundle(|archive| {
            archive.append(&header("p", EntryType::XHeader, "", 0), io::empty()).unwrap();
        });
        assert!(unpack(pax).unwrap_err().to_string().contains("it is not a file"));
    }

    #[test]
    fn sysfs_links_are_kept() {
        let file = bundle(|archive| {
            let link = header(
                "0/sys/class/net/eth0",
                tar::EntryType::Symlink,
                "../../devices/pci/net/eth0",
                0,
            );
            archive.append(&link, io::empty()).unwrap();
        });
        let tree = unpack(file).unwrap();
        let target = tree.link("0/sys/class/net/eth0").unwrap();
        assert_eq!(target, "../../devices/pci/net/eth0");
    }

    #[test]
    fn garbage_is_not_a_bundle() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello").unwrap();
        file.rewind().unwrap();
        assert!(unpack(file).unwrap_err().to_string().starts_with("cannot unpack it"));
    }
}
