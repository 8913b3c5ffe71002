//! One direction of a link: frames leave one after the other.

use crate::simulate::events::{LAST, Time};

/// One direction of a link.
#[derive(Debug, Clone, Default)]
pub(crate) struct Link {
    /// When the last frame that was given to it has left.
    free: Time,
    /// Time in use.
    pub(crate) used: Time,
}

impl Link {
    /// Sends frames that take `frame` each; returns when they have left.
    pub(crate) fn send(&mut self, now: Time, frames: u32, frame: Time) -> Time {
        let length = frame.saturating_mul(Time::from(frames)).min(LAST);
        self.free = (self.free.max(now) + length).min(LAST);
        self.used = self.used.saturating_add(length);
        self.free
    }

    /// Time until all frames that were given to it have left.
    pub(crate) fn backlog(&self, now: Time) -> Time {
        self.free.saturating_sub(now)
    }
}
