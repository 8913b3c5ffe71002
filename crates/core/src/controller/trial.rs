//! Was it good? The cost of a received megabyte and the locality, in the windows before a batch of writes and after.
//!
//! Compared are the same CPUs before and after: those between which something was moved and those that read it. The
//! interval is Student's, with a common variance, as there may be two windows before only (it was not wanted for
//! longer): of the logarithm for costs, so that it is one of a ratio.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::decision::{Compared, Verdict, VerdictResult};
use super::policy::Policy;
use crate::change::{Change, Target};
use crate::cpuset::{CpuId, CpuSet};
use crate::host::{NapiId, Observation};
use crate::rates::Rates;
use crate::stats;

/// Both tails together are this improbable.
const DOUBT: f64 = 0.01;

/// No measure is taken to be steadier than this, relatively (costs) or absolutely (locality): clock ticks are no finer.
const LEAST_DEVIATION: f64 = 0.01;

/// Where the megabytes per second differ by more than this factor, it is another load.
const SAME_LOAD: f64 = 2.0;

/// Fewer windows than this on either side tell nothing.
const LEAST_WINDOWS: usize = 2;

/// One window's costs.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    ended: Duration,
    /// CPU-nanoseconds per second: interrupted (measured where it was) and all else but idling.
    cpus: BTreeMap<CpuId, f64>,
    rows: BTreeMap<Row, f64>,
}

/// Bytes per second are counted by this.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    napi: Option<NapiId>,
    protocol: Option<CpuId>,
    consumer: CpuId,
    same_llc: bool,
}

impl Sample {
    fn of(now: Duration, observation: &Observation, rates: &Rates) -> Self {
        let attribution = &observation.attribution;
        let seconds = attribution.elapsed.as_secs_f64();
        let interrupted = |cpu: &CpuId| {
            let time = attribution.cpu_time.get(cpu).filter(|_| seconds > 0.0)?;
            Some((time.softirq_ns() as f64 + time.hardirq_ns as f64 + time.ipi_ns as f64) / seconds)
        };
        let cost = |(cpu, rates): (&CpuId, &crate::rates::CpuRates)| {
            let shares = rates.shares?;
            let ticks = (shares.irq + shares.softirq) * 1e9;
            Some((*cpu, (shares.usr + shares.nice + shares.sys) * 1e9 + interrupted(cpu).unwrap_or(ticks)))
        };
        let topology = &observation.after.topology;
        let mut rows: BTreeMap<Row, f64> = BTreeMap::new();
        for row in attribution.consumption.iter().filter(|_| seconds > 0.0) {
            let (protocol, consumer) = (row.protocol_cpu.or(row.poll_cpu), row.consumer_cpu);
            let llc = |cpu| topology.cpus.get(&cpu).is_some_and(|known| known.llc.contains(consumer));
            let same_llc = protocol.is_some_and(|cpu| cpu == consumer || llc(cpu));
            let key = Row { napi: row.napi, protocol, consumer, same_llc };
            *rows.entry(key).or_default() += row.bytes as f64 / seconds;
        }
        Self { ended: now, cpus: rates.cpus.iter().filter_map(cost).collect(), rows }
    }

    /// The CPUs where data of these NAPIs is processed or read.
    fn cpus_of(&self, napis: &BTreeSet<NapiId>) -> CpuSet {
        let rows = self.rows.keys().filter(|row| row.napi.is_some_and(|napi| napis.contains(&napi)));
        rows.flat_map(|row| row.protocol.into_iter().chain([row.consumer])).collect()
    }

    /// What the CPUs processed or read: bytes per second, and the part of it that stayed under one last-level cache.
    fn bytes(&self, cpus: &CpuSet) -> (f64, f64) {
        let touches = |row: &Row| cpus.contains(row.consumer) || row.protocol.is_some_and(|cpu| cpus.contains(cpu));
        let sum = |near: bool| {
            self.rows.iter().filter(|(row, _)| touches(row) && (row.same_llc || !near)).map(|(_, bytes)| bytes).sum()
        };
        (sum(false), sum(true))
    }

    fn cost(&self, cpus: &CpuSet) -> f64 {
        cpus.iter().filter_map(|cpu| self.cpus.get(&cpu)).sum()
    }
}

/// A batch of writes whose effect is being measured.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) at: Duration,
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
    /// Windows that ended up to here saw something else.
    fresh_from: Duration,
}

impl Trials {
    /// A window has ended; returns the batches that can be judged now.
    pub(super) fn sample(
        &mut self,
        now: Duration,
        observation: &Observation,
        rates: &Rates,
        policy: &Policy,
    ) -> Vec<(Trial, Verdict)> {
        let sample = Arc::new(Sample::of(now, observation, rates));
        for trial in &mut self.open {
            trial.after.push(sample.clone());
        }
        self.recent.push_back(sample);
        let windows = policy.verify_windows.max(1) as usize;
        while self.recent.len() > windows {
            self.recent.pop_front();
        }
        let (done, open) = self.open.drain(..).partition(|trial: &Trial| trial.after.len() >= windows);
        self.open = open;
        done.into_iter().map(|trial: Trial| (trial.verdict(policy), trial)).map(|(v, t)| (t, v)).collect()
    }

    /// A batch was written. What was being measured on the same CPUs ends; the windows before are those since `since`.
    pub(super) fn begin(
        &mut self,
        now: Duration,
        since: Duration,
        changes: Vec<Change>,
        napis: BTreeSet<NapiId>,
        policy: &Policy,
    ) -> Vec<(Trial, Verdict)> {
        let before: Vec<Arc<Sample>> = self
            .recent
            .iter()
            .filter(|sample| sample.ended >= since && sample.ended > self.fresh_from)
            .cloned()
            .collect();
        let mut cpus: CpuSet = changes.iter().filter_map(|change| super::view::cpu_of(&change.new)).collect();
        for sample in &before {
            cpus = cpus.or(&sample.cpus_of(&napis));
        }
        let ended = self.end(|trial| trial.cpus.intersects(&cpus), policy);
        self.fresh_from = now;
        if policy.verify_windows > 0 && !napis.is_empty() {
            self.open.push(Trial { at: now, changes, napis, cpus, before, after: Vec::new() });
        }
        ended
    }

    /// Ends what is being measured of these knobs: something else has changed.
    pub(super) fn end(&mut self, concerns: impl Fn(&Trial) -> bool, policy: &Policy) -> Vec<(Trial, Verdict)> {
        let (ended, open) = self.open.drain(..).partition(|trial| concerns(trial));
        self.open = open;
        let ended: Vec<Trial> = ended;
        ended.into_iter().map(|trial| (trial.verdict(policy), trial)).map(|(v, t)| (t, v)).collect()
    }

    pub(super) fn end_of(&mut self, target: &Target, policy: &Policy) -> Vec<(Trial, Verdict)> {
        self.end(|trial| trial.changes.iter().any(|change| change.target == *target), policy)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }
}

impl Trial {
    fn verdict(&self, policy: &Policy) -> Verdict {
        let all = || self.before.iter().chain(&self.after);
        let cpus = all().fold(self.cpus.clone(), |cpus, sample| cpus.or(&sample.cpus_of(&self.napis)));
        let measures = |samples: &[Arc<Sample>]| -> Vec<Measure> {
            samples.iter().filter_map(|sample| Measure::of(sample, &cpus)).collect()
        };
        let (before, after) = (measures(&self.before), measures(&self.after));
        let verdict = |result, cost: Option<Compared>, locality, words: String| Verdict {
            written_at: self.at,
            targets: self.changes.iter().map(|change| change.target.clone()).collect(),
            result,
            cost,
            locality,
            words,
        };
        if before.len() < LEAST_WINDOWS || after.len() < LEAST_WINDOWS {
            let words = format!("not verified: {} windows before and {} after with traffic", before.len(), after.len());
            return verdict(VerdictResult::Unknown, None, None, words);
        }
        let each = |of: fn(&Measure) -> f64| compare(&before, &after, of);
        let load = |measures: &[Measure]| measures.iter().map(|m| m.megabytes).sum::<f64>() / measures.len() as f64;
        let (load_before, load_after) = (load(&before), load(&after));
        if load_after > load_before * SAME_LOAD || load_before > load_after * SAME_LOAD {
            let words = format!("not verified: the load changed, {load_before:.1} to {load_after:.1} MB/s");
            return verdict(VerdictResult::Unknown, None, None, words);
        }
        let Some(cost) = each(|measure| measure.cost.ln()).map(Compared::exp) else {
            return verdict(VerdictResult::Unknown, None, None, "not verified: no interval".into());
        };
        let locality = each(|measure| measure.locality);
        let result = match cost {
            Compared { low, .. } if low > 1.0 + policy.worse_by => VerdictResult::Worse,
            Compared { high, .. } if high < 1.0 => VerdictResult::Better,
            _ => VerdictResult::NoDifference,
        };
        verdict(result, Some(cost), locality, in_words(result, &cost, locality.as_ref()))
    }
}

/// A window's measures on the CPUs of a trial.
struct Measure {
    /// CPU-nanoseconds per megabyte.
    cost: f64,
    /// Megabytes per second.
    megabytes: f64,
    locality: f64,
}

impl Measure {
    fn of(sample: &Sample, cpus: &CpuSet) -> Option<Self> {
        let (bytes, near) = sample.bytes(cpus);
        let (cost, megabytes) = (sample.cost(cpus), bytes / 1e6);
        (bytes > 0.0 && cost > 0.0).then(|| Self { cost: cost / megabytes, megabytes, locality: near / bytes })
    }
}

fn compare(before: &[Measure], after: &[Measure], of: fn(&Measure) -> f64) -> Option<Compared> {
    let values = |measures: &[Measure]| measures.iter().map(of).collect::<Vec<_>>();
    let (values_before, values_after) = (values(before), values(after));
    let difference = stats::difference_of_means(&values_before, &values_after, LEAST_DEVIATION, DOUBT)?;
    Some(Compared {
        windows_before: before.len(),
        windows_after: after.len(),
        before: stats::mean(&values_before)?,
        after: stats::mean(&values_after)?,
        low: difference.low,
        high: difference.high,
    })
}

impl Compared {
    /// Of logarithms: as means and a ratio.
    fn exp(self) -> Self {
        let Self { before, after, low, high, .. } = self;
        Self { before: before.exp(), after: after.exp(), low: low.exp(), high: high.exp(), ..self }
    }
}

fn in_words(result: VerdictResult, cost: &Compared, locality: Option<&Compared>) -> String {
    let said = match result {
        VerdictResult::Better => "a received megabyte costs less",
        VerdictResult::Worse => "a received megabyte costs more",
        VerdictResult::NoDifference | VerdictResult::Unknown => "no difference shown",
    };
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let near = locality.map(|l| format!("; {:.0}% -> {:.0}% of it on one llc", l.before * 100.0, l.after * 100.0));
    format!(
        "{said}: {:.2} -> {:.2} ms of cpu time, {:+.0}% to {:+.0}% (99%, {} windows before, {} after){}",
        cost.before / 1e6,
        cost.after / 1e6,
        percent(cost.low),
        percent(cost.high),
        cost.windows_before,
        cost.windows_after,
        near.unwrap_or_default()
    )
}
