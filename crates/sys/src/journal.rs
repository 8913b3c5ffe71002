//! The journal on disk: appended line by line, synced before the first write, one writer at a time.
//!
//! What its lines mean is in [`crate::transaction`]. Death at any byte leaves a journal that the
//! next netsilo understands.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use netsilo_core::change::Target;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::fold::fold;
use crate::kernel::Kernel;
use crate::knob;
use crate::transaction::{
    BadLine, By, Entry, History, Origin, Record, State, Transaction, VERSION,
};

/// Where the journal is unless told otherwise: a tmpfs, which ends with the boot as the settings
/// do.
pub const STATE_DIR: &str = "/run/netsilo";

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or folder cannot be used.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another netsilo writes now.
    #[error(
        "another netsilo{} is changing settings now (it holds {}); wait until it has ended",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        path.display()
    )]
    Busy {
        /// The other process, if it said.
        pid: Option<u32>,
        /// The lock.
        path: PathBuf,
    },
    /// A line in the middle is damaged.
    #[error(
        "{}: {source}; nothing was changed and nothing is lost: repair the line, or move the file away to go on without \
         undo",
        path.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// The line.
        source: BadLine,
    },
    /// Others may write there.
    #[error("{} can be written by others than its owner, or is another user's: give it mode 0700 or choose another --state-dir", path.display())]
    Insecure {
        /// The folder.
        path: PathBuf,
    },
}

impl JournalError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    /// Whether it is the right to use these files that lacks.
    pub fn is_permission(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
    }
}

/// The journal of this boot, locked: no other netsilo writes while this value lives.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    history: History,
    _lock: Lock,
}

/// A lock in a state folder, while it lives.
#[derive(Debug)]
pub(crate) struct Lock(File);

/// Unlocked by hand: closing is not enough while a child that was just forked, and has not yet
/// become another program, holds the same open file.
impl Drop for Lock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Journal {
    /// Opens the journal for writing, makes one where there is none; another boot's is closed: put
    /// aside, never replayed.
    pub fn open(kernel: &dyn Kernel, dir: &Path) -> Result<Self, JournalError> {
        make_dir(dir)?;
        let path = dir.join("lock");
        let lock = lock(&path)?.map_err(|pid| JournalError::Busy { pid, path })?;
        let boot_id = boot_id(kernel)?;
        let path = dir.join("journal");
        let mut file = open_file(&path)?;
        let mut history = load(&mut file, &path)?;
        if history.boot_id.as_ref().is_some_and(|other| *other != boot_id) {
            put_aside(&path, &history)?;
            file = open_file(&path)?;
            history = History::default();
        }
        // A torn record never happened; what is appended next must not run into it.
        let length = history.whole_bytes as u64;
        file.set_len(length).map_err(JournalError::io("shorten", &path))?;
        let mut journal = Self { path, file, length, history, _lock: lock };
        if journal.history.boot_id.is_none() {
            journal.append(Record::Boot { version: VERSION, boot_id })?;
            journal.sync()?;
        }
        Ok(journal)
    }

    /// Opens the journal if there is one of this boot with something open in it.
    pub fn open_existing(kernel: &dyn Kernel, dir: &Path) -> Result<Option<Self>, JournalError> {
        match look(kernel, dir)? {
            Some(_) => Self::open(kernel, dir).map(Some),
            None => Ok(None),
        }
    }

    /// The transactions, oldest first.
    pub fn transactions(&self) -> &[Transaction] {
        &self.history.transactions
    }

    /// A transaction by its number.
    pub fn transaction(&self, id: u64) -> Option<&Transaction> {
        self.history.transactions.iter().find(|t| t.id == id)
    }

    /// Puts a whole plan with the old values on disk; returns the transaction's number.
    pub fn begin(
        &mut self,
        origin: Origin,
        entries: Vec<Entry>,
        confirm_by: Option<Duration>,
    ) -> Result<u64, JournalError> {
        let transaction = self.history.next_id();
        self.append(Record::Begin {
            transaction,
            pid: std::process::id(),
            origin,
            confirm_by,
            entries,
        })?;
        self.sync()?;
        Ok(transaction)
    }

    /// Records what a knob says after the write.
    ///
    /// Not synced: it outlives this process, which is what counts; what does not outlive the boot
    /// is of no use after it.
    pub fn wrote(&mut self, transaction: u64, entry: usize, raw: &str) -> Result<(), JournalError> {
        self.append(Record::Wrote { transaction, entry, raw: raw.to_owned() })
    }

    /// Records that all writes were made.
    pub fn done(&mut self, transaction: u64) -> Result<(), JournalError> {
        self.append(Record::Done { transaction })?;
        self.sync()
    }

    /// Records that a write failed and restoring begins.
    pub fn failed(&mut self, transaction: u64, why: String) -> Result<(), JournalError> {
        self.append(Record::Failed { transaction, why })
    }

    /// Records that the operator keeps a transaction.
    pub fn confirmed(&mut self, transaction: u64) -> Result<(), JournalError> {
        self.append(Record::Confirmed { transaction })?;
        self.sync()
    }

    /// Records that a transaction is over.
    pub fn undone(&mut self, transaction: u64, by: By) -> Result<(), JournalError> {
        self.append(Record::Undone { transaction, by })?;
        self.sync()
    }

    /// Folds the daemon's transactions into one, so that the journal of a long boot stays short.
    ///
    /// The folded journal takes the place of the old one in one step: death at any byte leaves the
    /// one or the other.
    pub fn fold(&mut self, kernel: &dyn Kernel) -> Result<(), JournalError> {
        // A kthread's pid and start never come back; a netdev or an interrupt may.
        let gone = |target: &Target| {
            matches!(target, Target::NapiThread(_))
                && knob::read(kernel, target).is_err_and(|e| e.is_gone())
        };
        let now = |target: &Target| {
            knob::read(kernel, target).ok().map(|reading| (reading.value, reading.raw))
        };
        let Some(records) = fold(&self.history, &gone, &now) else { return Ok(()) };
        let new = self.path.with_file_name("journal.new");
        let mut bytes = Vec::new();
        let mut history = History::default();
        for record in records {
            serde_json::to_writer(&mut bytes, &record)
                .map_err(|e| JournalError::io("write", &new)(e.into()))?;
            bytes.push(b'\n');
            let misfit = |why| JournalError::Corrupt {
                path: self.path.clone(),
                source: BadLine { line: 0, why },
            };
            history.take(record).map_err(misfit)?;
        }
        let mut file = open_file(&new)?;
        let written =
            file.set_len(0).and_then(|()| file.write_all(&bytes)).and_then(|()| file.sync_all());
        written.map_err(JournalError::io("write", &new))?;
        std::fs::rename(&new, &self.path).map_err(JournalError::io("replace", &self.path))?;
        sync_dir_of(&self.path)?;
        (self.file, self.length, self.history) = (file, bytes.len() as u64, history);
        Ok(())
    }

    /// How many of the transactions are the daemon's.
    pub fn daemons(&self) -> usize {
        self.history.transactions.iter().filter(|t| t.origin == Origin::Daemon).count()
    }

    fn append(&mut self, record: Record) -> Result<(), JournalError> {
        let failed = JournalError::io("append to", &self.path);
        let mut line = match serde_json::to_vec(&record) {
            Ok(line) => line,
            Err(e) => return Err(failed(e.into())),
        };
        line.push(b'\n');
        if let Err(e) = self.file.write_all(&line) {
            // A full disk may have taken half of it: the next record must not run into that half.
            let _ = self.file.set_len(self.length);
            return Err(failed(e));
        }
        self.length += line.len() as u64;
        self.history.take(record).map_err(|why| JournalError::Corrupt {
            path: self.path.clone(),
            source: BadLine { line: 0, why },
        })
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.file.sync_all().map_err(JournalError::io("sync", &self.path))?;
        sync_dir_of(&self.path)
    }
}

/// What the journal of this boot says, without a lock; `None` where there is none.
pub fn look(kernel: &dyn Kernel, dir: &Path) -> Result<Option<History>, JournalError> {
    let path = dir.join("journal");
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(JournalError::io("open", &path)(e)),
    };
    let history = load(&mut file, &path)?;
    let boot_id = boot_id(kernel)?;
    Ok(Some(history).filter(|history| history.boot_id == Some(boot_id)))
}

/// How a transaction stands, without a lock; `None` where the journal does not know it.
pub fn state_of(kernel: &dyn Kernel, dir: &Path, id: u64) -> Result<Option<State>, JournalError> {
    let transactions = look(kernel, dir)?.map(|history| history.transactions).unwrap_or_default();
    Ok(transactions.into_iter().find(|t| t.id == id).map(|t| t.state))
}

fn boot_id(kernel: &dyn Kernel) -> Result<String, JournalError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = kernel.read(path).map_err(JournalError::io("read", Path::new(path)))?;
    Ok(text.trim().to_owned())
}

fn load(file: &mut File, path: &Path) -> Result<History, JournalError> {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(JournalError::io("read", path))?;
    History::replay(&bytes)
        .map_err(|source| JournalError::Corrupt { path: path.to_owned(), source })
}

pub(crate) fn make_dir(dir: &Path) -> Result<(), JournalError> {
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(JournalError::io("make", dir)(e)),
    }
    let metadata = dir.metadata().map_err(JournalError::io("look at", dir))?;
    let owner = rustix::process::geteuid().as_raw();
    if metadata.uid() != owner || metadata.mode() & 0o022 != 0 {
        // Another user's folder: root uses nobody's but its own; the others lack the right to this
        // one.
        return Err(if owner == 0 || metadata.uid() == owner {
            JournalError::Insecure { path: dir.to_owned() }
        } else {
            JournalError::io("use", dir)(io::ErrorKind::PermissionDenied.into())
        });
    }
    Ok(())
}

fn open_file(path: &Path) -> Result<File, JournalError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options.open(path).map_err(JournalError::io("open", path))
}

/// Takes a lock without waiting, and leaves our pid in it for those who find it taken; else says
/// whose it is.
pub(crate) fn lock(path: &Path) -> Result<Result<Lock, Option<u32>>, JournalError> {
    let mut file = open_file(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            return Ok(Err(file
                .read_to_string(&mut text)
                .ok()
                .and_then(|_| text.trim().parse().ok())));
        }
        Err(e) => return Err(JournalError::io("lock", path)(e.into())),
    }
    let pid = format!("{}\n", std::process::id());
    file.set_len(0)
        .and_then(|()| file.write_all(pid.as_bytes()))
        .map_err(JournalError::io("write", path))?;
    Ok(Ok(Lock(file)))
}

/// Closes the journal of another boot: its settings died with that boot.
fn put_aside(path: &Path, history: &History) -> Result<(), JournalError> {
    let boot_id: String = history
        .boot_id
        .iter()
        .flat_map(|id| id.chars())
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    let closed = path.with_file_name(format!("journal.{boot_id}"));
    std::fs::rename(path, closed).map_err(JournalError::io("rename", path))?;
    sync_dir_of(path)
}

fn sync_dir_of(path: &Path) -> Result<(), JournalError> {
    let dir = path.parent().unwrap_or(path);
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(JournalError::io("sync", dir))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::kernel::Live;
    use crate::root::Root;

    /// A state folder and a kernel that was booted as `boot`.
    fn host(boot: &str) -> (tempfile::TempDir, PathBuf, Live) {
        let dir = tempfile::tempdir().unwrap();
        rename_boot(dir.path(), boot);
        let state = dir.path().join("run/netsilo");
        let live = Live::new(Root::at(dir.path()).unwrap());
        (dir, state, live)
    }

    fn rename_boot(root: &Path, boot: &str) {
        let random = root.join("proc/sys/kernel/random");
        std::fs::create_dir_all(&random).unwrap();
        std::fs::write(random.join("boot_id"), format!("{boot}\n")).unwrap();
    }

    #[test]
    fn journal_is_for_its_owner_only() {
        let (_dir, state, kernel) = host("a");
        Journal::open(&kernel, &state).unwrap().begin(Origin::Operator, Vec::new(), None).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&state), mode(&state.join("journal"))), (0o700, 0o600));
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Journal::open(&kernel, &state), Err(JournalError::Insecure { .. })));
    }

    #[test]
    fn the_second_writer_learns_who_the_first_is() {
        let (_dir, state, kernel) = host("a");
        let first = Journal::open(&kernel, &state).unwrap();
        let error = Journal::open(&kernel, &state).unwrap_err().to_string();
        let pid = std::process::id();
        assert!(
            error.starts_with(&format!("another netsilo (pid {pid}) is changing settings now")),
            "{error}"
        );
        drop(first);
        Journal::open(&kernel, &state).unwrap();
    }

    #[test]
    fn the_journal_of_another_boot_is_closed_and_kept() {
        let (dir, state, kernel) = host("a");
        Journal::open(&kernel, &state).unwrap().begin(Origin::Operator, Vec::new(), None).unwrap();
        let before = std::fs::read(state.join("journal")).unwrap();
        rename_boot(dir.path(), "b");
        assert!(Journal::open_existing(&kernel, &state).unwrap().is_none());
        assert!(Journal::open(&kernel, &state).unwrap().transactions().is_empty());
        assert_eq!(std::fs::read(state.join("journal.a")).unwrap(), before);
    }

    #[test]
    fn a_torn_record_is_cut_off_before_the_next_one() {
        let (_dir, state, kernel) = host("a");
        Journal::open(&kernel, &state).unwrap().begin(Origin::Operator, Vec::new(), None).unwrap();
        let path = state.join("journal");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"record\":\"wro"].concat()).unwrap();
        Journal::open(&kernel, &state).unwrap().done(1).unwrap();
        assert_eq!(state_of(&kernel, &state, 1).unwrap(), Some(State::Done));
    }

    #[test]
    fn a_damaged_middle_stops_everything_and_loses_nothing() {
        let (_dir, state, kernel) = host("a");
        Journal::open(&kernel, &state).unwrap().begin(Origin::Operator, Vec::new(), None).unwrap();
        let path = state.join("journal");
        let damaged = [b"\xff\xfe\n".as_slice(), &std::fs::read(&path).unwrap()].concat();
        std::fs::write(&path, &damaged).unwrap();
        let error = Journal::open(&kernel, &state).unwrap_err().to_string();
        assert!(error.contains("line 1 is not a journal record"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), damaged);
    }

    #[test]
    fn a_link_in_place_of_the_journal_is_not_followed() {
        let (dir, state, kernel) = host("a");
        drop(Journal::open(&kernel, &state).unwrap());
        std::fs::remove_file(state.join("journal")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), state.join("journal")).unwrap();
        assert!(Journal::open(&kernel, &state).is_err());
        assert!(!dir.path().join("elsewhere").exists());
    }
}
