//! The guard of `apply --confirm-within`, `ab`, `tune` and experiments: a process that restores a
//! transaction unless it is confirmed.
//!
//! The guard must survive everything that a bad placement can break: the terminal, the connection,
//! `apply` itself. So it runs in its own session, watches before the first write, and depends only
//! on the kernel and the journal.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, setsid};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use crate::transaction::journal::{self, Journal, JournalError};
use crate::transaction::kernel::Kernel;
use crate::transaction::record::{RestoredBy, State, Transaction};
use crate::transaction::undo::{self, UndoScope, Undone};

/// The line that the guard prints on its standard output when it is watching.
const READY: &str = "ready";

/// How long an `apply` may keep writing after the deadline before the guard kills it.
///
/// `apply` may be stopped, or blocked by a terminal that accepts no more output.
const PATIENCE: Duration = Duration::from_secs(2);

/// Delay between two attempts to restore.
const RETRY: Duration = Duration::from_millis(200);

/// Maximum number of attempts to restore.
const ATTEMPTS: u32 = 50;

/// Why a guard cannot watch or restore.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused a call that the guard needs.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no transaction with this number that awaits confirmation.
    #[error("the journal has no transaction {0} that awaits confirmation")]
    NothingToGuard(u64),
}

fn cannot<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> GuardError {
    move |source| GuardError::Io { doing, source: source.into() }
}

/// How a guard's watch ended.
#[derive(Debug)]
pub enum GuardResult {
    /// The transaction was confirmed.
    Confirmed,
    /// Another process restored the old values.
    Undone(RestoredBy),
    /// The guard restored the old values, possibly incompletely.
    Restored(Undone),
}

/// Starts a guard (this program with its hidden verb) and returns once it is watching.
pub fn start(command: &mut Command, dir: &Path) -> io::Result<()> {
    let log = dir.join("guard.log");
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = without_inherited(|| command.spawn())?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait()?;
    Err(io::Error::other(format!(
        "it exited with {status}, see {}",
        dir.join("guard.log").display()
    )))
}

/// Runs `spawn` with inherited descriptors marked close-on-exec. A guard would keep them open until
/// its deadline, and who reads an inherited pipe would wait for it.
fn without_inherited<T>(spawn: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut inherited = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number @ 3..) = number
            && set_flags(number, FdFlags::CLOEXEC) == Some(FdFlags::empty())
        {
            inherited.push(number);
        }
    }
    let spawned = spawn();
    for number in inherited {
        set_flags(number, FdFlags::empty());
    }
    spawned
}

/// Sets the flags of a descriptor, if it is open. Returns those before.
#[allow(unsafe_code)]
fn set_flags(number: RawFd, flags: FdFlags) -> Option<FdFlags> {
    // SAFETY: the borrow ends with this function; a descriptor that is closed is an error.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let before = fcntl_getfd(descriptor).ok()?;
    fcntl_setfd(descriptor, flags).ok()?;
    Some(before)
}

/// What makes a guard restore, in addition to the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardScope {
    /// Nothing: the transaction outlives the process that wrote it.
    UntilDeadline,
    /// The end of the process that started the guard.
    WhileParentLives,
}

/// Watches a transaction until it is confirmed, undone or overdue. Restores it when it is overdue.
pub fn watch(
    kernel: &dyn Kernel,
    dir: &Path,
    transaction: u64,
    scope: GuardScope,
    ready: &mut dyn Write,
) -> Result<GuardResult, GuardError> {
    // Fails only for a process group leader, such as a guard started by hand from a terminal.
    let _ = setsid();
    let stop = signals().map_err(cannot("take signals"))?;
    let apply = Apply::parent();
    let changed = inotify::init(inotify::CreateFlags::CLOEXEC).map_err(cannot("watch files"))?;
    inotify::add_watch(&changed, dir.join("journal"), inotify::WatchFlags::MODIFY)
        .map_err(cannot("watch the journal"))?;
    let awaited = find(kernel, dir, transaction)?.and_then(|t| t.awaits_confirmation());
    let due = timer(awaited.ok_or(GuardError::NothingToGuard(transaction))?)
        .map_err(cannot("set a timer"))?;
    writeln!(ready, "{READY}")
        .and_then(|()| ready.flush())
        .map_err(cannot("report that it is watching"))?;
    loop {
        // If the journal cannot be read now, it is read again at the deadline, with the lock held.
        match journal::state_of(kernel, dir, transaction) {
            Ok(Some(State::Confirmed)) => return Ok(GuardResult::Confirmed),
            Ok(Some(State::Undone(by))) => return Ok(GuardResult::Undone(by)),
            _ => {}
        }
        let mut ends = vec![due.as_fd(), stop.as_fd()];
        let writer = apply.as_ref().filter(|_| scope == GuardScope::WhileParentLives);
        ends.extend(writer.map(|apply| apply.pidfd.as_fd()));
        if wait(changed.as_fd(), &ends).map_err(cannot("wait"))? {
            return restore(kernel, dir, transaction, apply.as_ref());
        }
        drain(&changed).map_err(cannot("read events"))?;
    }
}

/// Ignores hang-up and interrupt. On SIGTERM the guard restores at once, because no one would do so
/// later.
fn signals() -> io::Result<OwnedFd> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    signal_hook::low_level::pipe::register(SIGTERM, write)?;
    for deaf in [SIGHUP, SIGINT] {
        signal_hook::flag::register(deaf, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(read)
}

/// A timer that expires at a time since boot.
fn timer(at: Duration) -> rustix::io::Result<OwnedFd> {
    let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    // Zero would disarm the timer; a deadline at boot has already passed.
    let at = at.max(Duration::from_nanos(1));
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let value = Timespec { tv_sec: at.as_secs() as i64, tv_nsec: at.subsec_nanos().into() };
    rustix::time::timerfd_settime(
        &timer,
        TimerfdTimerFlags::ABSTIME,
        &Itimerspec { it_interval: zero, it_value: value },
    )?;
    Ok(timer)
}

/// Waits for a change of the journal, or for one of `ends`, which mean restore. Returns true for
/// those.
fn wait(changed: BorrowedFd<'_>, ends: &[BorrowedFd<'_>]) -> rustix::io::Result<bool> {
    let all = [&[changed], ends].concat();
    let mut fds: Vec<_> =
        all.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return Ok(fds[1..].iter().any(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

fn drain(events: &OwnedFd) -> rustix::io::Result<()> {
    let mut buffer = [0u8; 4096];
    rustix::io::read(events, &mut buffer).map(drop)
}

/// The `apply` that started this guard.
struct Apply {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Apply {
    fn parent() -> Option<Self> {
        let pid = getppid()?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { pid, pidfd })
    }
}

/// Restores what is not confirmed, even if `apply` hangs.
fn restore(
    kernel: &dyn Kernel,
    dir: &Path,
    transaction: u64,
    apply: Option<&Apply>,
) -> Result<GuardResult, GuardError> {
    let patient_until = kernel.now() + PATIENCE;
    let mut attempts = 0;
    loop {
        let last = attempts + 1 == ATTEMPTS;
        match undo::undo(
            kernel,
            dir,
            UndoScope::Unconfirmed(transaction),
            false,
            RestoredBy::Guard,
            &mut |_, _| {},
        ) {
            Ok(mut undone) => match undone.pop() {
                Some(undone) if undone.is_complete() || last => {
                    return Ok(GuardResult::Restored(undone));
                }
                Some(_) => attempts += 1,
                None => {
                    return match journal::state_of(kernel, dir, transaction)? {
                        Some(State::Undone(by)) => Ok(GuardResult::Undone(by)),
                        // the confirmation came just before the deadline or the end of the process
                        Some(State::Confirmed) => Ok(GuardResult::Confirmed),
                        _ => Err(GuardError::NothingToGuard(transaction)),
                    };
                }
            },
            // Wait for another netsilo process, but not for the hung `apply`.
            Err(JournalError::Busy { pid, .. }) => {
                let hangs = apply
                    .filter(|apply| pid == Some(apply.pid.as_raw_nonzero().get().unsigned_abs()));
                if let Some(apply) = hangs.filter(|_| kernel.now() > patient_until) {
                    let _ = pidfd_send_signal(&apply.pidfd, Signal::KILL);
                }
            }
            Err(e) if last => return Err(e.into()),
            Err(_) => attempts += 1,
        }
        kernel.pause(RETRY);
    }
}

/// The result of a confirmation.
#[derive(Debug)]
pub enum ConfirmResult {
    /// The transaction is kept. Its guard exits.
    Kept(u64),
    /// It was confirmed earlier.
    KeptBefore(u64),
    /// The confirmation was too late, or the transaction was already undone: it was restored.
    Restored(u64, RestoredBy),
    /// The confirmation was too late and the guard had not restored the transaction. It was
    /// restored now.
    RestoredNow(Undone),
    /// No transaction awaits a confirmation.
    Nothing,
}

/// Why a transaction was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum ConfirmError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// It was not written completely.
    #[error(
        "transaction {transaction} was not written completely and cannot be kept; run `{undo}`, or \
         wait for its guard"
    )]
    HalfWritten {
        /// The transaction.
        transaction: u64,
        /// The command that restores it.
        undo: String,
    },
}

/// Keeps the newest transaction that awaits confirmation.
///
/// The deadline applies even if the guard was killed.
pub fn confirm(kernel: &dyn Kernel, dir: &Path) -> Result<ConfirmResult, ConfirmError> {
    let Some(mut journal) = Journal::open_existing(kernel, dir)? else {
        return Ok(ConfirmResult::Nothing);
    };
    let Some(newest) = journal.transactions().iter().rev().find(|t| t.confirm_by.is_some()) else {
        return Ok(ConfirmResult::Nothing);
    };
    let (id, deadline) = (newest.id, newest.confirm_by.unwrap_or_default());
    match newest.state {
        State::Confirmed => Ok(ConfirmResult::KeptBefore(id)),
        State::Undone(by) => Ok(ConfirmResult::Restored(id, by)),
        State::Done if kernel.now() < deadline => {
            journal.confirmed(id)?;
            Ok(ConfirmResult::Kept(id))
        }
        _ if kernel.now() < deadline => {
            let undo = journal.command("undo");
            Err(ConfirmError::HalfWritten { transaction: id, undo })
        }
        _ => {
            drop(journal);
            let mut undone = undo::undo(
                kernel,
                dir,
                UndoScope::Unconfirmed(id),
                false,
                RestoredBy::Confirm,
                &mut |_, _| {},
            )?;
            Ok(undone
                .pop()
                .map_or(ConfirmResult::Restored(id, RestoredBy::Guard), ConfirmResult::RestoredNow))
        }
    }
}

fn find(kernel: &dyn Kernel, dir: &Path, id: u64) -> Result<Option<Transaction>, JournalError> {
    let transactions = journal::read_without_lock(kernel, dir)?
        .map(|history| history.transactions)
        .unwrap_or_default();
    Ok(transactions.into_iter().find(|t| t.id == id))
}
