//! Ensures that only one daemon runs: it holds a lock while it runs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::transaction::journal::{self, JournalError};
use crate::transaction::lock::{self, Lock};

/// Exclusive use of a state folder by one daemon.
#[derive(Debug)]
pub struct Instance {
    _lock: Lock,
}

/// Why this process cannot be the daemon.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another daemon is running.
    #[error(
        "netsilo is already running{} (it holds {}): \
         stop it first, or query it with `netsilo status`",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        path.display()
    )]
    Running {
        /// The process id of the running daemon, if the lock file has one.
        pid: Option<u32>,
        /// The lock.
        path: PathBuf,
    },
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] JournalError),
}

impl Instance {
    /// Takes the lock of a state folder and makes the folder readable to others. The journal stays
    /// private.
    pub fn take(dir: &Path) -> Result<Self, InstanceError> {
        journal::make_dir(dir)?;
        let path = dir.join("run.lock");
        let taken = lock::take(&path).map_err(JournalError::from)?;
        let lock = taken.map_err(|pid| InstanceError::Running { pid, path })?;
        let open = std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755));
        open.map_err(JournalError::io("open to readers", dir))?;
        Ok(Self { _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_daemon_reports_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("netsilo");
        let first = Instance::take(&state).unwrap();
        let error = Instance::take(&state).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("netsilo is already running (pid {})", std::process::id())),
            "{error}"
        );
        assert_eq!(state.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        drop(first);
        Instance::take(&state).unwrap();
    }
}
