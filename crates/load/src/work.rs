//! CPU time spent per request or per read of a stream, like a busy service.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long the measuring loop runs.
const MEASURED: Duration = Duration::from_millis(20);

/// Iterations between two clock reads while measuring.
const TURNS: u64 = 10_000;

/// Knows how many loop iterations take one microsecond on this CPU.
///
/// No clock is read while working, so all the time is user time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    turns: u64,
}

impl Work {
    /// Measures how long an iteration takes, unless `usecs` is 0.
    pub(super) fn new(usecs: u64) -> Self {
        if usecs == 0 {
            return Self { turns: 0 };
        }
        let (started, mut done) = (cpu_time(), 0_u64);
        let taken = loop {
            burn(TURNS);
            done += TURNS;
            let taken = cpu_time().saturating_sub(started);
            if taken >= MEASURED {
                break taken;
            }
        };
        Self { turns: (done as f64 * usecs as f64 / taken.as_secs_f64() / 1e6).ceil() as u64 }
    }

    /// Uses this much CPU time.
    pub(super) fn burn(self) {
        burn(self.turns);
    }
}

fn burn(turns: u64) {
    // Each iteration depends on the previous one, so that no CPU can overlap them.
    let mut value = 1_u64;
    for turn in 0..turns {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn));
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_work_takes_no_iteration_and_more_work_takes_more() {
        assert_eq!(Work::new(0).turns, 0);
        let (one, many) = (Work::new(10).turns, Work::new(1000).turns);
        assert!(one > 0 && many > one, "{one} {many}");
    }
}
