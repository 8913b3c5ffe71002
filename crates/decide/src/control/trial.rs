//! Trials: whether a batch of writes made it better or worse.
//!
//! Compared are the cost of a received megabyte (of forwarded packets, where these are more), the
//! wakeups across CPUs for it, and the locality, in the windows before the batch and after it, on
//! the same CPUs: those between which something moved and those that read it. The interval is
//! Student's, with a common variance, as there may be only two windows before; of the logarithm for
//! costs and wakeups, so that it is one of a ratio.
//!
//! CPU time is noisy, counts are not. So a batch is also better if it needs fewer wakeups across
//! CPUs, and worse if data that was read under one last-level cache no longer is, or if it needs
//! more wakeups, unless its CPU time is less.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::decision::{BeforeAfter, Effect, TrialResult};
use super::policy::Policy;
use super::view::{self, Window};
use crate::place::AlgorithmName;
use netsilo_model::change::{Change, Target};
use netsilo_model::derive::rates::CpuRates;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::NapiId;
use netsilo_stats as stats;

/// The probability of both tails of the interval together.
const DOUBT: f64 = 0.01;

/// The least standard deviation of a measure, relative (costs) or absolute (locality): clock ticks
/// are no finer.
const LEAST_DEVIATION: f64 = 0.01;

/// Loads that differ by more than this factor are not compared.
const SAME_LOAD: f64 = 2.0;

/// Locality that falls by more than this is lost; a placement that promises it is taken back.
const LOST_LOCALITY: f64 = 0.10;

/// Wakeups across CPUs that change by less than this factor prove nothing.
const WAKEUPS: f64 = 1.25;

/// An interval of costs wider than this factor says nothing.
const TELLS_NOTHING: f64 = 16.0;

/// Readers that read this share of the data on other CPUs than before have moved.
const READERS_MOVED: f64 = 0.2;

/// The least number of windows on either side.
const LEAST_WINDOWS: usize = 2;

/// One window's costs, each list in order. Vectors, as a dozen samples are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    ended: Duration,
    /// CPU-nanoseconds per second that were not idle, with interrupt time as measured if it was.
    cpus: Vec<(CpuId, f64)>,
    /// Bytes per second that were read.
    read: Vec<(DataPath, f64)>,
    /// Packets and bytes that were forwarded.
    forwarded: Vec<(DataPath, Forwards)>,
    /// Wakeups per second of a thread that slept on another CPU: waker, sleeper, rate.
    wakeups: Vec<(CpuId, CpuId, f64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Forwards {
    packets: f64,
    bytes: f64,
}

/// The kind of work by whose unit a trial counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkKind {
    Read,
    Forwarded,
}

/// Where data was processed and read; the consumer of forwarded packets is the CPU that sends them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct DataPath {
    napi: Option<NapiId>,
    protocol: Option<CpuId>,
    consumer: CpuId,
    same_llc: bool,
}

impl DataPath {
    fn touches(&self, cpus: &CpuSet) -> bool {
        cpus.contains(self.consumer) || self.protocol.is_some_and(|cpu| cpus.contains(cpu))
    }
}

impl WorkKind {
    /// The larger part of the work of these CPUs, by bytes.
    fn larger<'a>(samples: impl Iterator<Item = &'a Arc<Sample>> + Clone, cpus: &CpuSet) -> Self {
        let read: f64 = samples.clone().map(|sample| sample.done(Self::Read, cpus).0).sum();
        let forwarded: f64 = samples.map(|sample| sample.bytes_forwarded(cpus)).sum();
        if forwarded > read { Self::Forwarded } else { Self::Read }
    }

    /// Bytes or packets of one unit: a megabyte, a thousand packets.
    fn unit(self) -> f64 {
        match self {
            Self::Read => 1e6,
            Self::Forwarded => 1e3,
        }
    }

    fn unit_costs(self) -> &'static str {
        match self {
            Self::Read => "a received megabyte costs",
            Self::Forwarded => "a thousand forwarded packets cost",
        }
    }

    fn units_per_s(self) -> &'static str {
        match self {
            Self::Read => "MB/s",
            Self::Forwarded => "thousand packets/s",
        }
    }
}

impl Sample {
    fn new(window: &Window<'_>) -> Self {
        let attribution = &window.analysis.observation.attribution;
        let seconds = attribution.elapsed.as_secs_f64();
        let interrupted = |cpu: &CpuId| {
            let time = attribution.cpu_time.get(cpu).filter(|_| seconds > 0.0)?;
            Some(time.interrupted_ns() as f64 / seconds)
        };
        let cost = |(cpu, rates): (&CpuId, &CpuRates)| {
            let shares = rates.shares?;
            let ticks = (shares.irq + shares.softirq) * 1e9;
            Some((
                *cpu,
                (shares.usr + shares.nice + shares.sys) * 1e9 + interrupted(cpu).unwrap_or(ticks),
            ))
        };
        let topology = &window.after().topology;
        let row = |napi, protocol: Option<CpuId>, consumer| {
            let llc =
                |cpu| topology.cpus.get(&cpu).is_some_and(|known| known.llc.contains(consumer));
            let same_llc = protocol.is_some_and(|cpu| cpu == consumer || llc(cpu));
            DataPath { napi, protocol, consumer, same_llc }
        };
        let mut read: BTreeMap<DataPath, f64> = BTreeMap::new();
        for it in attribution.consumption.iter().filter(|_| seconds > 0.0) {
            let key = row(it.napi, it.protocol_cpu.or(it.poll_cpu), it.consumer_cpu);
            *read.entry(key).or_default() += it.bytes as f64 / seconds;
        }
        let mut forwarded: BTreeMap<DataPath, Forwards> = BTreeMap::new();
        for it in attribution.forwarded.iter().filter(|_| seconds > 0.0) {
            let sum = forwarded.entry(row(it.napi, Some(it.poll_cpu), it.xmit_cpu)).or_default();
            sum.packets += it.packets as f64 / seconds;
            sum.bytes += it.bytes as f64 / seconds;
        }
        let (read, forwarded) = (read.into_iter().collect(), forwarded.into_iter().collect());
        let cpus = window.analysis.rates.cpus.iter().filter_map(cost).collect();
        let remote = attribution.wakeups.iter().filter(|it| it.waker_cpu != it.sleeper_cpu);
        let wakeups = remote
            .filter(|_| seconds > 0.0)
            .map(|it| (it.waker_cpu, it.sleeper_cpu, it.count as f64 / seconds))
            .collect();
        Self { ended: window.now, cpus, read, forwarded, wakeups }
    }

    /// Wakeups per second between CPUs of which one is among these.
    fn remote_wakeups(&self, cpus: &CpuSet) -> f64 {
        let here = |(waker, sleeper, _): &&(CpuId, CpuId, f64)| {
            cpus.contains(*waker) || cpus.contains(*sleeper)
        };
        self.wakeups.iter().filter(here).map(|(.., rate)| rate).sum()
    }

    /// The CPUs where data of these NAPIs is processed, read or sent on.
    fn cpus_of(&self, napis: &BTreeSet<NapiId>) -> CpuSet {
        let rows =
            self.read.iter().map(|(row, _)| row).chain(self.forwarded.iter().map(|(row, _)| row));
        let rows = rows.filter(|row| row.napi.is_some_and(|napi| napis.contains(&napi)));
        rows.flat_map(|row| row.protocol.into_iter().chain([row.consumer])).collect()
    }

    /// Bytes read or packets forwarded per second by these CPUs, and the part of them that stayed
    /// under one last-level cache.
    fn done(&self, work: WorkKind, cpus: &CpuSet) -> (f64, f64) {
        let sum = |near: bool| -> f64 {
            let counts = |row: &DataPath| row.touches(cpus) && (row.same_llc || !near);
            match work {
                WorkKind::Read => {
                    self.read.iter().filter(|(row, _)| counts(row)).map(|(_, bytes)| bytes).sum()
                }
                WorkKind::Forwarded => self
                    .forwarded
                    .iter()
                    .filter(|(row, _)| counts(row))
                    .map(|(_, sum)| sum.packets)
                    .sum(),
            }
        };
        (sum(false), sum(true))
    }

    fn bytes_forwarded(&self, cpus: &CpuSet) -> f64 {
        self.forwarded.iter().filter(|(row, _)| row.touches(cpus)).map(|(_, sum)| sum.bytes).sum()
    }

    fn cost(&self, cpus: &CpuSet) -> f64 {
        self.cpus.iter().filter(|(cpu, _)| cpus.contains(*cpu)).map(|(_, cost)| cost).sum()
    }
}

/// A batch of writes whose effect is being measured.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    written_at: Duration,
    pub(super) changes: Vec<Change>,
    napis: BTreeSet<NapiId>,
    cpus: CpuSet,
    before: Vec<Arc<Sample>>,
    after: Vec<Arc<Sample>>,
}

/// The batches being measured, and the windows before the next one.
#[derive(Debug, Clone, Default)]
pub(super) struct Trials {
    recent: VecDeque<Arc<Sample>>,
    open: Vec<Trial>,
    /// Windows that ended up to here are of no use: knobs have changed since.
    fresh_from: Duration,
}

impl Trials {
    /// Adds a window; returns the trials that have all their windows.
    pub(super) fn sample(&mut self, window: &Window<'_>, policy: &Policy) -> Vec<Trial> {
        let sample = Arc::new(Sample::new(window));
        for trial in &mut self.open {
            trial.after.push(sample.clone());
        }
        self.recent.push_back(sample);
        let windows = policy.verify_windows.max(1) as usize;
        while self.recent.len() > windows {
            self.recent.pop_front();
        }
        self.end(|trial| trial.after.len() >= windows)
    }

    /// Begins the trial of a batch that is written now; its windows before are those from `since`.
    /// Returns the trials on the same CPUs, which end.
    pub(super) fn begin(
        &mut self,
        now: Duration,
        since: Duration,
        changes: Vec<Change>,
        napis: BTreeSet<NapiId>,
        policy: &Policy,
    ) -> Vec<Trial> {
        let of_use = |it: &&Arc<Sample>| it.ended >= since && it.ended > self.fresh_from;
        let before: Vec<Arc<Sample>> = self.recent.iter().filter(of_use).cloned().collect();
        let values = changes.iter().flat_map(|change| [&change.old, &change.new]);
        let mut cpus: CpuSet = values.filter_map(view::cpu_of).collect();
        for sample in &before {
            cpus = cpus.or(&sample.cpus_of(&napis));
        }
        let ended = self.end(|trial| trial.cpus.intersects(&cpus));
        self.fresh_from = now;
        if policy.verify_windows > 0 && !napis.is_empty() {
            let after = Vec::new();
            self.open.push(Trial { written_at: now, changes, napis, cpus, before, after });
        }
        ended
    }

    /// Ends the trials of a knob, whose value has changed.
    pub(super) fn end_of(&mut self, target: &Target) -> Vec<Trial> {
        self.end(|trial| trial.changes.iter().any(|change| change.target == *target))
    }

    fn end(&mut self, concerns: impl Fn(&Trial) -> bool) -> Vec<Trial> {
        let (ended, open) = self.open.drain(..).partition(|trial| concerns(trial));
        self.open = open;
        ended
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }
}

impl Trial {
    /// What its windows show.
    pub(super) fn result(&self, policy: &Policy) -> TrialResult {
        let unknown = |why: String| self.as_result(Effect::Unknown, None, why);
        let all = || self.before.iter().chain(&self.after);
        let cpus =
            all().fold(self.cpus.clone(), |cpus, sample| cpus.or(&sample.cpus_of(&self.napis)));
        let work = WorkKind::larger(all(), &cpus);
        let measures = |samples: &[Arc<Sample>]| -> Vec<WindowMeasure> {
            samples.iter().filter_map(|sample| WindowMeasure::new(sample, work, &cpus)).collect()
        };
        let (before, after) = (measures(&self.before), measures(&self.after));
        let (count_before, count_after) = (before.len(), after.len());
        if count_before < LEAST_WINDOWS || count_after < LEAST_WINDOWS {
            return unknown(format!(
                "not verified: {count_before} windows before and {count_after} after with traffic"
            ));
        }
        let load = |measures: &[WindowMeasure]| {
            measures.iter().map(|m| m.units).sum::<f64>() / measures.len() as f64
        };
        let (load_before, load_after) = (load(&before), load(&after));
        if load_after > load_before * SAME_LOAD || load_before > load_after * SAME_LOAD {
            let per_s = work.units_per_s();
            return unknown(format!(
                "not verified: the load changed, {load_before:.1} to {load_after:.1} {per_s}"
            ));
        }
        let each = |measure: fn(&WindowMeasure) -> f64| compare(&before, &after, measure);
        let Some(cost) = each(|measure| measure.cost.ln()).map(BeforeAfter::exp) else {
            return unknown("not verified: no interval".into());
        };
        let locality = each(|measure| measure.locality);
        let wakeups = each(|measure| measure.wakeups.ln()).map(BeforeAfter::exp);
        let measures = Measures { cost, wakeups, locality };
        let effect = match cost {
            BeforeAfter { low, .. } if low > 1.0 + policy.worse_by => Effect::Worse,
            BeforeAfter { high, .. } if high < 1.0 => Effect::Better,
            _ => match measures.by_counts(self, policy) {
                Some(effect) => effect,
                None if cost.high > cost.low * TELLS_NOTHING => {
                    return unknown(format!(
                        "not verified: the cost differs too much from window to window, {}",
                        interval_in_words(&cost)
                    ));
                }
                None => Effect::NoDifference,
            },
        };
        let words = in_words(effect, work, &measures);
        self.as_result(effect, Some(measures), words)
    }

    /// Whether the readers of the data are on other CPUs since the batch.
    fn readers_moved(&self) -> bool {
        let shares = |samples: &[Arc<Sample>]| {
            let mut on: BTreeMap<CpuId, f64> = BTreeMap::new();
            let rows = samples.iter().flat_map(|sample| &sample.read);
            let own = |row: &DataPath| row.napi.is_some_and(|napi| self.napis.contains(&napi));
            for (row, bytes) in rows.filter(|(row, _)| own(row)) {
                *on.entry(row.consumer).or_default() += bytes;
            }
            let all: f64 = on.values().sum();
            on.values_mut().for_each(|bytes| *bytes /= all);
            on
        };
        let (before, after) = (shares(&self.before), shares(&self.after));
        let came = |(cpu, share): (&CpuId, &f64)| {
            (share - before.get(cpu).copied().unwrap_or(0.0)).max(0.0)
        };
        after.iter().map(came).sum::<f64>() > READERS_MOVED
    }

    fn as_result(&self, result: Effect, measures: Option<Measures>, words: String) -> TrialResult {
        TrialResult {
            written_at: self.written_at,
            targets: self.changes.iter().map(|change| change.target.clone()).collect(),
            result,
            cost: measures.as_ref().map(|it| it.cost),
            wakeups: measures.as_ref().and_then(|it| it.wakeups),
            locality: measures.and_then(|it| it.locality),
            words,
        }
    }
}

/// The measures of a trial, before and after.
struct Measures {
    cost: BeforeAfter,
    wakeups: Option<BeforeAfter>,
    locality: Option<BeforeAfter>,
}

impl Measures {
    /// What the counts prove, whatever the CPU time is; `None` if nothing.
    ///
    /// Only for algorithms that move a queue for its distance and wakeups alone; the others accept
    /// both. Readers that moved themselves prove nothing about the batch.
    fn by_counts(&self, trial: &Trial, policy: &Policy) -> Option<Effect> {
        let by_distance =
            matches!(policy.goal.algorithm, AlgorithmName::Auto | AlgorithmName::SameCpu);
        if !by_distance || trial.readers_moved() {
            return None;
        }
        if self.locality.is_some_and(|it| it.high < -LOST_LOCALITY) {
            return Some(Effect::Worse);
        }
        match self.wakeups? {
            BeforeAfter { low, .. } if low > WAKEUPS => Some(Effect::Worse),
            BeforeAfter { high, .. } if high < 1.0 / WAKEUPS => Some(Effect::Better),
            _ => None,
        }
    }
}

/// A window's measures on the CPUs of a trial.
struct WindowMeasure {
    /// CPU-nanoseconds per unit of work.
    cost: f64,
    /// Units per second.
    units: f64,
    /// Wakeups across CPUs per unit of work.
    wakeups: f64,
    locality: f64,
}

impl WindowMeasure {
    fn new(sample: &Sample, work: WorkKind, cpus: &CpuSet) -> Option<Self> {
        let (done, near) = sample.done(work, cpus);
        let (cost, units) = (sample.cost(cpus), done / work.unit());
        (done > 0.0 && cost > 0.0).then(|| Self {
            cost: cost / units,
            units,
            // Half a wakeup more, so that none has a logarithm.
            wakeups: (sample.remote_wakeups(cpus) + 0.5) / units,
            locality: near / done,
        })
    }
}

fn compare(
    before: &[WindowMeasure],
    after: &[WindowMeasure],
    measure: fn(&WindowMeasure) -> f64,
) -> Option<BeforeAfter> {
    let values = |measures: &[WindowMeasure]| measures.iter().map(measure).collect::<Vec<_>>();
    let (values_before, values_after) = (values(before), values(after));
    let difference =
        stats::difference_of_means(&values_before, &values_after, LEAST_DEVIATION, DOUBT)?;
    Some(BeforeAfter {
        windows_before: before.len(),
        windows_after: after.len(),
        before: stats::mean(&values_before)?,
        after: stats::mean(&values_after)?,
        low: difference.low,
        high: difference.high,
    })
}

impl BeforeAfter {
    /// Means and a ratio, from those of logarithms.
    fn exp(self) -> Self {
        let Self { before, after, low, high, .. } = self;
        Self { before: before.exp(), after: after.exp(), low: low.exp(), high: high.exp(), ..self }
    }
}

fn in_words(effect: Effect, work: WorkKind, measures: &Measures) -> String {
    let Measures { cost, wakeups, locality } = measures;
    let unit = work.unit_costs();
    let by_cost = cost.low > 1.0 || cost.high < 1.0;
    let change = match effect {
        Effect::Better if by_cost => format!("{unit} less"),
        Effect::Better => "fewer wakeups across cpus".to_owned(),
        Effect::Worse if by_cost => format!("{unit} more"),
        Effect::Worse if locality.is_some_and(|it| it.high < -LOST_LOCALITY) => {
            "data is no longer read under the cache where it arrives, and nothing is gained".into()
        }
        Effect::Worse => "more wakeups across cpus, and nothing is gained".to_owned(),
        Effect::NoDifference | Effect::Unknown if work == WorkKind::Read => {
            "no difference shown".to_owned()
        }
        Effect::NoDifference | Effect::Unknown => {
            format!("no difference shown in what {unit}")
        }
    };
    let woken = wakeups
        .filter(|it| it.before.max(it.after) >= 1.0)
        .map(|it| format!("; {:.0} -> {:.0} wakeups across cpus", it.before, it.after));
    let near = locality
        .map(|l| format!("; {:.0}% -> {:.0}% of it on one llc", l.before * 100.0, l.after * 100.0));
    format!(
        "{change}: {}{}{}",
        interval_in_words(cost),
        woken.unwrap_or_default(),
        near.unwrap_or_default()
    )
}

/// Formats `1.20 -> 1.10 ms of cpu time, -12% to -4% (99%, 2 windows before, 6 after)`.
fn interval_in_words(cost: &BeforeAfter) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    format!(
        "{:.2} -> {:.2} ms of cpu time, {:+.0}% to {:+.0}% (99%, {} windows before, {} after)",
        cost.before / 1e6,
        cost.after / 1e6,
        percent(cost.low),
        percent(cost.high),
        cost.windows_before,
        cost.windows_after,
    )
}

#[cfg(test)]
mod tests;
