//! What each CPU's time was used for, by slices of the simulated time.

use serde::Serialize;

use crate::prediction::CpuTime;
use crate::simulate::events::{SECOND, Time};

/// How each CPU spends its time while the simulation runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timeline {
    /// Length of a slice (ms).
    pub slice_ms: f64,
    /// For each CPU, its time in each slice.
    pub cpus: Vec<Vec<CpuTime>>,
}

/// What a CPU's time is used for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Use {
    Idle,
    /// Interrupts and softirqs; whether the kernel books them without `IRQ_TIME_ACCOUNTING`.
    Softirq {
        booked: bool,
    },
    /// A thread, this share of it in user mode.
    Task {
        usr: f64,
    },
}

/// Time of each kind in one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Spent {
    pub(crate) idle: Time,
    pub(crate) usr: Time,
    pub(crate) sys: Time,
    pub(crate) booked: Time,
    pub(crate) hidden: Time,
}

impl Spent {
    #[cfg(test)]
    pub(crate) fn all(&self) -> Time {
        self.idle + self.usr + self.sys + self.booked + self.hidden
    }

    fn add(&mut self, length: Time, what: Use) {
        match what {
            Use::Idle => self.idle += length,
            Use::Softirq { booked: true } => self.booked += length,
            Use::Softirq { booked: false } => self.hidden += length,
            Use::Task { usr } => {
                let usr = (length as f64 * usr) as Time;
                self.usr += usr;
                self.sys += length - usr;
            }
        }
    }

    /// Shares of `length`.
    fn shares(&self, length: Time) -> CpuTime {
        let share = |time: Time| time as f64 / length as f64;
        CpuTime {
            usr: share(self.usr),
            sys: share(self.sys),
            softirq: share(self.booked + self.hidden),
            booked_softirq: share(self.booked),
        }
    }
}

/// Collects the timeline from `from` on; what happens before is warm-up.
#[derive(Debug)]
pub(crate) struct Collector {
    from: Time,
    slice: Time,
    /// For each CPU, its slices.
    pub(crate) spent: Vec<Vec<Spent>>,
    /// Transactions or packets that were completed in each slice.
    completed: Vec<u64>,
}

impl Collector {
    pub(crate) fn new(from: Time, slice: Time, slices: usize, cpus: usize) -> Self {
        let spent = vec![vec![Spent::default(); slices]; cpus];
        Self { from, slice, spent, completed: vec![0; slices] }
    }

    /// Adds the use of a CPU's time.
    pub(crate) fn add(&mut self, cpu: usize, from: Time, to: Time, what: Use) {
        let slices = &mut self.spent[cpu];
        let mut from = from.max(self.from) - self.from;
        let to = to.saturating_sub(self.from).min(self.slice * slices.len() as Time);
        while from < to {
            let index = from / self.slice;
            let end = to.min((index + 1) * self.slice);
            slices[index as usize].add(end - from, what);
            from = end;
        }
    }

    /// Counts a transaction or packet as completed.
    pub(crate) fn complete(&mut self, now: Time) {
        if let Some(past) = now.checked_sub(self.from)
            && let Some(count) = self.completed.get_mut((past / self.slice) as usize)
        {
            *count += 1;
        }
    }

    /// Completed per second, and the standard error of it, by the means of `BATCHES` parts.
    pub(crate) fn rate(&self) -> (f64, f64) {
        let batch = self.completed.len().div_ceil(BATCHES);
        let rates: Vec<f64> = (self.completed.chunks(batch))
            .map(|batch| {
                let seconds = self.slice as f64 * batch.len() as f64 / SECOND;
                batch.iter().sum::<u64>() as f64 / seconds
            })
            .collect();
        let count = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / count;
        let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
        (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
    }

    /// Each CPU's time over all slices.
    pub(crate) fn totals(&self) -> Vec<CpuTime> {
        let add = |a: Spent, b: &Spent| Spent {
            idle: a.idle + b.idle,
            usr: a.usr + b.usr,
            sys: a.sys + b.sys,
            booked: a.booked + b.booked,
            hidden: a.hidden + b.hidden,
        };
        let total = |slices: &Vec<Spent>| {
            let length = self.slice * slices.len() as Time;
            slices.iter().fold(Spent::default(), add).shares(length)
        };
        self.spent.iter().map(total).collect()
    }

    pub(crate) fn timeline(&self) -> Timeline {
        let cpu = |slices: &Vec<Spent>| slices.iter().map(|it| it.shares(self.slice)).collect();
        Timeline {
            slice_ms: self.slice as f64 / SECOND * 1e3,
            cpus: self.spent.iter().map(cpu).collect(),
        }
    }
}

/// Parts of the simulated time whose means show how much the rate varies.
const BATCHES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_split_between_slices_and_warm_up_is_left_out() {
        let mut collector = Collector::new(100, 10, 3, 1);
        collector.add(0, 90, 105, Use::Idle);
        collector.add(0, 105, 125, Use::Task { usr: 0.5 });
        collector.add(0, 125, 140, Use::Softirq { booked: false });
        let [first, second, third] = collector.spent[0][..] else { unreachable!() };
        assert_eq!(first, Spent { idle: 5, usr: 2, sys: 3, ..Spent::default() });
        assert_eq!(second, Spent { usr: 5, sys: 5, ..Spent::default() });
        assert_eq!(third, Spent { usr: 2, sys: 3, hidden: 5, ..Spent::default() });
    }
}
