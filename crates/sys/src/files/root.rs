//! The source of kernel files: the running kernel, a captured tree, or a tree made for a test.
//!
//! A tree is a directory with `proc/` and `sys/`, on a disk or in memory. Its `tree.json` has the
//! facts that plain files cannot hold: the modes of knobs, the errnos of files that could not be
//! read, and the time. A live root can save everything read through it as a tree, so that the same
//! readers return the same values elsewhere.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netsilo_model::parse::ParseError;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::since_boot;
use crate::files::error::ReadError;
use crate::files::memory_tree::MemoryTree;
use crate::files::recorder::Recorder;
use crate::files::source::{Entry, Opened, Source};
use crate::files::tree_facts::{TREE_FACTS, TreeFacts};

/// The environment variable that names the folder with the running kernel's `proc/` and `sys/`. In
/// a container these two are partly read-only, so those of the host are mounted elsewhere.
pub const HOST_VARIABLE: &str = "NETSILO_HOST";

/// Why the folder of [`HOST_VARIABLE`] cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "{HOST_VARIABLE}={dir}: there is no {dir}/{missing}; mount the host's /proc and /sys there, \
     or unset the variable"
)]
pub struct HostError {
    dir: String,
    missing: &'static str,
}

/// The source of kernel files.
#[derive(Debug, Clone)]
pub struct Root {
    source: Source,
    live: bool,
    facts: Arc<TreeFacts>,
    recorder: Option<Arc<Recorder>>,
}

impl Root {
    /// The running kernel, in `/` or the folder of [`HOST_VARIABLE`].
    pub fn live() -> Self {
        Self::live_in(std::env::var_os(HOST_VARIABLE).map_or_else(|| "/".into(), PathBuf::from))
    }

    /// Checks the folder of [`HOST_VARIABLE`], if it is set.
    pub fn check_host() -> Result<(), HostError> {
        let dir = std::env::var_os(HOST_VARIABLE);
        dir.map_or(Ok(()), |dir| check(Path::new(&dir)))
    }

    fn live_in(dir: PathBuf) -> Self {
        Self { source: Source::Folder(dir), live: true, facts: Arc::default(), recorder: None }
    }

    /// A captured or synthetic tree: a directory that contains `proc/` and `sys/`.
    pub fn at(dir: impl Into<PathBuf>) -> Result<Self, ReadError> {
        let dir = dir.into();
        let facts = match std::fs::read(dir.join(TREE_FACTS)) {
            Ok(json) => facts(&json)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound && dir.is_dir() => TreeFacts::default(),
            Err(e) => return Err(ReadError::from_io(&dir.join(TREE_FACTS).to_string_lossy(), e)),
        };
        Ok(Self::captured(Source::Folder(dir), facts))
    }

    /// A captured tree in memory.
    pub(crate) fn in_memory(tree: Arc<MemoryTree>) -> Result<Self, ReadError> {
        let facts = match tree.file(TREE_FACTS) {
            Ok(json) => facts(json)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => TreeFacts::default(),
            Err(e) => return Err(ReadError::from_io(TREE_FACTS, e)),
        };
        Ok(Self::captured(Source::Memory(tree), facts))
    }

    fn captured(source: Source, facts: TreeFacts) -> Self {
        Self { source, live: false, facts: Arc::new(facts), recorder: None }
    }

    /// The same root, but everything read through it is saved as a tree in `dir`. End with
    /// [`Recorder::finish`].
    pub fn recording(&self, dir: &Path) -> Result<(Self, Arc<Recorder>), ReadError> {
        let recorder = Arc::new(Recorder::new(dir)?);
        Ok((Self { recorder: Some(Arc::clone(&recorder)), ..self.clone() }, recorder))
    }

    /// The same root without saving; for searches.
    pub(crate) fn unrecorded(&self) -> Self {
        Self { recorder: None, ..self.clone() }
    }

    /// Whether everything that is read is saved.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Whether this is the running kernel, which also answers ioctls and netlink.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The file for the kernel's `path` (`/proc/interrupts`) in this root. Fails if the root is in
    /// memory.
    pub(crate) fn path(&self, path: &str) -> io::Result<PathBuf> {
        self.source.path(path)
    }

    /// Reads a whole file.
    pub fn read(&self, path: &str) -> Result<String, ReadError> {
        self.bytes(path, |bytes| utf8_text(bytes).into_owned())
    }

    /// Reads a whole file and parses it.
    pub fn parse<T>(
        &self,
        path: &str,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        self.bytes(path, |bytes| parse(&utf8_text(bytes)))?
            .map_err(|source| ReadError::Parse { path: path.to_owned(), source })
    }

    /// The same as [`Root::parse`], but `None` if the kernel has no value.
    pub fn optional<T>(
        &self,
        path: &str,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<Option<T>, ReadError> {
        match self.parse(path, parse) {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.is_absent() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Opens a file for repeated reads. Returns `None` if each read must be saved or is from
    /// memory.
    pub(crate) fn open_for_cache(&self, path: &str) -> Result<Option<File>, ReadError> {
        if self.is_recorded() {
            return Ok(None);
        }
        match self.open(path)? {
            Opened::File(file) => Ok(Some(file)),
            Opened::Memory(_) => Ok(None),
        }
    }

    /// Names in a directory with their inode numbers; saves nothing.
    ///
    /// If the object behind a name changes, the number changes too.
    pub(crate) fn inodes(&self, path: &str) -> Result<Vec<(String, u64)>, ReadError> {
        let entries = self.source.entries(path).map_err(|e| ReadError::from_io(path, e))?;
        let mut inodes: Vec<(String, u64)> =
            entries.into_iter().map(|entry| (entry.name, entry.inode)).collect();
        inodes.sort_unstable();
        Ok(inodes)
    }

    /// Names of the folders in a directory; saves nothing.
    pub(crate) fn folders(&self, path: &str) -> Result<Vec<String>, ReadError> {
        let entries = self.source.entries(path).map_err(|e| ReadError::from_io(path, e))?;
        Ok(entries.into_iter().filter(|entry| entry.is_folder).map(|entry| entry.name).collect())
    }

    /// Whether a file exists; saves nothing.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.source.mode(path).is_ok()
    }

    /// Reads a large file line by line through a bounded buffer.
    pub fn lines(
        &self,
        path: &str,
        line: impl FnMut(&[u8]) -> Result<(), ParseError>,
    ) -> Result<(), ReadError> {
        let mut file: Box<dyn Read + '_> = match self.open(path)? {
            Opened::File(file) => Box::new(file),
            Opened::Memory(contents) => Box::new(contents),
        };
        let save = self.recorder.as_deref().map(|recorder| recorder.create(path)).transpose()?;
        crate::files::lines::read_lines(&mut file, save, line).map_err(|error| match error {
            crate::files::lines::LinesError::Read(source) => ReadError::from_io(path, source),
            crate::files::lines::LinesError::Save(source) => {
                ReadError::Save { path: path.to_owned(), source }
            }
            crate::files::lines::LinesError::Parse(source) => {
                ReadError::Parse { path: path.to_owned(), source }
            }
        })
    }

    /// Names in a directory, sorted.
    pub fn list(&self, path: &str) -> Result<Vec<String>, ReadError> {
        self.known_failure(path)?;
        let mut names = Vec::new();
        for Entry { name, is_folder, .. } in
            self.source.entries(path).map_err(|e| self.failed(path, e))?
        {
            if let Some(recorder) = &self.recorder {
                recorder.placeholder(&format!("{path}/{name}"), is_folder)?;
            }
            names.push(name);
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| names.is_empty()) {
            recorder.directory(path)?;
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The target of a symbolic link, unresolved.
    pub fn link(&self, path: &str) -> Result<String, ReadError> {
        self.known_failure(path)?;
        let target = self.source.link(path).map_err(|e| match e.raw_os_error() {
            // not a link: the tree reproduces this error by itself
            Some(errno) if errno == Errno::INVAL.raw_os_error() => ReadError::from_io(path, e),
            _ => self.failed(path, e),
        })?;
        let target = target.to_string_lossy().into_owned();
        if let Some(recorder) = &self.recorder {
            recorder.link(path, &target)?;
        }
        Ok(target)
    }

    /// The target of a symbolic link, as a path on the machine that was read. Returns `path` itself
    /// if it is not a link.
    pub fn resolve(&self, path: &str) -> Result<String, ReadError> {
        match self.link(path) {
            Ok(target) => Ok(join(path, &target)),
            Err(ReadError::Io { source, .. })
                if source.raw_os_error() == Some(Errno::INVAL.raw_os_error()) =>
            {
                Ok(path.to_owned())
            }
            Err(e) => Err(e),
        }
    }

    /// The permission bits of a file.
    pub fn mode(&self, path: &str) -> Result<u32, ReadError> {
        if let Some(mode) = self.facts.modes.get(path) {
            return Ok(*mode);
        }
        let mode = self.source.mode(path).map_err(|e| self.failed(path, e))?;
        if let Some(recorder) = &self.recorder {
            recorder.mode(path, mode);
        }
        Ok(mode)
    }

    /// Time since boot: now, or when the tree was captured.
    pub fn now(&self) -> Result<Duration, ReadError> {
        if !self.live {
            return match self.facts.at {
                Some(at) => Ok(at),
                None => Ok(self.optional("/proc/uptime", uptime)?.unwrap_or_default()),
            };
        }
        let at = since_boot();
        if let Some(recorder) = &self.recorder {
            recorder.at(at);
        }
        Ok(at)
    }

    /// Reads a file of which only what `keep` keeps is used, and is in a capture.
    pub(crate) fn kept(
        &self,
        path: &str,
        keep: impl FnOnce(&str) -> Option<String>,
    ) -> Result<Option<String>, ReadError> {
        let kept = keep(&self.unrecorded().read(path)?);
        if let (Some(recorder), Some(kept)) = (&self.recorder, &kept) {
            recorder.file(path, kept.as_bytes())?;
        }
        Ok(kept)
    }

    /// The kernel's answer to an ioctl or netlink request. A live root sends the request; a tree
    /// has the answer in its file `name`.
    pub(crate) fn answer<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        ask: impl FnOnce() -> T,
    ) -> Result<Option<T>, ReadError> {
        let json_error = |e| ReadError::Io { path: name.to_owned(), source: io::Error::other(e) };
        if !self.live {
            let Some(json) = self.optional(name, |text| Ok(text.to_owned()))? else {
                return Ok(None);
            };
            return serde_json::from_slice(json.as_bytes()).map(Some).map_err(json_error);
        }
        let answer = ask();
        if let Some(recorder) = &self.recorder {
            let json = serde_json::to_vec_pretty(&answer).map_err(json_error)?;
            recorder.file(name, &json)?;
        }
        Ok(Some(answer))
    }

    fn open(&self, path: &str) -> Result<Opened<'_>, ReadError> {
        self.known_failure(path)?;
        self.source.open(path).map_err(|e| self.failed(path, e))
    }

    fn bytes<T>(&self, path: &str, take: impl FnOnce(&[u8]) -> T) -> Result<T, ReadError> {
        let (mut page, mut large) = ([0; 4096], Vec::new());
        let contents = match self.open(path)? {
            Opened::File(mut file) => {
                read_whole(&mut file, &mut page, &mut large).map_err(|e| self.failed(path, e))?
            }
            Opened::Memory(contents) => contents,
        };
        if let Some(recorder) = &self.recorder {
            recorder.file(path, contents)?;
        }
        Ok(take(contents))
    }

    /// The error that the file had when the tree was captured, if any.
    fn known_failure(&self, path: &str) -> Result<(), ReadError> {
        match self.facts.errnos.get(path) {
            Some(&errno) => Err(ReadError::from_io(path, io::Error::from_raw_os_error(errno))),
            None => Ok(()),
        }
    }

    fn failed(&self, path: &str, source: io::Error) -> ReadError {
        if let (Some(recorder), Some(errno)) = (&self.recorder, source.raw_os_error()) {
            recorder.failed(path, errno);
        }
        ReadError::from_io(path, source)
    }
}

/// The text in a file. `String::from_utf8_lossy` alone takes longer where all is UTF-8.
pub(crate) fn utf8_text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Checks that a folder has the running kernel's files.
fn check(dir: &Path) -> Result<(), HostError> {
    match ["proc/stat", "sys/class"].into_iter().find(|it| !dir.join(it).exists()) {
        Some(missing) => Err(HostError { dir: dir.display().to_string(), missing }),
        None => Ok(()),
    }
}

fn facts(json: &[u8]) -> Result<TreeFacts, ReadError> {
    serde_json::from_slice(json)
        .map_err(|e| ReadError::Io { path: TREE_FACTS.to_owned(), source: io::Error::other(e) })
}

/// Longest file that is read whole, in bytes: `/proc/net/udp` with half a million sockets.
pub(crate) const LONGEST_FILE: u64 = 64 << 20;

/// Reads to the end. Uses `page` if the file fits (a sysfs file has at most a page), else `large`.
fn read_whole<'a>(
    file: &mut File,
    page: &'a mut [u8],
    large: &'a mut Vec<u8>,
) -> io::Result<&'a [u8]> {
    let mut filled = 0;
    while filled < page.len() {
        match file.read(&mut page[filled..]) {
            Ok(0) => return Ok(&page[..filled]),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    large.extend_from_slice(page);
    file.take(LONGEST_FILE).read_to_end(large)?;
    if large.len() as u64 >= LONGEST_FILE {
        return Err(io::Error::other(format!("it has more than {} MiB", LONGEST_FILE >> 20)));
    }
    Ok(large)
}

fn uptime(text: &str) -> Result<Duration, ParseError> {
    let seconds = text.split_ascii_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let valid = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    valid.ok_or_else(|| ParseError {
        line: 1,
        column: 1,
        what: "expected seconds since boot".to_owned(),
    })
}

/// The path to which `target`, a link at `path`, leads; without `.` and `..`.
pub(crate) fn join(path: &str, target: &str) -> String {
    let start =
        if target.starts_with('/') { "" } else { path.rsplit_once('/').map_or("", |(dir, _)| dir) };
    let mut parts: Vec<&str> = start.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_files_are_read_in_the_folder_where_they_are_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::live_in(dir.path().into());
        assert_eq!(
            check(dir.path()).unwrap_err().to_string(),
            format!(
                "NETSILO_HOST={0}: there is no {0}/proc/stat; mount the host's /proc and /sys \
                 there, or unset the variable",
                dir.path().display()
            )
        );
        std::fs::create_dir_all(dir.path().join("sys/class")).unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/stat"), "cpu 1\n").unwrap();
        check(dir.path()).unwrap();
        assert_eq!(root.read("/proc/stat").unwrap(), "cpu 1\n");
        assert!(root.is_live());
    }

    #[test]
    fn a_file_without_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("proc/stat")).unwrap();
        let error = Root::live_in(dir.path().into()).read("/proc/stat").unwrap_err();
        assert_eq!(error.to_string(), "/proc/stat: it has more than 64 MiB");
    }
}
