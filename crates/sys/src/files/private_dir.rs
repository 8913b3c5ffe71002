//! Temporary folders that only their owner can read, and that are removed on a signal.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

/// The folders that exist now. This is global because a signal is for the whole process.
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static WATCH: Once = Once::new();

/// A temporary folder with mode 0700. It is removed when dropped, and before SIGHUP, SIGINT or
/// SIGTERM ends the process. In builds that abort on panic, it is also removed before a panic ends
/// the process.
///
/// A program that handles these signals itself must install its handlers before it makes a folder.
#[derive(Debug)]
pub struct PrivateDir(TempDir);

impl PrivateDir {
    /// Makes a folder whose name starts with `prefix`.
    pub fn new(prefix: &str) -> io::Result<Self> {
        let mut started = Ok(());
        WATCH.call_once(|| started = watch());
        started?;
        // Locked, so that no signal arrives between the creation of the folder and its entry here.
        let mut folders = folders();
        let private = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix(prefix).permissions(private).tempdir()?;
        folders.insert(dir.path().to_owned());
        Ok(Self(dir))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.path());
        folders().remove(self.0.path());
    }
}

/// Prevents a signal from removing folders meanwhile. Hold it while making a folder with those
/// above it: otherwise the folder could reappear between its removal and the end of the process.
pub(crate) fn hold() -> impl Drop {
    folders()
}

fn folders() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all folders before a signal ends the process, unless something else handles the signal,
/// and before a panic aborts it.
fn watch() -> io::Result<()> {
    if cfg!(panic = "abort") {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            // The thread that panics may hold the lock.
            if let Ok(folders) = FOLDERS.try_lock() {
                remove(&folders);
            }
        }));
    }
    let handled = handled_signals()?;
    let mine =
        [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| handled >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(mine)?;
    let end = move || {
        for signal in &mut signals {
            // Held to the end, so that no folder is made after these are removed.
            let folders = folders();
            remove(&folders);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(end)?;
    Ok(())
}

fn remove(folders: &BTreeSet<PathBuf>) {
    for folder in folders {
        // Another thread may still write to the folder.
        while std::fs::remove_dir_all(folder)
            .is_err_and(|error| error.kind() == io::ErrorKind::DirectoryNotEmpty)
        {}
    }
}

/// The signals that this process ignores or handles, as a mask: bit 0 is signal 1.
fn handled_signals() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = |name| {
        let text = status.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(text.unwrap_or_default().trim(), 16).unwrap_or(0)
    };
    Ok(mask("SigIgn:") | mask("SigCgt:"))
}
