//! Attributes the wakeups of a thread group by receive work to the queues that it reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::snapshot::attribution::{Attribution, Consumption};

/// A reader (tgid) and the CPU that ran the protocol of its data.
type Key = (u32, CpuId);

/// Rates of wakeups per read.
#[derive(Debug, Default)]
pub struct Wakeups {
    /// Whether wakeups were counted; otherwise their absence means nothing.
    pub counted: bool,
    /// Whether it was also counted which of them found the CPU idle.
    pub idle_counted: bool,
    /// Wakeups per second for each read that happened on the CPU where the thread slept.
    where_it_read: BTreeMap<(Key, CpuId), WakeupRate>,
    /// Wakeups per second on a CPU without reads (the scheduler moved the thread), for each read on
    /// any CPU.
    elsewhere: BTreeMap<Key, BTreeMap<CpuId, WakeupRate>>,
}

/// Wakeups of threads that slept on one CPU, or by one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WakeupRate {
    /// All, per second.
    pub per_s: f64,
    /// Those that found the sleeper's CPU idle, per second.
    pub idle_per_s: f64,
}

impl WakeupRate {
    /// Adds others, this many times.
    pub fn add(&mut self, more: Self, times: f64) {
        self.per_s += more.per_s * times;
        self.idle_per_s += more.idle_per_s * times;
    }
}

impl Wakeups {
    /// Divides the wakeups of each reader by each CPU among its reads of data that this CPU
    /// processed; reads on the CPU where it slept come first.
    pub fn from_attribution(attribution: &Attribution) -> Self {
        let (mut there, mut all) = (BTreeMap::new(), BTreeMap::new());
        for row in &attribution.consumption {
            if let Some(key) = key(row) {
                let add = |sum: &mut u64| *sum = sum.saturating_add(row.events);
                add(there.entry((key, row.consumer_cpu)).or_default());
                add(all.entry(key).or_default());
            }
        }
        let seconds = attribution.elapsed.as_secs_f64();
        let counted = seconds > 0.0 && is_counted(attribution);
        let idle_counted = counted && attribution.wakeups.iter().all(|it| it.idle.is_some());
        let mut wakeups = Self { counted, idle_counted, ..Self::default() };
        for wakeup in attribution.wakeups.iter().filter(|_| seconds > 0.0) {
            let key = (wakeup.tgid, wakeup.waker_cpu);
            let rate = WakeupRate {
                per_s: wakeup.count as f64 / seconds,
                idle_per_s: wakeup.idle.unwrap_or(0).min(wakeup.count) as f64 / seconds,
            };
            let some = |reads: Option<&u64>| {
                reads.copied().filter(|reads| *reads > 0).map(|reads| reads as f64)
            };
            if let Some(reads) = some(there.get(&(key, wakeup.sleeper_cpu))) {
                let there = wakeups.where_it_read.entry((key, wakeup.sleeper_cpu)).or_default();
                there.add(rate, reads.recip());
            } else if let Some(reads) = some(all.get(&key)) {
                let sleepers = wakeups.elsewhere.entry(key).or_default();
                sleepers.entry(wakeup.sleeper_cpu).or_default().add(rate, reads.recip());
            }
        }
        wakeups
    }

    /// Wakeups that belong to these reads of one reader, by the CPU where it slept.
    pub fn of_reads(&self, rows: &[&Consumption]) -> BTreeMap<CpuId, WakeupRate> {
        let mut rates: BTreeMap<CpuId, WakeupRate> = BTreeMap::new();
        for row in rows {
            let Some(key) = key(row) else { continue };
            let here = self
                .where_it_read
                .get(&(key, row.consumer_cpu))
                .map(|rate| (&row.consumer_cpu, rate));
            for (cpu, rate) in
                here.into_iter().chain(self.elsewhere.get(&key).into_iter().flatten())
            {
                rates.entry(*cpu).or_default().add(*rate, row.events as f64);
            }
        }
        rates
    }
}

/// Wakeups of a NAPI's kthread by the CPU that woke it. Where it is not known whether they found
/// the kthread's CPU idle, which costs more, all of them did.
pub fn of_kthread(pid: u32, attribution: &Attribution) -> BTreeMap<CpuId, WakeupRate> {
    let seconds = attribution.elapsed.as_secs_f64();
    let mut rates: BTreeMap<CpuId, WakeupRate> = BTreeMap::new();
    for wakeup in attribution.wakeups.iter().filter(|it| it.tgid == pid && seconds > 0.0) {
        let idle = wakeup.idle.unwrap_or(wakeup.count).min(wakeup.count);
        let rate = WakeupRate { per_s: wakeup.count as f64, idle_per_s: idle as f64 };
        rates.entry(wakeup.waker_cpu).or_default().add(rate, seconds.recip());
    }
    rates
}

fn key(row: &Consumption) -> Option<Key> {
    Some((row.consumer.tgid, row.protocol_cpu.or(row.poll_cpu)?))
}

/// Whether wakeups were counted; observations from earlier versions have no such hook.
fn is_counted(attribution: &Attribution) -> bool {
    attribution.counts("wakeups") || !attribution.wakeups.is_empty()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::snapshot::attribution::Wakeup;

    #[test]
    fn wakeups_of_a_kthread_are_those_of_its_pid_by_the_waking_cpu() {
        let wakeup = |tgid, waker, count, idle| Wakeup {
            tgid,
            waker_cpu: CpuId(waker),
            sleeper_cpu: CpuId(1),
            count,
            idle,
        };
        let wakeups =
            vec![wakeup(7, 0, 10, Some(4)), wakeup(7, 2, 6, None), wakeup(8, 0, 100, Some(100))];
        let elapsed = Duration::from_secs(2);
        let attribution = Attribution { wakeups, elapsed, ..Attribution::default() };
        let expected = [
            (CpuId(0), WakeupRate { per_s: 5.0, idle_per_s: 2.0 }),
            (CpuId(2), WakeupRate { per_s: 3.0, idle_per_s: 3.0 }),
        ];
        assert_eq!(of_kthread(7, &attribution), expected.into());
        assert!(of_kthread(9, &attribution).is_empty());
    }
}
