//! Whom receive work wakes: the wakeups of a thread group, shared out over the queues that it reads.

use std::collections::BTreeMap;

use crate::attribution::{Attribution, Consumption};
use crate::cpuset::CpuId;

/// Wakeups per read.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    /// Whether they were counted: if not, there being none says nothing.
    pub(crate) counted: bool,
    /// Wakeups per second for each read that was counted, by the CPU that slept; by reader and the CPU that ran the protocol.
    per_read: BTreeMap<(u32, CpuId), BTreeMap<CpuId, f64>>,
}

impl Wakeups {
    /// Shares the wakeups of each reader by each CPU out over its reads of what that CPU processed.
    pub(crate) fn of(attribution: &Attribution) -> Self {
        let mut reads: BTreeMap<(u32, CpuId), u64> = BTreeMap::new();
        for row in &attribution.consumption {
            if let Some(key) = key(row) {
                let sum = reads.entry(key).or_default();
                *sum = sum.saturating_add(row.events);
            }
        }
        let seconds = attribution.elapsed.as_secs_f64();
        let mut per_read: BTreeMap<_, BTreeMap<CpuId, f64>> = BTreeMap::new();
        for wakeup in attribution.wakeups.iter().filter(|_| seconds > 0.0) {
            let key = (wakeup.tgid, wakeup.waker_cpu);
            if let Some(reads) = reads.get(&key).filter(|reads| **reads > 0) {
                let rate = wakeup.count as f64 / seconds / *reads as f64;
                *per_read.entry(key).or_default().entry(wakeup.sleeper_cpu).or_default() += rate;
            }
        }
        Self { counted: seconds > 0.0 && is_counted(attribution), per_read }
    }

    /// Wakeups per second that these reads of one reader take, by the CPU that slept.
    pub(crate) fn of_reads(&self, rows: &[&Consumption]) -> BTreeMap<CpuId, f64> {
        let mut rates = BTreeMap::new();
        for row in rows {
            for (cpu, rate) in key(row).and_then(|key| self.per_read.get(&key)).into_iter().flatten() {
                *rates.entry(*cpu).or_default() += rate * row.events as f64;
            }
        }
        rates
    }
}

fn key(row: &Consumption) -> Option<(u32, CpuId)> {
    Some((row.consumer.tgid, row.protocol_cpu.or(row.poll_cpu)?))
}

/// An observation of before wakeups were counted has no such hook.
fn is_counted(attribution: &Attribution) -> bool {
    let attached = attribution.hooks.iter().any(|hook| hook.question == "wakeups" && hook.refused.is_none());
    attached || !attribution.wakeups.is_empty()
}
