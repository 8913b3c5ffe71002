//! Reads the files of another collector's report into memory: a sosreport, as an archive or a
//! folder, or a folder of command outputs.
//!
//! Only the files that [`item`] knows are kept; all others are passed over.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use netsilo_model::collection::names::item;
use rustix::fs::OFlags;
use tar::{EntryType, PaxExtensions};

use crate::bundle::unpack::{Limits, Target, UnpackError, plain, read_name, refused};
use crate::files::memory_tree::MemoryTree;
use crate::files::regular;

/// Limits of what is kept of one report.
const LIMITS: Limits =
    Limits { bytes: 48 << 20, file_bytes: 32 << 20, entries: 80_000, name_bytes: 16 << 20 };

/// Most bytes of an unpacked archive, and most entries of a report, that are passed over.
const MOST_BYTES: u64 = 8 << 30;
const MOST_ENTRIES: usize = 2_000_000;

/// Most memory of the xz decoder in KiB: `xz -9` needs 64 MiB and a little more.
const XZ_MEMORY_KIB: u32 = 80 << 10;

/// Longest extension header, in bytes.
const MOST_EXTENSION: u64 = 64 << 10;

/// Most folders above a file of a folder.
const MOST_DEPTH: usize = 24;

/// The folders of a report that have known files.
const FOLDERS: [&str; 3] = ["proc", "sys", "sos_commands"];

/// The kept files, and the permission bits of those for which they mean something.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) tree: MemoryTree,
    pub(super) modes: HashMap<PathBuf, u32>,
}

/// Reads an archive: xz, gzip, bzip2 or plain tar. `None` if the file is none of these.
pub(super) fn archive(mut file: File) -> Result<Option<Files>, UnpackError> {
    let mut start = [0; 262];
    let read = read_start(&mut file, &mut start)?;
    file.rewind()?;
    let file = BufReader::new(file);
    let decoder: Box<dyn Read> = match &start[..read] {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(file, true, XZ_MEMORY_KIB))
        }
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
        [b'B', b'Z', b'h', ..] => Box::new(bzip2::read::MultiBzDecoder::new(file)),
        start if start.get(257..262) == Some(b"ustar") => Box::new(file),
        _ => return Ok(None),
    };
    entries(decoder, MOST_BYTES).map(Some)
}

fn read_start(file: &mut File, start: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let read @ 1.. = file.read(&mut start[filled..])? {
        filled += read;
    }
    Ok(filled)
}

/// Reads all entries of an unpacked stream.
fn entries(stream: impl Read, most: u64) -> Result<Files, UnpackError> {
    let mut archive = tar::Archive::new(stream.take(most));
    let files = files(&mut archive);
    // the library takes the end of the stream for that of the archive, which is two empty blocks
    let mut rest = archive.into_inner();
    if rest.limit() == 0 {
        return Err(UnpackError::TooLargeReport);
    }
    let files = files?;
    if rest.read(&mut [0])? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its end was cut off").into());
    }
    Ok(files)
}

fn files(archive: &mut tar::Archive<impl Read>) -> Result<Files, UnpackError> {
    let mut files = Files::default();
    let mut target = Target::new(Some(&mut files.tree), LIMITS);
    let mut next = LongNames::default();
    let mut count = 0;
    // raw: otherwise the library would read an extension header of any size into memory
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        count += 1;
        if count > MOST_ENTRIES {
            return Err(UnpackError::TooLargeReport);
        }
        let kind = entry.header().entry_type();
        if next.add(kind, &mut entry)? || kind == EntryType::XGlobalHeader {
            continue;
        }
        let LongNames { path, link } = std::mem::take(&mut next);
        let path = path.map_or_else(|| Ok(entry.path()?.into_owned()), Ok::<_, io::Error>)?;
        // "./" at the start of an archive of a folder
        if path.components().all(|part| part == std::path::Component::CurDir) {
            continue;
        }
        let why = "its path is absolute or contains \"..\"";
        let path = below_top(&plain(&path).ok_or_else(|| refused(&path, why))?);
        if kind == EntryType::Directory || !is_known(&path) || is_alias(&path, kind.is_symlink()) {
            continue;
        }
        let link = link.map_or_else(
            || Ok(entry.link_name()?.map(Into::into)),
            |it| Ok::<_, io::Error>(Some(it)),
        )?;
        if has_mode(&path) {
            files.modes.insert(path.clone(), entry.header().mode()?);
        }
        target.put(&mut entry, &path, link)?;
    }
    Ok(files)
}

/// The names in the extension headers before an entry.
#[derive(Default)]
struct LongNames {
    path: Option<PathBuf>,
    link: Option<PathBuf>,
}

impl LongNames {
    /// Reads an extension header. Returns whether it was one.
    fn add(
        &mut self,
        kind: EntryType,
        entry: &mut tar::Entry<'_, impl Read>,
    ) -> Result<bool, UnpackError> {
        match kind {
            EntryType::GNULongName => self.path = Some(read_name(entry)?),
            EntryType::GNULongLink => self.link = Some(read_name(entry)?),
            EntryType::XHeader => {
                if entry.size() > MOST_EXTENSION {
                    return Err(refused(Path::new("(extension header)"), "it is too long"));
                }
                let mut header = Vec::new();
                entry.read_to_end(&mut header)?;
                for extension in PaxExtensions::new(&header) {
                    let extension = extension?;
                    let value =
                        || PathBuf::from(String::from_utf8_lossy(extension.value_bytes()).as_ref());
                    match extension.key() {
                        Ok("path") => self.path = Some(value()),
                        Ok("linkpath") => self.link = Some(value()),
                        _ => {}
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The path without the folder that an archive of a folder has at its top.
fn below_top(path: &Path) -> PathBuf {
    let mut rest = path.components();
    let top = rest.next().map(|top| top.as_os_str().to_string_lossy().into_owned());
    let is_top = top.is_some_and(|top| !FOLDERS.contains(&top.as_str()));
    if is_top && !rest.as_path().as_os_str().is_empty() {
        rest.as_path().into()
    } else {
        path.into()
    }
}

/// Whether this is one of a sosreport's links at the top to the files of its commands.
fn is_alias(path: &Path, is_link: bool) -> bool {
    is_link && path.components().count() == 1
}

fn is_known(path: &Path) -> bool {
    path.to_str().is_some_and(|path| item(path).is_some())
}

/// Whether the mode of a file says whether an interrupt can be moved.
fn has_mode(path: &Path) -> bool {
    path.starts_with("proc/irq") && path.ends_with("smp_affinity_list")
}

/// Reads a folder. Follows no link: a link is kept as one, and leads nowhere outside.
pub(super) fn folder(dir: &Path) -> Result<Files, UnpackError> {
    let mut files = Files::default();
    let mut target = Target::new(Some(&mut files.tree), LIMITS);
    let mut seen = 0;
    let mut open = vec![PathBuf::new()];
    while let Some(inner) = open.pop() {
        for entry in fs::read_dir(dir.join(&inner))? {
            let entry = entry?;
            seen += 1;
            if seen > MOST_ENTRIES {
                return Err(UnpackError::TooLargeReport);
            }
            let path = inner.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if may_have_known(&path) {
                    open.push(path);
                }
            } else if is_alias(&path, kind.is_symlink()) {
                continue;
            } else if is_known(&path) && kind.is_symlink() {
                target.link(&path, fs::read_link(entry.path())?)?;
            } else if is_known(&path) {
                let file = regular::open_with(
                    fs::OpenOptions::new().read(true),
                    OFlags::NOFOLLOW,
                    &entry.path(),
                )?;
                if has_mode(&path) {
                    files.modes.insert(path.clone(), file.metadata()?.permissions().mode());
                }
                let contents =
                    regular::read_rest(file, LIMITS.file_bytes).map_err(UnpackError::Read)?;
                target.file(&path, contents)?;
            }
        }
    }
    Ok(files)
}

/// Whether known files may be below a folder.
fn may_have_known(path: &Path) -> bool {
    path.components().count() <= MOST_DEPTH && FOLDERS.iter().any(|top| path.starts_with(top))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn tar(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, kind, text) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o444);
            let contents = if *kind == EntryType::Symlink {
                header.set_link_name_literal(text).unwrap();
                ""
            } else {
                text
            };
            header.set_size(contents.len() as u64);
            header.set_cksum();
            archive.append(&header, contents.as_bytes()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn read(entries: &[(&str, EntryType, &str)]) -> Result<Files, UnpackError> {
        super::entries(tar(entries).as_slice(), MOST_BYTES)
    }

    const STAT: (&str, EntryType, &str) = ("sos-x/proc/stat", EntryType::Regular, "cpu 1\n");

    #[test]
    fn every_compression_of_a_sosreport_is_read() {
        let plain = tar(&[STAT, ("sos-x/etc/shadow", EntryType::Regular, "secret")]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let mut bzip = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip.write_all(&plain).unwrap();
        for bytes in [plain, gzip.finish().unwrap(), bzip.finish().unwrap()] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            file.rewind().unwrap();
            let files = archive(file).unwrap().unwrap();
            assert_eq!(files.tree.file("proc/stat").unwrap(), b"cpu 1\n");
            assert!(files.tree.file("etc/shadow").is_err(), "not kept");
        }
    }

    #[test]
    fn names_in_pax_headers_are_used_and_bounded() {
        let record = "28 path=sos-x/proc/softirqs\n";
        let x = EntryType::XHeader;
        let files = read(&[("x", x, record), ("short", EntryType::Regular, "text")]).unwrap();
        assert_eq!(files.tree.file("proc/softirqs").unwrap(), b"text");
        let long = "y".repeat(70_000);
        assert!(read(&[("x", x, &long)]).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn hostile_entries_are_refused_and_links_lead_nowhere_outside() {
        let error = |entry| read(&[entry]).unwrap_err().to_string();
        let regular = EntryType::Regular;
        assert!(error(("/proc/stat", regular, "")).contains("absolute"));
        assert!(error(("sos-x/../proc/stat", regular, "")).contains("\"..\""));
        assert!(
            error(("sos-x/proc/stat", EntryType::Symlink, "/etc/passwd")).contains("links out")
        );
        assert!(error(("sos-x/proc/net", EntryType::Symlink, "../../x")).contains("links out"));
        assert!(error(("sos-x/proc/stat", EntryType::Link, "")).contains("not a file"));
        assert!(read(&[STAT, STAT]).unwrap_err().to_string().contains("exists already"));
        let other = read(&[("sos-x/etc/x", EntryType::Symlink, "/etc/passwd"), STAT]).unwrap();
        assert!(other.tree.file("proc/stat").is_ok());
    }

    #[test]
    fn an_archive_that_is_too_large_or_was_cut_is_refused_wherever_it_ends() {
        let whole = tar(&[STAT, ("sos-x/proc/softirqs", EntryType::Regular, "text")]);
        let error = |bytes: &[u8], most| super::entries(bytes, most).unwrap_err().to_string();
        // the first entry ends at 1024, and the second at 2048
        for end in [600, 1024, 1500, 2048, 2560] {
            assert!(error(&whole, end).contains("too many files"), "{end}");
            let end = end as usize;
            assert!(error(&whole[..end], MOST_BYTES).starts_with("cannot unpack it"), "{end}");
        }
        assert!(error(&whole[..1024], MOST_BYTES).ends_with("its end was cut off"));
    }

    #[test]
    fn a_folder_is_read_without_following_its_links() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        fs::create_dir_all(proc.join("irq/24")).unwrap();
        fs::write(proc.join("irq/24/smp_affinity_list"), "0-3\n").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("sys")).unwrap();
        let files = folder(dir.path()).unwrap();
        assert_eq!(files.tree.file("proc/irq/24/smp_affinity_list").unwrap(), b"0-3\n");
        assert_eq!(files.modes.len(), 1);
        assert!(files.tree.link("sys").is_err());
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("interrupts")).unwrap();
        assert!(folder(dir.path()).unwrap().tree.file("interrupts").is_err(), "an alias");
        std::os::unix::fs::symlink("/etc/passwd", proc.join("stat")).unwrap();
        assert!(folder(dir.path()).unwrap_err().to_string().contains("links out"));
    }
}
