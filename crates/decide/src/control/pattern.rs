//! Whether the workload stays the same from window to window, apart from noise.
//!
//! Compares only what does not follow from where the controller puts the knobs.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::derive::rates::{CpuRates, Rates};
use netsilo_model::derive::silo::Silos;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::subject::Subject;

/// Differs if packets per second differ by more than this factor.
const PACKETS: f64 = 1.3;

/// Differs if this share of a queue's data is read on other CPUs.
const READ_ELSEWHERE: f64 = 0.2;

/// Differs if the share of user time of a CPU differs by this much.
const USER_TIME: f64 = 0.15;

/// Readers move all the time if they moved more often than this within a calm.
const UNREST: usize = 6;

/// The workload of one window.
#[derive(Debug, Clone, Default)]
pub(super) struct Pattern {
    online: CpuSet,
    user: BTreeMap<CpuId, f64>,
    queues: BTreeMap<Subject, Queue>,
}

#[derive(Debug, Clone, Default)]
struct Queue {
    packets: f64,
    /// Share of the data by the CPU of its reader.
    read_on: BTreeMap<CpuId, f64>,
}

/// What the workload does, as far as one knob is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// It differs from the previous window.
    Changed,
    /// It changed in the window before.
    JustChanged,
    /// It is the same as before.
    Same,
    /// The readers of this queue move all the time.
    Unrest,
}

/// The workload since its last change.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkloadHistory {
    /// `None`: the next window counts as a change.
    pattern: Option<Pattern>,
    /// Windows since the change.
    windows_since: u32,
    /// When the readers of each queue moved, by silo. Moves longer ago than a calm are forgotten.
    readers_moved: BTreeMap<Subject, Vec<Duration>>,
}

impl WorkloadHistory {
    /// Takes the pattern of a window.
    pub(super) fn observe(&mut self, now: Duration, pattern: &Pattern, calm: Duration) {
        let changed = self.pattern.as_ref().is_none_or(|before| pattern.differs(before));
        self.windows_since = if changed { 0 } else { self.windows_since.saturating_add(1) };
        if changed {
            for silo in self.pattern.iter().flat_map(|before| pattern.read_elsewhere(before)) {
                self.readers_moved.entry(silo.clone()).or_default().push(now);
            }
            self.pattern = Some(pattern.clone());
        }
        self.readers_moved.retain(|_, times| {
            times.retain(|at| at.saturating_add(calm) > now);
            !times.is_empty()
        });
    }

    /// Counts the next window as a change.
    pub(super) fn restart(&mut self) {
        self.pattern = None;
    }

    /// Counts this window as a change.
    pub(super) fn note_change(&mut self) {
        self.windows_since = 0;
    }

    /// What the workload does for the knobs of a silo.
    pub(super) fn seen_from(&self, silo: Option<&Subject>) -> Workload {
        let moved = silo.and_then(|silo| self.readers_moved.get(silo));
        match self.windows_since {
            _ if moved.is_some_and(|times| times.len() > UNREST) => Workload::Unrest,
            0 => Workload::Changed,
            1 => Workload::JustChanged,
            _ => Workload::Same,
        }
    }
}

impl Pattern {
    pub(super) fn new(online: &CpuSet, rates: &Rates, silos: &Silos) -> Self {
        let user = |(cpu, rates): (&CpuId, &CpuRates)| {
            Some((*cpu, rates.shares?.usr + rates.shares?.nice))
        };
        let queues = silos.queues.iter().filter(|silo| silo.has_traffic()).map(|silo| {
            let mut read_on = silo.read_on();
            let all: f64 = read_on.values().sum();
            read_on.values_mut().for_each(|bytes| *bytes /= all);
            (silo.subject(), Queue { packets: silo.packets_per_s.unwrap_or_default(), read_on })
        });
        Self {
            online: online.clone(),
            user: rates.cpus.iter().filter_map(user).collect(),
            queues: queues.collect(),
        }
    }

    /// Whether the two are different workloads.
    pub(super) fn differs(&self, other: &Self) -> bool {
        let user = |(cpu, share): (&CpuId, &f64)| {
            other.user.get(cpu).is_none_or(|before| (share - before).abs() > USER_TIME)
        };
        let queue = |(silo, queue): (&Subject, &Queue)| {
            other.queues.get(silo).is_none_or(|before| queue.differs(before))
        };
        self.online != other.online
            || self.queues.len() != other.queues.len()
            || self.user.iter().any(user)
            || self.queues.iter().any(queue)
    }

    /// The queues whose readers are elsewhere than in the other pattern.
    fn read_elsewhere<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Subject> {
        let moved = |silo: &&Subject| {
            other.queues.get(*silo).is_some_and(|before| self.queues[*silo].moved(before))
        };
        self.queues.keys().filter(moved)
    }
}

impl Queue {
    fn differs(&self, before: &Self) -> bool {
        let (less, more) = (self.packets.min(before.packets), self.packets.max(before.packets));
        self.moved(before) || more > less * PACKETS
    }

    fn moved(&self, before: &Self) -> bool {
        let share = |of: &Self, cpu: &CpuId| of.read_on.get(cpu).copied().unwrap_or(0.0);
        let left: f64 =
            before.read_on.iter().map(|(cpu, then)| (then - share(self, cpu)).max(0.0)).sum();
        let came: f64 =
            self.read_on.iter().map(|(cpu, now)| (now - share(before, cpu)).max(0.0)).sum();
        left.max(came) > READ_ELSEWHERE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(online: u32, user: f64, packets: &[f64]) -> Pattern {
        let queue = |(number, packets): (usize, &f64)| {
            let subject = Subject::Queue("eth0".into(), number as u32);
            (subject, Queue { packets: *packets, read_on: BTreeMap::from([(CpuId(1), 1.0)]) })
        };
        Pattern {
            online: (0..online).map(CpuId).collect(),
            user: BTreeMap::from([(CpuId(1), user)]),
            queues: packets.iter().enumerate().map(queue).collect(),
        }
    }

    #[test]
    fn each_of_cpus_user_time_and_queues_makes_another_workload() {
        let before = pattern(4, 0.3, &[1000.0, 500.0]);
        for noise in [pattern(4, 0.4, &[1000.0, 500.0]), pattern(4, 0.3, &[1200.0, 450.0])] {
            assert!(!noise.differs(&before), "{noise:?}");
        }
        for other in [
            pattern(3, 0.3, &[1000.0, 500.0]),
            pattern(4, 0.5, &[1000.0, 500.0]),
            pattern(4, 0.3, &[1000.0]),
            pattern(4, 0.3, &[1000.0, 800.0]),
        ] {
            assert!(other.differs(&before), "{other:?}");
        }
    }
}
