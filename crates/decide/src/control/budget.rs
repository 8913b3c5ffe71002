//! How many writes were made in the last minute.

use std::collections::VecDeque;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The writes of the last minute: a sliding window, so that no 60 seconds ever hold more than the
/// budget.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget(VecDeque<(Duration, usize)>);

impl Budget {
    /// How many more may be made now.
    pub(super) fn left(&self, now: Duration, most: u32) -> usize {
        let lately = self.0.iter().filter(|(at, _)| *at + MINUTE > now);
        (most as usize).saturating_sub(lately.map(|(_, count)| count).sum())
    }

    /// So many are made now.
    pub(super) fn spend(&mut self, now: Duration, count: usize) {
        while self.0.front().is_some_and(|(at, _)| *at + MINUTE <= now) {
            self.0.pop_front();
        }
        if count > 0 {
            self.0.push_back((now, count));
        }
    }
}
