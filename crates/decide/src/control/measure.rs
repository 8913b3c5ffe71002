//! The measures of a verification: cost, wakeups and locality before and after, what was expected,
//! and what the counts prove.

use super::decision::{BeforeAfter, MeasuredEffect};
use super::expected::ExpectedWindow;
use super::sample::{Sample, WorkKind};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_trial::stats;

/// Both tails of the interval together have this probability.
const DOUBT: f64 = 0.01;

/// Minimum standard deviation of a measure, relative (costs) or absolute (locality), because clock
/// ticks are no finer.
const LEAST_DEVIATION: f64 = 0.01;

/// If locality falls by more than this, it is lost. A placement that promised it is reverted.
const LOST_LOCALITY: f64 = 0.10;

/// If wakeups across CPUs change by less than this factor, they prove nothing.
const WAKEUPS: f64 = 1.25;

/// Readers have moved if they read this share of the data on other CPUs than before.
pub(super) const READERS_MOVED: f64 = 0.2;

/// The measures of a verification, before and after.
pub(super) struct Measures {
    pub(super) cost: BeforeAfter,
    pub(super) wakeups: Option<BeforeAfter>,
    pub(super) locality: Option<BeforeAfter>,
    pub(super) expectation: Option<ExpectedAndMeasured>,
}

/// What the plan predicted, compared with the result. `before` is the predicted value.
pub(super) struct ExpectedAndMeasured {
    pub(super) wakeups: BeforeAfter,
    pub(super) locality: BeforeAfter,
}

impl ExpectedAndMeasured {
    /// The predicted values of the windows before, compared with the windows after.
    pub(super) fn new(
        expected: Option<Vec<ExpectedWindow>>,
        before: &[WindowMeasure],
        after: &[WindowMeasure],
    ) -> Option<Self> {
        let expected = expected?;
        let measure = |(it, before): (&ExpectedWindow, &WindowMeasure)| WindowMeasure {
            wakeups: wakeups_per_unit(it.wakeups, before.units),
            locality: it.locality,
            ..*before
        };
        let expected: Vec<WindowMeasure> = expected.iter().zip(before).map(measure).collect();
        Some(Self {
            wakeups: compare(&expected, after, |measure| measure.wakeups.ln())?.exp(),
            locality: compare(&expected, after, |measure| measure.locality)?,
        })
    }
}

impl Measures {
    /// What the counts prove, regardless of the CPU time; `None` if nothing.
    pub(super) fn by_counts(&self) -> Option<MeasuredEffect> {
        if self.is_locality_lost() {
            return Some(MeasuredEffect::Worse);
        }
        match self.wakeups {
            Some(BeforeAfter { low, .. }) if low > WAKEUPS => Some(MeasuredEffect::Worse),
            Some(BeforeAfter { high, .. }) if high < 1.0 / WAKEUPS => Some(MeasuredEffect::Better),
            _ => self.is_missed().then_some(MeasuredEffect::Worse),
        }
    }

    fn is_locality_lost(&self) -> bool {
        self.locality.is_some_and(|it| it.high < -LOST_LOCALITY)
    }

    /// Whether the plan predicted better counts, and beyond doubt neither count improved by half of
    /// the prediction. Fewer than [`READERS_MOVED`] of the readers may have moved: an improvement
    /// that their move could have removed proves nothing.
    fn is_missed(&self) -> bool {
        let Some(ExpectedAndMeasured { wakeups, locality }) = &self.expectation else {
            return false;
        };
        let near = self.locality.map(|it| locality.before - it.before);
        let near = near.filter(|expected| *expected > LOST_LOCALITY);
        let near = near.map(|expected| locality.high < -(expected / 2.0).max(READERS_MOVED));
        let fewer = self.wakeups.map(|it| it.before / wakeups.before);
        let fewer = fewer.filter(|expected| *expected > WAKEUPS);
        let fewer = fewer.map(|expected| wakeups.low > expected.sqrt().max(WAKEUPS));
        match (near, fewer) {
            (None, None) => false,
            (near, fewer) => near.unwrap_or(true) && fewer.unwrap_or(true),
        }
    }
}

/// The measures of a window on the CPUs of a verification.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowMeasure {
    /// CPU-nanoseconds per unit of work.
    pub(super) cost: f64,
    /// Units per second.
    pub(super) units: f64,
    /// Wakeups across CPUs per unit of work.
    pub(super) wakeups: f64,
    pub(super) locality: f64,
}

/// Adds half a wakeup, because 0 has no logarithm.
fn wakeups_per_unit(per_s: f64, units: f64) -> f64 {
    (per_s + 0.5) / units
}

impl WindowMeasure {
    pub(super) fn new(sample: &Sample, work: WorkKind, cpus: &CpuSet) -> Option<Self> {
        let (done, near) = sample.done(work, cpus);
        let (cost, units) = (sample.cost(cpus), done / work.unit());
        (done > 0.0 && cost > 0.0).then(|| Self {
            cost: cost / units,
            units,
            wakeups: wakeups_per_unit(sample.remote_wakeups(cpus), units),
            locality: near / done,
        })
    }
}

pub(super) fn compare(
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
    /// Converts means and a ratio from their logarithms.
    pub(super) fn exp(self) -> Self {
        let Self { before, after, low, high, .. } = self;
        Self { before: before.exp(), after: after.exp(), low: low.exp(), high: high.exp(), ..self }
    }
}

pub(super) fn in_words(effect: MeasuredEffect, work: WorkKind, measures: &Measures) -> String {
    let Measures { cost, wakeups, locality, expectation } = measures;
    let unit = work.unit_costs();
    let by_cost = cost.low > 1.0 || cost.high < 1.0;
    let change = match effect {
        MeasuredEffect::Better if by_cost => format!("{unit} less"),
        MeasuredEffect::Better => "fewer wakeups across cpus".to_owned(),
        MeasuredEffect::Worse if by_cost => format!("{unit} more"),
        MeasuredEffect::Worse if measures.is_locality_lost() && work == WorkKind::Read => {
            "data is no longer read under the cache where it arrives, without any gain".into()
        }
        MeasuredEffect::Worse if measures.is_locality_lost() => {
            "transmissions are no longer completed under the cache where packets arrive, and \
             nothing is gained"
                .into()
        }
        MeasuredEffect::Worse if wakeups.is_some_and(|it| it.low > WAKEUPS) => {
            "more wakeups across cpus, and nothing is gained".to_owned()
        }
        MeasuredEffect::Worse => {
            "the expected improvement did not come, and nothing is gained".to_owned()
        }
        MeasuredEffect::NoDifference | MeasuredEffect::Unknown if work == WorkKind::Read => {
            "no difference shown".to_owned()
        }
        MeasuredEffect::NoDifference | MeasuredEffect::Unknown => {
            format!("no difference shown: {unit}")
        }
    };
    let woken = wakeups.filter(|it| it.before.max(it.after) >= 1.0).map(|it| {
        let expected = expectation.as_ref();
        let expected = expected.map(|it| format!(" (expected {:.0})", it.wakeups.before));
        let expected = expected.unwrap_or_default();
        format!("; {:.0} -> {:.0} wakeups across cpus{expected}", it.before, it.after)
    });
    let near = locality.map(|it| {
        let expected = expectation.as_ref();
        let expected = expected.map(|it| format!(" (expected {:.0}%)", it.locality.before * 100.0));
        let expected = expected.unwrap_or_default();
        let (before, after) = (it.before * 100.0, it.after * 100.0);
        format!("; {before:.0}% -> {after:.0}% of it on one llc{expected}")
    });
    format!(
        "{change}: {}{}{}",
        interval_in_words(cost),
        woken.unwrap_or_default(),
        near.unwrap_or_default()
    )
}

/// Formats `1.20 -> 1.10 ms of cpu time, -12% to -4% (99%, 2 windows before, 6 after)`.
pub(super) fn interval_in_words(cost: &BeforeAfter) -> String {
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
