//! Reads values some of which may be missing. A value that cannot be read is recorded as a gap with
//! the reason.
//!
//! Reading continues after a gap.

use std::cell::RefCell;

use netsilo_model::parse::ParseError;
use netsilo_model::snapshot::host::Gap;

use crate::files::error::ReadError;
use crate::files::root::Root;

/// A root, with the gaps found while reading it.
pub(crate) struct Notes<'a> {
    pub(crate) root: &'a Root,
    gaps: RefCell<Vec<Gap>>,
    /// An error of the disk to which the tree is saved. This is not a gap of the machine.
    unsaved: RefCell<Option<ReadError>>,
}

impl<'a> Notes<'a> {
    pub(crate) fn new(root: &'a Root) -> Self {
        Self { root, gaps: RefCell::default(), unsaved: RefCell::default() }
    }

    /// The value. `None` if the kernel has none (not a gap) or if it could not be read (a gap).
    pub(crate) fn get<T>(
        &self,
        path: &str,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Option<T> {
        self.note(self.root.parse(path, parse))
    }

    /// The value. Any failure except absence is a gap.
    pub(crate) fn note<T>(&self, result: Result<T, ReadError>) -> Option<T> {
        self.note_unless(result, ReadError::is_absent)
    }

    /// The value. Any failure is a gap, including absence.
    pub(crate) fn wanted<T>(&self, result: Result<T, ReadError>) -> Option<T> {
        self.note_unless(result, |_| false)
    }

    pub(crate) fn gap(&self, what: impl Into<String>, why: impl Into<String>) {
        self.gaps.borrow_mut().push(Gap { what: what.into(), why: why.into() });
    }

    /// The gaps. Fails if the tree could not be saved.
    pub(crate) fn finish(self) -> Result<Vec<Gap>, ReadError> {
        match self.unsaved.into_inner() {
            Some(error) => Err(error),
            None => Ok(self.gaps.into_inner()),
        }
    }

    fn note_unless<T>(
        &self,
        result: Result<T, ReadError>,
        expected: impl Fn(&ReadError) -> bool,
    ) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) if expected(&error) => return None,
            Err(error) => error,
        };
        match error {
            ReadError::Save { .. } => {
                self.unsaved.borrow_mut().get_or_insert(error);
            }
            ReadError::Missing { path } => self.gap(path, "ENOENT: no such file"),
            ReadError::Denied { path } => self.gap(path, "EACCES: permission denied, run as root"),
            ReadError::Io { path, source } => self.gap(path, errno_and_text(&source)),
            ReadError::Parse { path, source } => self.gap(path, source.to_string()),
        }
        None
    }
}

fn errno_and_text(error: &std::io::Error) -> String {
    let name = match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::IO) => "EIO",
        Some(rustix::io::Errno::BUSY) => "EBUSY",
        Some(rustix::io::Errno::INVAL) => "EINVAL",
        Some(rustix::io::Errno::NODEV) => "ENODEV",
        Some(rustix::io::Errno::OPNOTSUPP) => "EOPNOTSUPP",
        Some(rustix::io::Errno::SRCH) => "ESRCH",
        _ => return error.to_string(),
    };
    format!("{name}: {error}")
}
