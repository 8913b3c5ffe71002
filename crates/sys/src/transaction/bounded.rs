//! Runs a call that may never return in a child process, and waits for it for a limited time.
//!
//! A driver that waits for itself holds rtnl and sleeps uninterruptibly. A thread would not help:
//! the kernel frees a process only when all of its threads have ended, so anyone who waits for
//! netsilo would wait for the driver.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long a driver may take to answer. Firmware that resets its device takes several seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The limit once a call was not answered, because whatever holds rtnl blocks the other calls too.
const LESS_PATIENCE: Duration = Duration::from_secs(2);

/// How long a child may take to end after SIGKILL, unless it sleeps uninterruptibly.
const END: Duration = Duration::from_millis(200);

/// A call that was not answered in time. The kernel may still finish it later.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("no answer within {} s; the kernel may still be working on it", .0.as_secs_f64())]
pub struct NoAnswer(Duration);

impl NoAnswer {
    /// The error of a call that got no answer within this time.
    pub fn within(patience: Duration) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, Self(patience))
    }

    /// Whether an error is this one.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// Limits the time of calls.
#[derive(Debug)]
pub(crate) struct Bounded {
    patience: Duration,
    unanswered: AtomicBool,
}

impl Default for Bounded {
    fn default() -> Self {
        Self { patience: PATIENCE, unanswered: AtomicBool::new(false) }
    }
}

impl Bounded {
    /// Calls `work` in a child process and returns its text, or [`NoAnswer`].
    pub(crate) fn call(&self, work: impl FnOnce() -> io::Result<String>) -> io::Result<String> {
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        let patience = if unanswered { LESS_PATIENCE.min(self.patience) } else { self.patience };
        let result = call_within(patience, work);
        if result.as_ref().is_err_and(NoAnswer::is) {
            self.unanswered.store(true, Ordering::Relaxed);
        }
        result
    }
}

fn call_within(
    patience: Duration,
    work: impl FnOnce() -> io::Result<String>,
) -> io::Result<String> {
    let (answer, question) = pipe_with(PipeFlags::CLOEXEC)?;
    let parent = rustix::process::getpid();
    // SAFETY: the child calls `work`, writes to a pipe and exits. It has one thread. It takes no
    // lock that another thread of the parent may hold: glibc makes its allocator usable after fork,
    // and `work` uses only files, sockets and the allocator.
    #[allow(unsafe_code)]
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(answer);
            answer_and_exit(parent, question, work)
        }
        child => {
            drop(question);
            let child = Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?;
            wait(child, answer, patience)
        }
    }
}

/// Runs in the child. The answer is `0` and the text, `1` and an errno, or `2` and a message.
fn answer_and_exit(parent: Pid, question: OwnedFd, work: impl FnOnce() -> io::Result<String>) -> ! {
    // The child must not write after `netsilo undo`, which may run as soon as the parent is dead.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() == Some(parent) {
        let result = catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(io::Error::other("panicked")));
        let bytes = match result {
            Ok(text) => [b"0", text.as_bytes()].concat(),
            Err(error) => match error.raw_os_error() {
                Some(errno) => format!("1{errno}").into_bytes(),
                None => format!("2{error}").into_bytes(),
            },
        };
        let _ = File::from(question).write_all(&bytes);
    }
    // SAFETY: ends the child without the parent's exit handlers, because the child shares their
    // state.
    #[allow(unsafe_code)]
    unsafe {
        libc::_exit(0)
    }
}

fn wait(child: Pid, answer: OwnedFd, patience: Duration) -> io::Result<String> {
    if !is_readable(&answer, patience)? {
        let _ = kill_process(child, Signal::KILL);
        // The child's end closes the pipe. If it sleeps uninterruptibly, nobody can end it.
        if is_readable(&answer, END)? {
            let _ = waitpid(Some(child), WaitOptions::empty());
        }
        return Err(NoAnswer::within(patience));
    }
    let mut bytes = Vec::new();
    let read = File::from(answer).read_to_end(&mut bytes);
    let _ = waitpid(Some(child), WaitOptions::empty());
    read?;
    let text = String::from_utf8_lossy(bytes.get(1..).unwrap_or_default()).into_owned();
    match bytes.first() {
        Some(b'0') => Ok(text),
        Some(b'1') => Err(text.parse().map_or_else(io::Error::other, io::Error::from_raw_os_error)),
        Some(_) => Err(io::Error::other(text)),
        None => Err(io::Error::other("its child process was killed")),
    }
}

/// Whether there is something to read, or the end was reached, within this time.
fn is_readable(fd: &OwnedFd, within: Duration) -> io::Result<bool> {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn texts_errors_and_panics_come_back_from_the_child() {
        let bounded = Bounded::default();
        assert_eq!(bounded.call(|| Ok("a\nb".into())).unwrap(), "a\nb");
        let error = bounded.call(|| Err(io::Error::from_raw_os_error(libc::EBUSY))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        let error = bounded.call(|| Err(io::Error::other("its word"))).unwrap_err();
        assert_eq!(error.to_string(), "its word");
        let long = "x".repeat(1 << 20);
        assert_eq!(bounded.call(|| Ok(long.clone())).unwrap(), long);
    }

    #[test]
    fn a_call_that_never_returns_is_given_up_and_the_next_ones_sooner() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let bounded =
            Bounded { patience: Duration::from_millis(50), unanswered: AtomicBool::new(false) };
        // Nobody reads it, so opening it for writing waits forever.
        let error = bounded.call(|| std::fs::write(&fifo, "x").map(|()| String::new()));
        let error = error.unwrap_err();
        assert!(NoAnswer::is(&error), "{error}");
        assert!(error.to_string().starts_with("no answer within 0.05 s"), "{error}");
        assert!(bounded.unanswered.load(Ordering::Relaxed));
        assert_eq!(bounded.call(|| Ok("still answers".into())).unwrap(), "still answers");
    }

    #[test]
    fn what_the_child_wrote_is_written() {
        let file = tempfile::tempfile().unwrap();
        Bounded::default().call(|| file.write_all_at(b"new", 0).map(|()| String::new())).unwrap();
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"new");
    }
}
