//! What the workload is like, as far as it does not follow from where we put things: did it change,
//! or is it noise?

use std::collections::BTreeMap;

use netsilo_model::derive::rates::Rates;
use netsilo_model::derive::silo::Silos;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};

/// Packets per second by more than this factor more or less.
const PACKETS: f64 = 1.3;

/// So much of a queue's data is read on other CPUs.
const READ_ELSEWHERE: f64 = 0.2;

/// A CPU spends so much more or less of its time in user space.
const USER_TIME: f64 = 0.15;

/// What one window shows of the workload.
#[derive(Debug, Clone, Default)]
pub(super) struct Pattern {
    online: CpuSet,
    user: BTreeMap<CpuId, f64>,
    queues: BTreeMap<String, Queue>,
}

#[derive(Debug, Clone, Default)]
struct Queue {
    packets: f64,
    /// Share of the data by CPU.
    read_on: BTreeMap<CpuId, f64>,
}

impl Pattern {
    pub(super) fn of(online: &CpuSet, rates: &Rates, silos: &Silos) -> Self {
        let user = |(cpu, rates): (&CpuId, &netsilo_model::derive::rates::CpuRates)| {
            Some((*cpu, rates.shares?.usr + rates.shares?.nice))
        };
        let queues = silos.queues.iter().filter(|silo| silo.has_traffic()).map(|silo| {
            let mut read_on = silo.read_on();
            let all: f64 = read_on.values().sum();
            read_on.values_mut().for_each(|bytes| *bytes /= all);
            (silo.label(), Queue { packets: silo.packets_per_s.unwrap_or_default(), read_on })
        });
        Self {
            online: online.clone(),
            user: rates.cpus.iter().filter_map(user).collect(),
            queues: queues.collect(),
        }
    }

    /// Whether it is another workload than that one.
    pub(super) fn differs(&self, other: &Self) -> bool {
        let user = |(cpu, share): (&CpuId, &f64)| {
            other.user.get(cpu).is_none_or(|before| (share - before).abs() > USER_TIME)
        };
        let queue = |(label, queue): (&String, &Queue)| {
            other.queues.get(label).is_none_or(|before| queue.differs(before))
        };
        self.online != other.online
            || self.queues.len() != other.queues.len()
            || self.user.iter().any(user)
            || self.queues.iter().any(queue)
    }

    /// The queues whose data is read elsewhere than by that one.
    pub(super) fn read_elsewhere<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = &'a String> {
        let moved = |label: &&String| {
            other.queues.get(*label).is_some_and(|before| self.queues[*label].moved(before))
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
