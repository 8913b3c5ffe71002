//! Was it good? The cost of a received megabyte (of forwarded packets, where these are more) and
//! the locality, in the windows before a batch of writes and after.
//!
//! Compared are the same CPUs before and after: those between which something was moved and those
//! that read it. The interval is Student's, with a common variance, as there may be two windows
//! before only (it was not wanted for longer): of the logarithm for costs, so that it is one of a
//! ratio.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use netsilo_model::change::{Change, Target};
use netsilo_model::derive::rates::Rates;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::observation::Observation;

use crate::control::decision::{Compared, Verdict, VerdictResult};
use crate::control::policy::Policy;
use netsilo_stats as stats;

/// Both tails together are this improbable.
const DOUBT: f64 = 0.01;

/// No measure is taken to be steadier than this, relatively (costs) or absolutely (locality): clock
/// ticks are no finer.
const LEAST_DEVIATION: f64 = 0.01;

/// Where the megabytes per second differ by more than this factor, it is another load.
const SAME_LOAD: f64 = 2.0;

/// Fewer windows than this on either side tell nothing.
const LEAST_WINDOWS: usize = 2;

/// One window's costs, each in order; a dozen of them are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    ended: Duration,
    /// CPU-nanoseconds per second: interrupted (measured where it was) and all else but idling.
    cpus: Vec<(CpuId, f64)>,
    /// Bytes per second that are read.
    read: Vec<(Row, f64)>,
    /// What leaves again.
    forwarded: Vec<(Row, Forwards)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Forwards {
    packets: f64,
    bytes: f64,
}

/// What the megabytes or packets of a trial are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Read,
    Forwarded,
}

/// What is read or forwarded is counted by this; what is forwarded has the CPU that sends it for a
/// consumer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    napi: Option<NapiId>,
    protocol: Option<CpuId>,
    consumer: CpuId,
    same_llc: bool,
}

impl Row {
    fn touches(&self, cpus: &CpuSet) -> bool {
        cpus.contains(self.consumer) || self.protocol.is_some_and(|cpu| cpus.contains(cpu))
    }
}

impl Work {
    /// The larger part of what these CPUs do, by bytes.
    fn of<'a>(samples: impl Iterator<Item = &'a Arc<Sample>> + Clone, cpus: &CpuSet) -> Self {
        let read: f64 = samples.clone().map(|sample| sample.done(Self::Read, cpus).0).sum();
        let forwarded: f64 = samples.map(|sample| sample.bytes_forwarded(cpus)).sum();
        if forwarded > read { Self::Forwarded } else { Self::Read }
    }

    /// So many bytes or packets are one unit: a megabyte, a thousand packets.
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
    fn of(now: Duration, observation: &Observation, rates: &Rates) -> Self {
        let attribution = &observation.attribution;
        let seconds = attribution.elapsed.as_secs_f64();
        let interrupted = |cpu: &CpuId| {
            let time = attribution.cpu_time.get(cpu).filter(|_| seconds > 0.0)?;
            Some(time.interrupted_ns() as f64 / seconds)
        };
        let cost = |(cpu, rates): (&CpuId, &netsilo_model::derive::rates::CpuRates)| {
            let shares = rates.shares?;
            let ticks = (shares.irq + shares.softirq) * 1e9;
            Some((
                *cpu,
                (shares.usr + shares.nice + shares.sys) * 1e9 + interrupted(cpu).unwrap_or(ticks),
            ))
        };
        let topology = &observation.after.topology;
        let row = |napi, protocol: Option<CpuId>, consumer| {
            let llc =
                |cpu| topology.cpus.get(&cpu).is_some_and(|known| known.llc.contains(consumer));
            let same_llc = protocol.is_some_and(|cpu| cpu == consumer || llc(cpu));
            Row { napi, protocol, consumer, same_llc }
        };
        let mut read: BTreeMap<Row, f64> = BTreeMap::new();
        for it in attribution.consumption.iter().filter(|_| seconds > 0.0) {
            let key = row(it.napi, it.protocol_cpu.or(it.poll_cpu), it.consumer_cpu);
            *read.entry(key).or_default() += it.bytes as f64 / seconds;
        }
        let mut forwarded: BTreeMap<Row, Forwards> = BTreeMap::new();
        for it in attribution.forwarded.iter().filter(|_| seconds > 0.0) {
            let sum = forwarded.entry(row(it.napi, Some(it.poll_cpu), it.xmit_cpu)).or_default();
            sum.packets += it.packets as f64 / seconds;
            sum.bytes += it.bytes as f64 / seconds;
        }
        let (read, forwarded) = (read.into_iter().collect(), forwarded.into_iter().collect());
        Self { ended: now, cpus: rates.cpus.iter().filter_map(cost).collect(), read, forwarded }
    }

    /// The CPUs where data of these NAPIs is processed, read or sent on.
    fn cpus_of(&self, napis: &BTreeSet<NapiId>) -> CpuSet {
        let rows =
            self.read.iter().map(|(row, _)| row).chain(self.forwarded.iter().map(|(row, _)| row));
        let rows = rows.filter(|row| row.napi.is_some_and(|napi| napis.contains(&napi)));
        rows.flat_map(|row| row.protocol.into_iter().chain([row.consumer])).collect()
    }

    /// What the CPUs read or forwarded per second (bytes, packets), and the part of it that stayed
    /// under one last-level cache.
    fn done(&self, work: Work, cpus: &CpuSet) -> (f64, f64) {
        let sum = |near: bool| -> f64 {
            let counts = |row: &Row| row.touches(cpus) && (row.same_llc || !near);
            match work {
                Work::Read => {
                    self.read.iter().filter(|(row, _)| counts(row)).map(|(_, bytes)| bytes).sum()
                }
                Work::Forwarded => self
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
        let (done, open) =
            self.open.drain(..).partition(|trial: &Trial| trial.after.len() >= windows);
        self.open = open;
        done.into_iter()
            .map(|trial: Trial| (trial.verdict(policy), trial))
            .map(|(v, t)| (t, v))
            .collect()
    }

    /// A batch was written. What was being measured on the same CPUs ends; the windows before are
    /// those since `since`.
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
        let values = changes.iter().flat_map(|change| [&change.old, &change.new]);
        let mut cpus: CpuSet = values.filter_map(crate::control::view::cpu_of).collect();
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
    pub(super) fn end(
        &mut self,
        concerns: impl Fn(&Trial) -> bool,
        policy: &Policy,
    ) -> Vec<(Trial, Verdict)> {
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
        let cpus =
            all().fold(self.cpus.clone(), |cpus, sample| cpus.or(&sample.cpus_of(&self.napis)));
        let work = Work::of(all(), &cpus);
        let measures = |samples: &[Arc<Sample>]| -> Vec<Measure> {
            samples.iter().filter_map(|sample| Measure::of(sample, work, &cpus)).collect()
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
            let words = format!(
                "not verified: {} windows before and {} after with traffic",
                before.len(),
                after.len()
            );
            return verdict(VerdictResult::Unknown, None, None, words);
        }
        let each = |of: fn(&Measure) -> f64| compare(&before, &after, of);
        let load = |measures: &[Measure]| {
            measures.iter().map(|m| m.units).sum::<f64>() / measures.len() as f64
        };
        let (load_before, load_after) = (load(&before), load(&after));
        if load_after > load_before * SAME_LOAD || load_before > load_after * SAME_LOAD {
            let per_s = work.units_per_s();
            let words = format!(
                "not verified: the load changed, {load_before:.1} to {load_after:.1} {per_s}"
            );
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
        verdict(result, Some(cost), locality, in_words(result, work, &cost, locality.as_ref()))
    }
}

/// A window's measures on the CPUs of a trial.
struct Measure {
    /// CPU-nanoseconds per unit of work.
    cost: f64,
    /// Units per second.
    units: f64,
    locality: f64,
}

impl Measure {
    fn of(sample: &Sample, work: Work, cpus: &CpuSet) -> Option<Self> {
        let (done, near) = sample.done(work, cpus);
        let (cost, units) = (sample.cost(cpus), done / work.unit());
        (done > 0.0 && cost > 0.0).then(|| Self {
            cost: cost / units,
            units,
            locality: near / done,
        })
    }
}

fn compare(before: &[Measure], after: &[Measure], of: fn(&Measure) -> f64) -> Option<Compared> {
    let values = |measures: &[Measure]| measures.iter().map(of).collect::<Vec<_>>();
    let (values_before, values_after) = (values(before), values(after));
    let difference =
        stats::difference_of_means(&values_before, &values_after, LEAST_DEVIATION, DOUBT)?;
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

fn in_words(
    result: VerdictResult,
    work: Work,
    cost: &Compared,
    locality: Option<&Compared>,
) -> String {
    let unit = work.unit_costs();
    let said = match result {
        VerdictResult::Better => format!("{unit} less"),
        VerdictResult::Worse => format!("{unit} more"),
        VerdictResult::NoDifference | VerdictResult::Unknown if work == Work::Read => {
            "no difference shown".to_owned()
        }
        VerdictResult::NoDifference | VerdictResult::Unknown => {
            format!("no difference shown in what {unit}")
        }
    };
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let near = locality
        .map(|l| format!("; {:.0}% -> {:.0}% of it on one llc", l.before * 100.0, l.after * 100.0));
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
