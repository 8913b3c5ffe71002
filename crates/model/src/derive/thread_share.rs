//! [`ThreadShare`]: how much of the time a kernel thread ran, and how much it waited.

use serde::{Deserialize, Serialize};

use crate::snapshot::thread_time::ThreadTime;

/// What a thread did between two snapshots, as shares of that time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadShare {
    /// It ran.
    pub ran: f64,
    /// It could run, and waited for a CPU: all that it processes waited too.
    pub waited: f64,
}

impl ThreadShare {
    /// Waiting explains a loss or a delay if it takes this share of the time. Less is noise of
    /// scheduling.
    pub const WAITS: f64 = 0.2;

    /// A thread that runs or waits for this share of the time has no time to read more. The load
    /// may have lasted for a part of the window.
    pub const ALWAYS_READS: f64 = 0.7;

    /// It ran or waited.
    pub fn busy(self) -> f64 {
        self.ran + self.waited
    }

    /// The share between two readings, `seconds` apart; `None` if they are not of one thread.
    pub fn between(old: ThreadTime, new: ThreadTime, seconds: f64) -> Option<Self> {
        if seconds <= 0.0 {
            return None;
        }
        let share =
            |old: u64, new: u64| Some((new.checked_sub(old)? as f64 / 1e9 / seconds).min(1.0));
        Some(Self { ran: share(old.run_ns, new.run_ns)?, waited: share(old.wait_ns, new.wait_ns)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_between_and_never_more_than_all_of_it() {
        let time = |run_ns, wait_ns| ThreadTime { run_ns, wait_ns, runs: 1 };
        let between = |new, seconds| ThreadShare::between(time(1_000_000_000, 7), new, seconds);
        assert_eq!(
            between(time(1_500_000_000, 250_000_007), 2.0),
            Some(ThreadShare { ran: 0.25, waited: 0.125 })
        );
        assert_eq!(between(time(9_000_000_000, 7), 2.0).unwrap().ran, 1.0);
        assert_eq!(between(time(2_000_000_000, 7), 0.0), None);
        assert_eq!(between(time(999_999_999, 7), 2.0), None, "another thread with this pid");
    }
}
