//! The journal on disk: append-only lines, synced before the first write. Only one process writes
//! at a time.
//!
//! The meaning of its lines is in [`crate::transaction::record`]. If netsilo dies at any byte, the
//! next netsilo can still read the journal.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use netsilo_model::change::{Target, shell_word};
use netsilo_model::machine::schema::{Stamp, UnknownSchema};
use rustix::io::Errno;

use crate::files::regular;
use crate::files::trust::{self, PathError};
use crate::read::netns::NetnsId;
use crate::transaction::attached::Attached;
use crate::transaction::compact::{self, UNDONE_KEPT};
use crate::transaction::kernel::Kernel;
use crate::transaction::knob;
use crate::transaction::lock::{self, Lock};
use crate::transaction::record::{
    BadLine, Entry, History, Origin, Record, Request, RestoredBy, State, Transaction, VERSION,
};

/// A command line of netsilo that works on the journal in this folder.
pub fn command(dir: &Path, verb: &str) -> String {
    if dir == Path::new(STATE_DIR) {
        return format!("netsilo {verb}");
    }
    format!("netsilo {verb} --state-dir {}", shell_word(&dir.to_string_lossy()))
}

/// When the daemon has this many transactions, they are compacted into one.
const COMPACT_AT: usize = 16;

/// Default folder of the journal. It is on a tmpfs, which is lost at reboot, and so are the
/// settings.
pub const STATE_DIR: &str = "/run/netsilo";

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or folder could not be used.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another netsilo is writing.
    #[error(
        "another netsilo{} is changing settings now (it holds {}); wait until it exits",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        path.display()
    )]
    Busy {
        /// The id of the other process, if the lock file has it.
        pid: Option<u32>,
        /// The lock.
        path: PathBuf,
    },
    /// Settings were restored, but the journal cannot say so.
    #[error(
        "transaction {transaction} was undone, but this cannot be recorded: {why}; then run \
         `{undo}` again"
    )]
    Unrecorded {
        /// The transaction.
        transaction: u64,
        /// Why it cannot be recorded.
        why: Box<JournalError>,
        /// The command that tries again.
        undo: String,
    },
    /// A line before the last is damaged.
    #[error(
        "{}: {source}; nothing was changed and nothing is lost: repair the line, use the newer \
         netsilo that wrote it, or move the file away to continue without undo",
        path.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// The line.
        source: BadLine,
    },
    /// A newer netsilo wrote it.
    #[error("{} has {source}; nothing was changed", path.display())]
    Schema {
        /// The journal.
        path: PathBuf,
        /// Its format, and what reads it.
        source: UnknownSchema,
    },
    /// Other users can change the folder, or something on the way to it.
    #[error(
        "{} can be written by others than root and this user, or is another user's: \
         remove these permissions or choose another --state-dir",
        path.display()
    )]
    Insecure {
        /// The folder.
        path: PathBuf,
    },
}

impl From<PathError> for JournalError {
    fn from(error: PathError) -> Self {
        match error {
            PathError::Insecure(path) => Self::Insecure { path },
            PathError::Io { doing, path, source } => Self::Io { doing, path, source },
        }
    }
}

impl JournalError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    /// Whether the error is a lack of permission.
    pub fn is_permission(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
    }
}

/// The journal of this boot, locked: no other netsilo process writes while this value lives.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    history: History,
    netns: Option<NetnsId>,
    _lock: Lock,
}

impl Journal {
    /// Opens the journal for writing, or creates it. A journal of another boot is renamed, not
    /// replayed.
    pub fn open(kernel: &dyn Kernel, dir: &Path) -> Result<Self, JournalError> {
        make_dir(dir)?;
        let path = dir.join("lock");
        let lock = lock::wait(kernel, &path)?.map_err(|pid| JournalError::Busy { pid, path })?;
        let boot_id = boot_id(kernel)?;
        let path = dir.join("journal");
        let mut file = open_file(&path)?;
        let mut history = load(&mut file, &path)?;
        if history.boot_id.as_ref().is_some_and(|other| *other != boot_id) {
            put_aside(&path, &history)?;
            file = open_file(&path)?;
            history = History::default();
        }
        // Cut off an incomplete record, so that the next record does not follow its remains.
        let length = history.whole_bytes as u64;
        file.set_len(length).map_err(JournalError::io("shorten", &path))?;
        let mut journal = Self { path, file, length, history, netns: kernel.netns(), _lock: lock };
        if journal.history.boot_id.is_none() {
            journal.append(Record::boot(boot_id))?;
            journal.sync()?;
        }
        Ok(journal)
    }

    /// Opens the journal if it belongs to this boot and has an open transaction.
    pub fn open_existing(kernel: &dyn Kernel, dir: &Path) -> Result<Option<Self>, JournalError> {
        match read_without_lock(kernel, dir)? {
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

    /// Writes a whole plan with the old values to disk and syncs. Returns the transaction's number.
    pub fn begin(
        &mut self,
        origin: Origin,
        entries: Vec<Entry>,
        attached: Vec<Attached>,
        confirm_by: Option<Duration>,
    ) -> Result<u64, JournalError> {
        let transaction = self.history.next_id();
        self.append(Record::Begin {
            transaction,
            pid: std::process::id(),
            origin,
            request: Some(request()),
            netns: self.netns,
            confirm_by,
            entries,
            attached,
        })?;
        self.sync()?;
        Ok(transaction)
    }

    /// Records the value read back after a write.
    ///
    /// Not synced: the record must only survive this process, because it is useless after a reboot.
    pub fn wrote(&mut self, transaction: u64, entry: usize, raw: &str) -> Result<(), JournalError> {
        self.append(Record::Wrote { transaction, entry, raw: raw.to_owned() })
    }

    /// Records which attached settings differ after the writes.
    pub fn attached_after(
        &mut self,
        transaction: u64,
        attached: Vec<Attached>,
    ) -> Result<(), JournalError> {
        self.append(Record::AttachedAfter { transaction, attached })
    }

    /// Records, before anything is restored, which attached settings keep another program's value.
    pub fn keeps(&mut self, transaction: u64, attached: Vec<Attached>) -> Result<(), JournalError> {
        self.append(Record::Keeps { transaction, attached })
    }

    /// Records that all writes are complete.
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

    /// Records that a transaction is undone, save for some values that are given up.
    pub fn undone(
        &mut self,
        transaction: u64,
        by: RestoredBy,
        given_up: usize,
    ) -> Result<(), JournalError> {
        self.append(Record::Undone { transaction, by, given_up })?;
        self.sync()
    }

    /// Compacts the daemon's transactions into one and leaves out old ones that are undone, to keep
    /// the journal short.
    ///
    /// The compacted journal replaces the old one atomically. After a crash, one of the two is in
    /// place.
    pub fn compact(&mut self, kernel: &dyn Kernel) -> Result<(), JournalError> {
        // A kthread's pid and start time are never reused; the name of a netdev or the number of an
        // interrupt may be.
        let read = |entry: &Entry| knob::read_now(kernel, &entry.target, entry.kthread.as_ref());
        let gone = |entry: &Entry| {
            matches!(entry.target, Target::NapiThread(_)) && read(entry).is_err_and(|e| e.is_gone())
        };
        let now = |entry: &Entry| read(entry).ok().map(|reading| (reading.value, reading.raw));
        let Some(records) = compact::compact(&self.history, self.netns, &gone, &now) else {
            return Ok(());
        };
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
            history.add_record(record).map_err(misfit)?;
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

    /// A command line of netsilo that works on this journal.
    pub fn command(&self, verb: &str) -> String {
        command(self.path.parent().unwrap_or(&self.path), verb)
    }

    /// Whether compacting would shorten the journal much.
    pub fn is_long(&self) -> bool {
        let count = |is: fn(&&Transaction) -> bool| self.transactions().iter().filter(is).count();
        count(|it| it.origin == Origin::Daemon) >= COMPACT_AT
            || count(|it| !it.is_open()) >= 2 * UNDONE_KEPT
    }

    fn append(&mut self, record: Record) -> Result<(), JournalError> {
        let failed = JournalError::io("append to", &self.path);
        let mut line = match serde_json::to_vec(&record) {
            Ok(line) => line,
            Err(e) => return Err(failed(e.into())),
        };
        line.push(b'\n');
        if let Err(e) = self.file.write_all(&line) {
            // If the disk is full, half of the record may be stored: cut it off before the next
            // record.
            let _ = self.file.set_len(self.length);
            return Err(failed(e));
        }
        self.length += line.len() as u64;
        self.history.add_record(record).map_err(|why| JournalError::Corrupt {
            path: self.path.clone(),
            source: BadLine { line: 0, why },
        })
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.file.sync_all().map_err(JournalError::io("sync", &self.path))?;
        sync_dir_of(&self.path)
    }
}

/// Reads the journal of this boot without a lock. Returns `None` if there is none and no other user
/// can have removed it.
pub fn read_without_lock(kernel: &dyn Kernel, dir: &Path) -> Result<Option<History>, JournalError> {
    trust::check(dir)?;
    let path = dir.join("journal");
    let mut file = match regular::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(JournalError::io("open", &path)(e)),
    };
    let history = load(&mut file, &path)?;
    let boot_id = boot_id(kernel)?;
    Ok(Some(history).filter(|history| history.boot_id == Some(boot_id)))
}

/// The state of a transaction, read without a lock. `None` if the journal does not have it.
pub fn state_of(kernel: &dyn Kernel, dir: &Path, id: u64) -> Result<Option<State>, JournalError> {
    let transactions =
        read_without_lock(kernel, dir)?.map(|history| history.transactions).unwrap_or_default();
    Ok(transactions.into_iter().find(|t| t.id == id).map(|t| t.state))
}

/// The request of this process, now.
fn request() -> Request {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let mut rest = words.iter();
    let mut verb = rest.next().cloned().unwrap_or_default();
    while verb.starts_with('-') {
        // the only option before a verb that has a value
        let value = if verb == "--netns" { 1 } else { 0 };
        verb = rest.nth(value).cloned().unwrap_or_default();
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Request { verb, at: since.unwrap_or_default().as_secs(), words }
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
    // Its other records may have any form.
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let Ok(stamp) = serde_json::from_slice::<Stamp>(first) {
        let refused = |source| JournalError::Schema { path: path.to_owned(), source };
        stamp.check(VERSION).map_err(refused)?;
    }
    History::replay(&bytes)
        .map_err(|source| JournalError::Corrupt { path: path.to_owned(), source })
}

/// Makes the state folder, or checks that it belongs to this user.
pub(crate) fn make_dir(dir: &Path) -> Result<(), JournalError> {
    let made = trust::make_dir(dir, 0o700)?;
    if made.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    // the folder belongs to root, or to a user outside of this namespace
    Err(JournalError::io("use", dir)(io::ErrorKind::PermissionDenied.into()))
}

fn open_file(path: &Path) -> Result<File, JournalError> {
    regular::open_private(path).map_err(JournalError::io("open", path))
}

/// Longest boot id in the name of a journal: a kernel's has 36 characters.
const LONGEST_BOOT_ID: usize = 64;

/// Renames the journal of another boot, whose settings were lost at the reboot.
fn put_aside(path: &Path, history: &History) -> Result<(), JournalError> {
    let boot_id: String = history
        .boot_id
        .iter()
        .flat_map(|id| id.chars())
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(LONGEST_BOOT_ID)
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
    use crate::files::root::Root;
    use crate::transaction::kernel::Live;

    /// A state folder and a kernel with the boot id `boot`.
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
    fn the_journal_is_private_to_its_owner() {
        let (_dir, state, kernel) = host("a");
        Journal::open(&kernel, &state)
            .unwrap()
            .begin(Origin::Operator, Vec::new(), Vec::new(), None)
            .unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&state), mode(&state.join("journal"))), (0o700, 0o600));
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Journal::open(&kernel, &state), Err(JournalError::Insecure { .. })));
    }

    #[test]
    fn who_can_write_to_a_folder_above_could_replace_the_journal() {
        let (dir, state, kernel) = host("a");
        std::fs::create_dir_all(&state).unwrap();
        let mode = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(dir.path().join("run"), mode).unwrap();
        };
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755)).unwrap();
        mode(0o777);
        let error = Journal::open(&kernel, &state).unwrap_err();
        assert!(error.to_string().contains("run can be written by others"), "{error}");
        // somebody moved it away: "nothing to undo" would be wrong
        std::fs::rename(&state, dir.path().join("moved")).unwrap();
        let error = Journal::open_existing(&kernel, &state).unwrap_err();
        assert!(error.to_string().contains("run can be written by others"), "{error}");
        std::fs::rename(dir.path().join("moved"), &state).unwrap();
        mode(0o1777);
        Journal::open(&kernel, &state).unwrap();
        assert_eq!(state.metadata().unwrap().mode() & 0o777, 0o755, "an existing mode is kept");
    }

    #[test]
    fn a_newer_format_is_refused_with_the_version_that_reads_it() {
        let (_dir, state, kernel) = host("a");
        drop(Journal::open(&kernel, &state).unwrap());
        let newer = br#"{"record":"boot","version":9,"netsilo":"0.4.0","boot":{},"x":1}
{"y":2}
"#;
        std::fs::write(state.join("journal"), newer).unwrap();
        let error = Journal::open(&kernel, &state).unwrap_err().to_string();
        assert!(error.contains("journal has schema 9, written by netsilo 0.4.0; this"), "{error}");
        assert!(error.ends_with("use netsilo 0.4.0 or newer; nothing was changed"), "{error}");
        assert_eq!(std::fs::read(state.join("journal")).unwrap(), newer);
    }

    #[test]
    fn the_second_writer_reports_the_pid_of_the_first() {
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
    fn a_lock_that_is_held_for_a_moment_is_waited_for() {
        let (_dir, state, kernel) = host("a");
        let first = Journal::open(&kernel, &state).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(first);
            });
            Journal::open(&kernel, &state).unwrap();
        });
    }

    #[test]
    fn the_journal_of_another_boot_is_renamed_and_kept() {
        let (dir, state, kernel) = host("a");
        Journal::open(&kernel, &state)
            .unwrap()
            .begin(Origin::Operator, Vec::new(), Vec::new(), None)
            .unwrap();
        let before = std::fs::read(state.join("journal")).unwrap();
        rename_boot(dir.path(), "b");
        assert!(Journal::open_existing(&kernel, &state).unwrap().is_none());
        assert!(Journal::open(&kernel, &state).unwrap().transactions().is_empty());
        assert_eq!(std::fs::read(state.join("journal.a")).unwrap(), before);
        // One of a tree in which somebody else wrote.
        rename_boot(dir.path(), &"c".repeat(300));
        Journal::open(&kernel, &state).unwrap();
        rename_boot(dir.path(), "d");
        Journal::open(&kernel, &state).unwrap();
        let closed = state.join(format!("journal.{}", "c".repeat(LONGEST_BOOT_ID)));
        assert!(closed.exists());
    }

    #[test]
    fn a_torn_record_is_cut_off_before_the_next_one() {
        let (_dir, state, kernel) = host("a");
        Journal::open(&kernel, &state)
            .unwrap()
            .begin(Origin::Operator, Vec::new(), Vec::new(), None)
            .unwrap();
        let path = state.join("journal");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"record\":\"wro"].concat()).unwrap();
        Journal::open(&kernel, &state).unwrap().done(1).unwrap();
        assert_eq!(state_of(&kernel, &state, 1).unwrap(), Some(State::Done));
    }

    #[test]
    fn a_damaged_line_before_the_last_is_an_error_and_changes_nothing() {
        let (_dir, state, kernel) = host("a");
        Journal::open(&kernel, &state)
            .unwrap()
            .begin(Origin::Operator, Vec::new(), Vec::new(), None)
            .unwrap();
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
