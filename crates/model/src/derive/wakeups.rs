//! Attributes the wakeups of a thread group by receive work to the queues that it reads.

use std::collections::BTreeMap;

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

/// Wakeups of threads that slept on one CPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct WakeupRate {
    /// All, per second.
    pub per_s: f64,
    /// Those that found the CPU idle, per second.
    pub idle_per_s: f64,
}

impl WakeupRate {
    fn add(&mut self, more: Self, times: f64) {
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

fn key(row: &Consumption) -> Option<Key> {
    Some((row.consumer.tgid, row.protocol_cpu.or(row.poll_cpu)?))
}

/// Whether wakeups were counted; observations from earlier versions have no such hook.
fn is_counted(attribution: &Attribution) -> bool {
    let attached =
        attribution.hooks.iter().any(|hook| hook.quantity == "wakeups" && hook.refused.is_none());
    attached || !attribution.wakeups.is_empty()
}
