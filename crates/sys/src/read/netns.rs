//! Enters another network namespace, for what a thread sees there at once: `/proc/sys/net`,
//! `/proc/thread-self/net`, sockets and ioctls.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use netsilo_model::parse::schedstat::link_inode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::files::error::ReadError;
use crate::files::root::Root;

/// What identifies a network namespace until the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetnsId {
    /// `SO_NETNS_COOKIE`, which no other namespace of this boot has.
    pub cookie: u64,
    /// Its inode number, which a later namespace may get.
    pub inode: u32,
}

impl NetnsId {
    /// The network namespace of this thread; `None` before 5.14.
    pub fn own(root: &Root) -> Option<Self> {
        let link = root.unrecorded().link("/proc/thread-self/ns/net").ok()?;
        Some(Self { cookie: cookie()?, inode: link_inode(&link, "net")? })
    }
}

/// Why a network namespace was not entered.
#[derive(Debug, thiserror::Error)]
pub enum NotEntered {
    /// It has ended, or only an open descriptor or a thread holds it.
    #[error("no process and no file holds its network namespace any more")]
    Gone,
    /// The kernel refused.
    #[error("{0}")]
    Why(String),
}

impl From<ReadError> for NotEntered {
    fn from(error: ReadError) -> Self {
        Self::Why(error.to_string())
    }
}

/// Moves this thread into a network namespace, without a `/sys` that shows it.
pub(crate) fn enter(inode: u32, files: &[PathBuf]) -> Result<(), NotEntered> {
    let mut unread = NotEntered::Gone;
    for path in files {
        match enter_by(inode, path) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(Errno::PERM | Errno::ACCESS) => {
                let why = "EPERM: to enter it needs CAP_SYS_ADMIN and CAP_SYS_PTRACE: run as root";
                unread = NotEntered::Why(why.into());
            }
            // the process has ended, or the file is no namespace any more
            Err(Errno::NOENT | Errno::SRCH | Errno::INVAL) => {}
            Err(errno) => unread = NotEntered::Why(io::Error::from(errno).to_string()),
        }
    }
    Err(unread)
}

/// Enters the namespace of a file; `false` if it is another one by now.
fn enter_by(inode: u32, path: &Path) -> Result<bool, Errno> {
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let file = File::open(path).map_err(errno)?;
    if file.metadata().map_err(errno)?.ino() != u64::from(inode) {
        return Ok(false);
    }
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(true)
}

/// The cookie of the network namespace that this thread is in; `None` before 5.14.
pub(crate) fn cookie() -> Option<u64> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: `cookie` has the `length` bytes that the kernel writes, and both outlive the call.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(cookie)
}
