//! The locks of a state folder: one writer of the journal, one daemon.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::files::regular;
use crate::files::trust::PathError;
use crate::transaction::kernel::Kernel;

/// How often a writer tries to take the lock before it reports who holds it.
const ATTEMPTS: u32 = 50;

/// Time between two attempts.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// A held lock.
#[derive(Debug)]
pub(crate) struct Lock(File);

/// Unlocks explicitly, because a child that was just forked and has not called exec yet shares the
/// open file.
impl Drop for Lock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// The lock, or the id of the process that holds it, if the file has one.
pub(crate) type Taken = Result<Lock, Option<u32>>;

/// Takes a lock, and waits for it up to a second: a guard that ends and the daemon hold it for
/// moments, an `apply` until it has verified its writes.
pub(super) fn wait(kernel: &dyn Kernel, path: &Path) -> Result<Taken, PathError> {
    let mut taken = take(path)?;
    for _ in 1..ATTEMPTS {
        if taken.is_ok() {
            break;
        }
        kernel.pause(BETWEEN_ATTEMPTS);
        taken = take(path)?;
    }
    Ok(taken)
}

/// Takes a lock without waiting and writes our pid into it.
pub(crate) fn take(path: &Path) -> Result<Taken, PathError> {
    let mut file = regular::open_private(path).map_err(PathError::io("open", path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let read = file.read_to_string(&mut text).ok();
            return Ok(Err(read.and_then(|_| text.trim().parse().ok())));
        }
        Err(error) => return Err(PathError::io("lock", path)(error.into())),
    }
    let pid = format!("{}\n", std::process::id());
    file.set_len(0)
        .and_then(|()| file.write_all(pid.as_bytes()))
        .map_err(PathError::io("write", path))?;
    Ok(Ok(Lock(file)))
}
