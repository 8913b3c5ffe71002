//! Why a kernel file could not be read.

use std::io::{self};

use netsilo_model::parse::ParseError;
use rustix::io::Errno;

/// Why a kernel file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel or the tree does not have this file.
    #[error("{path}: no such file")]
    Missing {
        /// Path on the machine that was read.
        path: String,
    },
    /// Only root may read it.
    #[error("{path}: permission denied, run as root")]
    Denied {
        /// Path on the machine that was read.
        path: String,
    },
    /// The kernel answered with another error.
    #[error("{path}: {source}")]
    Io {
        /// Path on the machine that was read.
        path: String,
        /// The error.
        source: io::Error,
    },
    /// The contents are not as expected.
    #[error("{path}: {source}")]
    Parse {
        /// Path on the machine that was read.
        path: String,
        /// The position and the problem.
        source: ParseError,
    },
    /// The data could not be saved.
    #[error("saving {path}: {source}")]
    Save {
        /// Path in the tree that is being written.
        path: String,
        /// The error.
        source: io::Error,
    },
}

impl ReadError {
    pub(crate) fn from_io(path: &str, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Missing { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path },
            _ => Self::Io { path, source },
        }
    }

    /// Whether the kernel has no value: the file does not exist, or this device does not support
    /// it.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Io { source, .. } => {
                let absent =
                    [Errno::INVAL, Errno::OPNOTSUPP, Errno::NODEV, Errno::NXIO, Errno::SRCH];
                source
                    .raw_os_error()
                    .is_some_and(|errno| absent.iter().any(|e| e.raw_os_error() == errno))
            }
            _ => false,
        }
    }
}
