//! Lets the daemon wait. The wait ends early on a signal or a relevant kernel event.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netsilo_model::snapshot::event::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use crate::daemon::events::Events;

/// Waits for time to pass, signals and kernel events.
#[derive(Debug)]
pub struct Waiter {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    signals: OwnedFd,
    kernel_events: Option<Events>,
    events: Vec<Event>,
    /// Whether a relevant event has occurred.
    woken: bool,
}

/// Why a wait ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WaitResult {
    /// Requested to stop (SIGTERM, SIGINT).
    pub stop: bool,
    /// Requested to reload its configuration (SIGHUP).
    pub reload: bool,
    /// The events that the kernel announced.
    pub events: Vec<Event>,
}

impl Waiter {
    /// Installs the signal handlers. Listens for kernel events if `kernel_events` is given.
    pub fn new(kernel_events: Option<Events>) -> io::Result<Self> {
        let (signals, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (stop, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for (signal, flag) in [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &reload)] {
            // Register the flag first, so that it is set whenever the pipe is readable.
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self { stop, reload, signals, kernel_events, events: Vec::new(), woken: false })
    }

    /// Waits until the time is over, a signal arrives, or a relevant event occurs.
    ///
    /// Calls `beat` at least once per `pulse`.
    pub fn pass(
        &mut self,
        length: Duration,
        pulse: Duration,
        beat: &mut dyn FnMut(),
        matters: &dyn Fn(&Event) -> bool,
    ) {
        let end = Instant::now() + length;
        loop {
            beat();
            let left = end.saturating_duration_since(Instant::now());
            self.listen(left.min(pulse), matters);
            if left.is_zero() || self.is_woken() {
                return;
            }
        }
    }

    /// Why the last waits ended, with all events since the last call.
    pub fn take(&mut self) -> WaitResult {
        self.woken = false;
        let taken = |flag: &AtomicBool| flag.swap(false, Ordering::SeqCst);
        WaitResult {
            stop: taken(&self.stop),
            reload: taken(&self.reload),
            events: std::mem::take(&mut self.events),
        }
    }

    fn is_woken(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || self.reload.load(Ordering::SeqCst) || self.woken
    }

    /// Waits up to `time` for a signal or events, and takes them.
    fn listen(&mut self, time: Duration, matters: &dyn Fn(&Event) -> bool) {
        let kernel_events = self.kernel_events.iter().flat_map(Events::fds);
        let mut fds: Vec<PollFd<'_>> = [self.signals.as_fd()]
            .into_iter()
            .chain(kernel_events)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // A signal interrupted the wait; the flag of that signal is set.
        let _ = poll(&mut fds, Some(&timeout));
        let mut buffer = [0; 64];
        while rustix::io::read(&self.signals, &mut buffer).is_ok_and(|length| length > 0) {}
        if let Some(kernel_events) = &mut self.kernel_events {
            let events = kernel_events.take();
            self.woken |= events.iter().any(matters);
            self.events.extend(events);
        }
    }
}
