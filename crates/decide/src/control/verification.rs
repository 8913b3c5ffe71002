//! Verifications measure whether a batch of writes made things better or worse.
//!
//! A verification compares windows before and after the batch, on the same CPUs: those between
//! which something moved, and those that read its data. It compares the cost of a received megabyte
//! (or of forwarded packets, if there are more of these), the wakeups across CPUs per megabyte, and
//! the locality. The interval is Student's with a common variance, because there may be only two
//! windows before. For costs and wakeups it is computed from logarithms, so that it is the interval
//! of a ratio.
//!
//! CPU time is noisy, counts are not. So a batch is also better if it needs fewer wakeups across
//! CPUs. It is worse if data is no longer read under the last-level cache of its protocol work, if
//! it needs more wakeups, or if no expected improvement came; unless its CPU time decreased.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::decision::{BeforeAfter, MeasuredEffect, VerificationResult};
use super::expected::{ExpectedWindow, Moves};
use super::measure::{
    ExpectedAndMeasured, Measures, READERS_MOVED, WindowMeasure, compare, in_words,
    interval_in_words,
};
use super::policy::Policy;
use super::sample::{DataPath, Sample, WorkKind};
use super::view::{self, Window};
use netsilo_model::change::{Change, Target};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::NapiId;

/// Loads that differ by more than this factor are not compared.
const SAME_LOAD: f64 = 2.0;

/// If the interval of costs is wider than this factor, it proves nothing.
const TELLS_NOTHING: f64 = 16.0;

/// Minimum number of windows on either side.
const LEAST_WINDOWS: usize = 2;

/// Changes that were written together.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    pub(super) changes: Vec<Change>,
    /// The NAPIs behind them.
    pub(super) napis: BTreeSet<NapiId>,
    pub(super) moves: Moves,
}

/// A batch of writes whose effect is being measured.
#[derive(Debug, Clone)]
pub(super) struct Verification {
    written_at: Duration,
    pub(super) changes: Vec<Change>,
    napis: BTreeSet<NapiId>,
    moves: Moves,
    cpus: CpuSet,
    before: Vec<Arc<Sample>>,
    after: Vec<Arc<Sample>>,
}

/// The batches that are being measured, and the windows before the next batch.
#[derive(Debug, Clone, Default)]
pub(super) struct Verifications {
    recent: VecDeque<Arc<Sample>>,
    open: Vec<Verification>,
    /// Windows that ended up to this time are useless, because knobs have changed since.
    fresh_from: Duration,
}

impl Verifications {
    /// Adds a window. Returns the verifications that now have all their windows.
    pub(super) fn sample(&mut self, window: &Window<'_>, policy: &Policy) -> Vec<Verification> {
        let sample = Arc::new(Sample::new(window));
        for verification in &mut self.open {
            verification.after.push(sample.clone());
        }
        self.recent.push_back(sample);
        let windows = policy.verify_windows.max(1) as usize;
        while self.recent.len() > windows {
            self.recent.pop_front();
        }
        self.end(|verification| verification.after.len() >= windows)
    }

    /// Begins the verification of a batch that is written now. Its windows before are those from
    /// `since`. Returns the verifications on the same CPUs, which end.
    pub(super) fn begin(
        &mut self,
        now: Duration,
        since: Duration,
        batch: Batch,
        policy: &Policy,
    ) -> Vec<Verification> {
        let Batch { changes, napis, moves } = batch;
        let of_use = |it: &&Arc<Sample>| it.ended >= since && it.ended > self.fresh_from;
        let before: Vec<Arc<Sample>> = self.recent.iter().filter(of_use).cloned().collect();
        let values = changes.iter().flat_map(|change| [&change.old, &change.new]);
        let mut cpus: CpuSet = values.filter_map(view::cpu_of).collect();
        for sample in &before {
            cpus = cpus.or(&sample.cpus_of(&napis));
        }
        let ended = self.end(|verification| verification.cpus.intersects(&cpus));
        self.fresh_from = now;
        if policy.verify_windows > 0 && !napis.is_empty() {
            let after = Vec::new();
            self.open.push(Verification {
                written_at: now,
                changes,
                napis,
                moves,
                cpus,
                before,
                after,
            });
        }
        ended
    }

    /// Ends the verifications of a knob, because its value has changed.
    pub(super) fn end_of(&mut self, target: &Target) -> Vec<Verification> {
        self.end(|verification| verification.changes.iter().any(|change| change.target == *target))
    }

    fn end(&mut self, concerns: impl Fn(&Verification) -> bool) -> Vec<Verification> {
        let (ended, open) = self.open.drain(..).partition(|verification| concerns(verification));
        self.open = open;
        ended
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }
}

impl Verification {
    /// The result of its windows.
    pub(super) fn result(&self, policy: &Policy) -> VerificationResult {
        let unknown = |why: String| self.as_result(MeasuredEffect::Unknown, None, why);
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
        let of_use = |sample: &&Arc<Sample>| WindowMeasure::new(sample, work, &cpus).is_some();
        let of_use = self.before.iter().filter(of_use);
        let expected: Option<Vec<ExpectedWindow>> =
            of_use.map(|sample| self.moves.expected(sample, work, &cpus)).collect();
        let expectation = ExpectedAndMeasured::new(expected, &before, &after);
        let measures = Measures { cost, wakeups, locality, expectation };
        let effect = match cost {
            BeforeAfter { low, .. } if low > 1.0 + policy.worse_by => MeasuredEffect::Worse,
            BeforeAfter { high, .. } if high < 1.0 => MeasuredEffect::Better,
            _ => match measures.by_counts().filter(|_| self.is_judged_by_counts(policy)) {
                Some(effect) => effect,
                None if cost.high > cost.low * TELLS_NOTHING => {
                    return unknown(format!(
                        "not verified: the cost differs too much from window to window, {}",
                        interval_in_words(&cost)
                    ));
                }
                None => MeasuredEffect::NoDifference,
            },
        };
        let words = in_words(effect, work, &measures);
        self.as_result(effect, Some(measures), words)
    }

    /// Whether counts can prove something. They cannot if readers moved by themselves.
    fn is_judged_by_counts(&self, policy: &Policy) -> bool {
        policy.goal.algorithm.algorithm().judged_by_counts && !self.readers_moved()
    }

    /// Whether the readers of the data have moved to other CPUs since the batch.
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

    fn as_result(
        &self,
        result: MeasuredEffect,
        measures: Option<Measures>,
        words: String,
    ) -> VerificationResult {
        let expected = |value: fn(&ExpectedAndMeasured) -> f64| {
            measures.as_ref().and_then(|it| it.expectation.as_ref()).map(value)
        };
        VerificationResult {
            written_at: self.written_at,
            targets: self.changes.iter().map(|change| change.target.clone()).collect(),
            result,
            cost: measures.as_ref().map(|it| it.cost),
            wakeups: measures.as_ref().and_then(|it| it.wakeups),
            locality: measures.as_ref().and_then(|it| it.locality),
            expected_wakeups: expected(|it| it.wakeups.before),
            expected_locality: expected(|it| it.locality.before),
            words,
        }
    }
}

#[cfg(test)]
mod tests;
