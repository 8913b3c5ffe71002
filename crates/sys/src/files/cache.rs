//! Keeps files open that are read repeatedly, because opening costs 5 to 10 times as much as a
//! read.
//!
//! A cached file belongs to the object for which it was opened. When that object goes away, reading
//! fails, even if another object now has the same path (`ENODEV` from sysfs, `EIO` from
//! `/proc/irq`, `ESRCH` from `/proc/<pid>`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use netsilo_model::parse::ParseError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::files::error::ReadError;
use crate::files::root::{Root, utf8_text};

/// Larger than any file that holds one value (`seq_file` and sysfs start with a page).
const PAGE: usize = 4096;
/// `/proc/stat` and `/proc/softirqs` at 8192 CPUs are below 2 MB.
const LARGEST: usize = 1 << 24;
/// Number of descriptors that remain for everything else the process opens.
const SPARE: u64 = 512;

/// A file that is read repeatedly.
#[derive(Debug)]
pub(crate) struct CachedFile {
    path: String,
    /// `None` if the descriptor limit was reached: then the file is opened for each read.
    file: Option<File>,
}

/// The number of descriptors that cached files may still use, and their read buffer.
#[derive(Debug)]
pub(crate) struct FdCache {
    left: u64,
    buffer: Vec<u8>,
}

impl FdCache {
    /// Allows `wanted` files, or as many as the hard limit of open files permits.
    ///
    /// Raises the soft limit (1024 for a service).
    pub(crate) fn for_files(wanted: usize) -> Self {
        let limit = getrlimit(Resource::Nofile);
        let wanted = wanted as u64 + SPARE;
        let most = limit.maximum.unwrap_or(u64::MAX).min(wanted);
        let mut has = limit.current.unwrap_or(u64::MAX);
        if has < most
            && setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum })
                .is_ok()
        {
            has = most;
        }
        Self { left: has.saturating_sub(SPARE), buffer: vec![0; PAGE] }
    }

    /// Opens a file, which must exist.
    pub(crate) fn open(&mut self, root: &Root, path: String) -> Result<CachedFile, ReadError> {
        let mut file = root.open_for_cache(&path)?;
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => file = None,
        }
        Ok(CachedFile { path, file })
    }

    /// The same as [`FdCache::open`], but `None` if the file does not exist.
    pub(crate) fn open_if_present(&mut self, root: &Root, path: String) -> Option<CachedFile> {
        self.open(root, path).ok()
    }

    /// Reads a file that holds one value. The first read returns all of it.
    pub(crate) fn value<T>(
        &mut self,
        root: &Root,
        file: &CachedFile,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        self.parse(root, file, parse, true)
    }

    /// Reads a file of many lines.
    pub(crate) fn table<T>(
        &mut self,
        root: &Root,
        file: &CachedFile,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        self.parse(root, file, parse, false)
    }

    fn parse<T>(
        &mut self,
        root: &Root,
        file: &CachedFile,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
        at_once: bool,
    ) -> Result<T, ReadError> {
        let Some(open) = &file.file else { return root.parse(&file.path, parse) };
        let length = self.fill(open, at_once).map_err(|e| ReadError::from_io(&file.path, e))?;
        parse(&utf8_text(&self.buffer[..length]))
            .map_err(|source| ReadError::Parse { path: file.path.clone(), source })
    }

    fn fill(&mut self, file: &File, at_once: bool) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                if filled >= LARGEST {
                    return Err(io::Error::other(format!("larger than {LARGEST} bytes")));
                }
                self.buffer.resize(filled * 2, 0);
            }
            let room = self.buffer.len() - filled;
            match file.read_at(&mut self.buffer[filled..], filled as u64) {
                Ok(0) => return Ok(filled),
                Ok(read) if at_once && read < room => return Ok(filled + read),
                Ok(read) => filled += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Result<String, ParseError> {
        Ok(text.to_owned())
    }

    #[test]
    fn each_read_returns_the_current_contents() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path()).unwrap();
        let put = |text: &str| std::fs::write(dir.path().join("value"), text).unwrap();
        put("1\n");
        for left in [1, 0] {
            let mut cache = FdCache { left, buffer: vec![0; PAGE] };
            let file = cache.open(&root, "/value".into()).unwrap();
            for now in [
                "1\n".to_owned(),
                "22\n".to_owned(),
                "x".repeat(3 * PAGE),
                String::new(),
                "x".repeat(PAGE),
            ] {
                put(&now);
                assert_eq!(cache.value(&root, &file, text).unwrap(), now);
                assert_eq!(cache.table(&root, &file, text).unwrap(), now);
            }
        }
    }

    #[test]
    fn the_lines_of_a_file_are_complete() {
        let mut cache = FdCache::for_files(1);
        let file = cache.open(&Root::live(), "/proc/stat".into()).unwrap();
        let cpus = |text: &str| Ok(text.lines().filter(|line| line.starts_with("cpu")).count());
        let all = Root::live().parse("/proc/stat", cpus).unwrap();
        assert_eq!((cache.table(&Root::live(), &file, cpus).unwrap(), all > 1), (all, true));
    }

    #[test]
    fn a_removed_object_is_not_confused_with_its_successor() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut cache = FdCache::for_files(1);
        let file = cache.open(&Root::live(), format!("/proc/{}/status", child.id())).unwrap();
        assert!(cache.value(&Root::live(), &file, text).is_ok());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(cache.value(&Root::live(), &file, text).unwrap_err().is_absent());
    }
}
