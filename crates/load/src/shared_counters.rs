//! Shared memory in which the workers of a load count, each in its own row.
//!
//! Threads and processes share it. It also signals when they must begin and end.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use netsilo_trial::traffic::Totals;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

/// One counter for each field of [`Totals`]. Only one thread writes to a row.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct ThreadCounters {
    pub(super) requests: AtomicU64,
    pub(super) responses: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) resent: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) datagrams_sent: AtomicU64,
    pub(super) datagrams_received: AtomicU64,
    pub(super) zerocopy_sends: AtomicU64,
    pub(super) zerocopy_completed: AtomicU64,
    pub(super) zerocopy_copied: AtomicU64,
}

/// Adds to a counter that has a single writer, so no locked instruction is needed.
pub(super) fn add(counter: &AtomicU64, more: usize) {
    counter.store(counter.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}

impl ThreadCounters {
    fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            requests: read(&self.requests),
            responses: read(&self.responses),
            lost: read(&self.lost),
            resent: read(&self.resent),
            late: read(&self.late),
            sent_bytes: read(&self.sent_bytes),
            received_bytes: read(&self.received_bytes),
            datagrams_sent: read(&self.datagrams_sent),
            datagrams_received: read(&self.datagrams_received),
            zerocopy_sends: read(&self.zerocopy_sends),
            zerocopy_completed: read(&self.zerocopy_completed),
            zerocopy_copied: read(&self.zerocopy_copied),
        }
    }
}

/// The commands to all workers.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Phase {
    /// 1: begin. It is a futex, because thousands of polling threads would leave no time to start
    /// the others.
    go: AtomicU32,
    /// Whether events are counted now.
    pub(super) counting: AtomicBool,
    /// Whether workers must end.
    pub(super) stop: AtomicBool,
}

/// A [`Phase`] followed by rows, in its own memory.
#[derive(Debug)]
pub(super) struct SharedCounters {
    start: *mut c_void,
    rows: usize,
    memory: OwnedFd,
}

// SAFETY: the memory is mapped while this value lives, and everything in it is atomic.
#[allow(unsafe_code)]
unsafe impl Send for SharedCounters {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// Creates counters, all zero.
    pub(super) fn new(rows: usize) -> io::Result<Self> {
        let memory = memfd_create("netsilo-load", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, length(rows) as u64)?;
        Self::map(memory, rows)
    }

    /// Maps the counters of another process, which must have at least `rows` rows.
    pub(super) fn map(memory: OwnedFd, rows: usize) -> io::Result<Self> {
        let length = length(rows);
        if rustix::fs::fstat(&memory)?.st_size.unsigned_abs() < length as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory has fewer rows"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file that is at least this long and is never shortened.
        #[allow(unsafe_code)]
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, memory.as_fd(), 0)?
        };
        Ok(Self { start, rows, memory })
    }

    /// The memory, for another process.
    pub(super) fn memory(&self) -> &OwnedFd {
        &self.memory
    }

    pub(super) fn phase(&self) -> &Phase {
        // SAFETY: the mapping begins with a phase; all-zero bits are a valid phase, and it is only
        // written through atomics.
        #[allow(unsafe_code)]
        unsafe {
            &*self.start.cast::<Phase>()
        }
    }

    pub(super) fn rows(&self) -> &[ThreadCounters] {
        // SAFETY: `rows` rows follow the phase, with its alignment; all-zero bits are valid rows,
        // only written through atomics.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(
                self.start.cast::<Phase>().add(1).cast::<ThreadCounters>(),
                self.rows,
            )
        }
    }

    /// Lets all workers begin. They then check whether to stop.
    pub(super) fn go(&self) {
        let go = &self.phase().go;
        go.store(1, Ordering::Relaxed);
        // fails only for invalid addresses
        let _ = futex::wake(go, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Waits until the workers may begin.
    pub(super) fn wait(&self) {
        let go = &self.phase().go;
        while go.load(Ordering::Relaxed) == 0 {
            // returns early if the value has already changed, or on a signal
            let _ = futex::wait(go, futex::Flags::empty(), 0, None);
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.phase().stop.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.phase().stop.store(true, Ordering::Relaxed);
    }

    /// The sum of all rows.
    pub(super) fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        self.rows().iter().for_each(|row| sum += row.totals());
        sum
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, to which no reference is left.
        #[allow(unsafe_code)]
        let _ = unsafe { munmap(self.start, length(self.rows)) };
    }
}

fn length(rows: usize) -> usize {
    size_of::<Phase>() + rows * size_of::<ThreadCounters>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_at_one_mapping_begins_when_another_mapping_says_go() {
        let counters = SharedCounters::new(1).unwrap();
        let other = SharedCounters::map(counters.memory().try_clone().unwrap(), 1).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.wait());
            counters.go();
            waiting.join().unwrap();
        });
        other.wait();
    }

    #[test]
    fn counts_through_another_mapping_are_visible() {
        let counters = SharedCounters::new(3).unwrap();
        let other = SharedCounters::map(counters.memory().try_clone().unwrap(), 3).unwrap();
        add(&other.rows()[2].responses, 5);
        add(&counters.rows()[0].responses, 2);
        assert_eq!(counters.totals(), Totals { responses: 7, ..Totals::default() });
        counters.stop();
        assert!(other.is_stopped());
        assert!(SharedCounters::map(counters.memory().try_clone().unwrap(), 4).is_err());
    }
}
