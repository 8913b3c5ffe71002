//! The limit of writes per minute.

use std::collections::VecDeque;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The writes of the last minute. The window slides, so no 60 seconds contain more than the limit.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget(VecDeque<(Duration, usize)>);

impl Budget {
    /// How many more writes are allowed now.
    pub(super) fn left(&self, now: Duration, most: u32) -> usize {
        let lately = self.0.iter().filter(|(at, _)| *at + MINUTE > now);
        (most as usize).saturating_sub(lately.map(|(_, count)| count).sum())
    }

    /// Counts writes that are requested now.
    pub(super) fn spend(&mut self, now: Duration, count: usize) {
        while self.0.front().is_some_and(|(at, _)| *at + MINUTE <= now) {
            self.0.pop_front();
        }
        if count > 0 {
            self.0.push_back((now, count));
        }
    }
}
