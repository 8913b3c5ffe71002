//! Where windows come from: this machine, or a bundle.

use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use netsilo_model::cost::weights::Costs;
use netsilo_sys::bpf::tracer::Options;

use crate::args::look::LiveArgs;
use crate::tell::status::Status;
use crate::top::update::Event;
use crate::top::window::Window;
use crate::verbs::status;

/// The interval between two windows, which the user may change at any time.
#[derive(Debug)]
pub(super) struct Interval {
    length: Mutex<Duration>,
    changed: Condvar,
}

impl Interval {
    /// Starts with this interval.
    pub(super) fn new(length: Duration) -> Self {
        Self { length: Mutex::new(length), changed: Condvar::new() }
    }

    /// Changes it; the window that is being observed ends at once.
    pub(super) fn set(&self, length: Duration) {
        *self.lock() = length;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Duration> {
        self.length.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Duration {
        *self.lock()
    }

    /// Waits for this time, or until the interval is changed.
    fn wait(&self, time: Duration) {
        let (start, first) = (Instant::now(), self.get());
        let mut length = self.lock();
        while let Some(left) = time.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            if *length != first {
                return;
            }
            length = self
                .changed
                .wait_timeout(length, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(length, _)| length);
        }
    }
}

/// Observes this machine and sends windows until nobody receives them.
pub(super) fn live(
    args: &LiveArgs,
    interval: &Interval,
    costs: &Costs,
    state_dir: &Path,
    send: &Sender<Event>,
) -> Result<()> {
    let options = Options::for_findings();
    args.each_of(
        options,
        || interval.get(),
        |time| interval.wait(time),
        |observation| {
            let window = Window::new(observation, costs, daemon(state_dir));
            Ok(((), send.send(Event::Window(Arc::new(window))).is_ok()))
        },
    )
}

/// The daemon's status, or why there is none.
fn daemon(state_dir: &Path) -> Result<Status, String> {
    status::read(state_dir).map_err(|error| format!("{error:#}"))
}
