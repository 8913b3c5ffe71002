//! What the daemon reports to systemd: that it is ready, its status, and that it is alive.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Notifies systemd; does nothing without systemd.
pub(super) fn tell_systemd(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// The notifications that systemd's watchdog expects.
pub(super) struct Heartbeat {
    every: Option<Duration>,
    last: Instant,
}

impl Heartbeat {
    pub(super) fn new() -> Self {
        Self { every: sd_notify::watchdog_enabled().map(|limit| limit / 3), last: Instant::now() }
    }

    /// Returns the maximum wait between two notifications.
    pub(super) fn pulse(&self) -> Duration {
        self.every.unwrap_or(Duration::from_secs(3600))
    }

    pub(super) fn beat(&mut self) {
        if self.every.is_some_and(|every| self.last.elapsed() >= every) {
            self.last = Instant::now();
            tell_systemd(&[NotifyState::Watchdog]);
        }
    }
}
