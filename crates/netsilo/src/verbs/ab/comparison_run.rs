//! One comparison. Measures pairs until the question is answered, then restores everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_decide::plan::Plan;
use netsilo_trial::comparison::{Comparison, ComparisonSpec, Conclusion, Pair, Scale};
use netsilo_trial::stats::sequential::Rules;
use netsilo_trial::workload::WorkloadMeasure;

use crate::args::look;
use crate::args::state_dir::StateDir;
use crate::tell::exit::{Exit, ExitError};
use crate::verbs::ab::measurement::{Measurement, NoValue};
use crate::verbs::ab::sides::{Side, Sides};
use crate::views;

/// How much longer than planned a setting may be in effect.
const MARGIN: Duration = Duration::from_secs(30);

pub(super) fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// One comparison of two settings.
pub(super) struct ComparisonRun<'a> {
    pub(super) question: ComparisonSpec,
    pub(super) warm_up: usize,
    pub(super) settle: Duration,
    pub(super) stop: &'a AtomicBool,
}

impl ComparisonRun<'_> {
    /// Measures pairs until the question is answered or `stop` is set, then restores everything
    /// that it wrote.
    pub(super) fn run(
        &self,
        plans: [Option<Plan>; 2],
        state: &StateDir,
        measurement: &mut Measurement,
    ) -> Result<Comparison> {
        // a setting may be measured twice in a row
        let longest = self.settle + 2 * measurement.longest() + MARGIN;
        let mut sides = Sides::new(plans, state, longest)?;
        let bar = self.progress();
        let measured = self.measure(&mut sides, measurement, &bar);
        bar.finish_and_clear();
        // a failed restore is reported before a failed measurement
        sides.switch_to(Side::Initial)?;
        Ok(self.question.compare(&measured?))
    }

    fn measure(
        &self,
        sides: &mut Sides<'_>,
        measurement: &mut Measurement,
        bar: &ProgressBar,
    ) -> Result<Vec<Pair>> {
        let mut coin = fastrand::Rng::with_seed(self.question.seed);
        let mut pairs = Vec::new();
        let mut warming = self.warm_up;
        while !self.question.is_answered(&pairs) {
            let b_first = coin.bool();
            let mut value = |side: Side| -> Result<Option<f64>> {
                if sides.switch_to(side)? {
                    look::wait_unless_stopped(self.settle, self.stop);
                }
                measurement.value(self.stop)
            };
            let (first, second) = if b_first { (Side::B, Side::A) } else { (Side::A, Side::B) };
            let (Some(first), Some(second)) = (value(first)?, value(second)?) else { break };
            if warming > 0 {
                warming -= 1;
                continue;
            }
            let (a, b) = if b_first { (second, first) } else { (first, second) };
            if self.question.scale == Scale::Ratio && !(a > 0.0 && b > 0.0) {
                anyhow::bail!(
                    "{a} and {b} cannot be compared by their ratio: \
                     the command must print numbers above 0"
                );
            }
            pairs.push(Pair { a, b, b_first });
            bar.set_position(pairs.len() as u64);
            if self.question.rules.looks().contains(&pairs.len()) && !bar.is_hidden() {
                bar.set_message(views::ab::so_far(
                    &self.question.compare(&pairs),
                    self.question.scale,
                ));
            }
        }
        Ok(pairs)
    }

    /// Bar on stderr: pairs measured, maximum time left, interval so far.
    fn progress(&self) -> ProgressBar {
        let style = ProgressStyle::with_template(
            "pair {pos} of at most {len} {wide_bar} at most {eta} left  {msg}",
        );
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(self.question.rules.max_pairs as u64).with_style(style)
    }
}

/// Measures the live workload with and without a plan, and restores everything. Returns `None` if
/// nothing was received, because then there is nothing to compare.
pub(crate) fn verify(
    plan: &Plan,
    state: &StateDir,
    window: Duration,
) -> Result<Option<Comparison>> {
    let measure = WorkloadMeasure::CpuPerMegabyte;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    let mut measurement = Measurement::Workload { measure, window };
    let rules = Rules { max_pairs: 12, smallest_relevant: 0.02, ..Rules::default() };
    let question =
        ComparisonSpec { rules, scale: measure.scale(), better: measure.better(), seed: clock() };
    let trial = ComparisonRun { question, warm_up: 0, settle: window / 4, stop: &stop };
    let comparison = match trial.run([None, Some(plan.clone())], state, &mut measurement) {
        Err(error) if error.downcast_ref().is_some_and(NoValue::because_nothing_was_received) => {
            return Ok(None);
        }
        other => other?,
    };
    if stop.load(Ordering::Relaxed) {
        return Err(ExitError(Exit::Refused, "interrupted: everything is restored".into()).into());
    }
    Ok(Some(comparison))
}

/// Describes a verification in one line. Also returns `false` if the plan made the workload worse.
pub(crate) fn verification_line(comparison: Option<&Comparison>) -> (String, bool) {
    let Some(comparison) = comparison else {
        return ("not verified: nothing is received, so nothing can be compared".into(), true);
    };
    let words =
        format!("CPU time per received megabyte: {}", views::ab::verdict(comparison, Scale::Ratio));
    (words, comparison.verdict != Conclusion::Worse)
}
