//! `netsilo ab`: switches between two settings, measures both repeatedly, and reports whether they
//! differ.

mod settings;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_decide::plan::Plan;
use netsilo_stats::sequential::Rules;
use netsilo_trial::comparison::{Better, Comparison, ComparisonSpec, Conclusion, Pair, Scale};
use netsilo_trial::workload::WorkloadMeasure;
use serde::Serialize;
use settings::{Side, Sides};
use source::{Nothing, Source};

use crate::args::look;
use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::verbs::apply::{Place, agreed, count, refuse_owned};
use crate::verbs::plan::GoalArgs;
use crate::views;

pub(crate) use settings::Setting;

/// Arguments of `netsilo ab`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Setting A: none, plan, plan:ALGORITHM, or a file printed by plan --json
    #[arg(long, value_name = "SETTING", default_value = "none")]
    a: Setting,
    /// Setting B, written like --a
    #[arg(long, value_name = "SETTING", default_value = "plan")]
    b: Setting,
    /// What to measure in the live workload when no COMMAND is given: cpu-per-megabyte, locality,
    /// ipis-per-packet, softirqs-per-packet, or runqueue-latency (99th percentile of how long
    /// threads that read sockets wait for a cpu while runnable)
    #[arg(
        long,
        value_name = "MEASURE",
        default_value = "cpu-per-megabyte",
        value_parser = measure,
        conflicts_with = "command"
    )]
    measure: WorkloadMeasure,
    /// Length of each measurement of the live workload
    #[arg(
        long,
        value_name = "TIME",
        default_value = "2s",
        value_parser = humantime::parse_duration
    )]
    each: Duration,
    /// Measure at most this many pairs; stop earlier when the result is clear or out of reach
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pairs: u16,
    /// Measure this many pairs first and do not count them
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u16,
    /// Wait this long after each switch before measuring
    #[arg(
        long,
        value_name = "TIME",
        default_value = "500ms",
        value_parser = humantime::parse_duration
    )]
    settle: Duration,
    /// Smallest difference that matters; smaller ones count as none
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent)]
    matters: f64,
    /// Treat the command's number as a cost: lower is better
    #[arg(long, requires = "command")]
    lower_is_better: bool,
    /// Seed of the random order of A and B in each pair [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write without asking first
    #[arg(short, long)]
    yes: bool,
    /// Print the comparison as JSON
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    look: look::Live,
    #[command(flatten)]
    place: Place,
    /// Command that prints a number, for example a load against this machine; its last word that
    /// is a number counts
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn measure(text: &str) -> Result<WorkloadMeasure, String> {
    let known = WorkloadMeasure::ALL.into_iter().find(|measure| measure.as_str() == text);
    known.ok_or_else(|| {
        format!("known are {}", WorkloadMeasure::ALL.map(WorkloadMeasure::as_str).join(", "))
    })
}

/// Parses a percentage as a share from 0 to 1: `1%`, `0.5 %`, `2`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim().parse::<f64>();
    number
        .ok()
        .filter(|it| (0.0..100.0).contains(it))
        .map(|it| it / 100.0)
        .ok_or_else(|| "write a percentage (1%)".into())
}

/// The result of a comparison as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Told<'a> {
    pub(crate) schema: u32,
    pub(crate) a: &'a Setting,
    pub(crate) b: &'a Setting,
    pub(crate) measured: String,
    /// Unit of the measured numbers: `ns`, or `None` when unknown.
    pub(crate) unit: Option<&'static str>,
    pub(crate) question: ComparisonSpec,
    pub(crate) interrupted: bool,
    #[serde(flatten)]
    pub(crate) comparison: &'a Comparison,
}

/// Plans both settings, asks, compares them and prints the result.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let plans = plans(args)?;
    let writes = plans.iter().flatten().map(|plan| plan.changes.len()).sum();
    if !args.json {
        for (name, plan) in ["A", "B"].into_iter().zip(&plans) {
            if let Some(plan) = plan {
                out::text(&format!("{name}:\n{}", views::plan::render(plan)))?;
            }
        }
    }
    if writes == 0 {
        let message = "neither setting changes anything: there is nothing to compare";
        return Err(Stop(Exit::Refused, message.into()).into());
    }
    for plan in plans.iter().flatten() {
        refuse_owned(plan, &args.place)?;
    }
    if !args.yes && !agreed(&format!("write and restore {} in each pair", count(writes, "change")))?
    {
        out::note("nothing was written");
        return Ok(Exit::Refused);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    let mut source = match args.command.as_slice() {
        [] => Source::Workload { measure: args.measure, window: args.each },
        command => Source::Command(command.to_vec()),
    };
    let question = ComparisonSpec {
        rules: Rules {
            max_pairs: args.pairs.into(),
            smallest_relevant: args.matters,
            ..Rules::default()
        },
        scale: source.scale(),
        better: source.better(args.lower_is_better),
        seed: args.seed.unwrap_or_else(clock),
    };
    let trial = Trial { question, warm_up: args.warm_up.into(), settle: args.settle, stop: &stop };
    let comparison = trial.run(plans, &args.place, &mut source)?;
    let interrupted = stop.load(Ordering::Relaxed);
    let (a, b, measured, unit) = (&args.a, &args.b, source.to_string(), source.unit());
    let told =
        Told { schema: 1, a, b, measured, unit, question, interrupted, comparison: &comparison };
    if args.json {
        out::json(&told)?;
    } else {
        out::text(&views::ab::render(&told))?;
    }
    Ok(if interrupted { Exit::Refused } else { Exit::Ok })
}

/// Returns the plan of each setting; `None` for a setting that writes nothing.
fn plans(args: &Args) -> Result<[Option<Plan>; 2]> {
    let settings = [&args.a, &args.b];
    let looks = settings.iter().any(|setting| setting.needs_a_look());
    let look = args.look.unless_told(args.goal.interval());
    let seen = looks.then(|| look.observe_with(args.goal.options())).transpose()?;
    let [a, b] = settings.map(|setting| setting.plan(seen.as_ref(), &args.goal));
    Ok([a?, b?])
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// One comparison of two settings.
struct Trial<'a> {
    question: ComparisonSpec,
    warm_up: usize,
    settle: Duration,
    stop: &'a AtomicBool,
}

impl Trial<'_> {
    /// Measures pairs until the question is answered or `stop` is set, then restores everything
    /// that it wrote.
    fn run(
        &self,
        plans: [Option<Plan>; 2],
        place: &Place,
        source: &mut Source,
    ) -> Result<Comparison> {
        let mut sides = Sides::new(plans, place)?;
        let bar = self.progress();
        let measured = self.measure(&mut sides, source, &bar);
        bar.finish_and_clear();
        // a failed restore is reported before a failed measurement
        sides.to(Side::Nothing)?;
        Ok(self.question.compare(&measured?))
    }

    fn measure(
        &self,
        sides: &mut Sides<'_>,
        source: &mut Source,
        bar: &ProgressBar,
    ) -> Result<Vec<Pair>> {
        let mut coin = fastrand::Rng::with_seed(self.question.seed);
        let mut pairs = Vec::new();
        let mut warming = self.warm_up;
        while !self.question.is_answered(&pairs) {
            let b_first = coin.bool();
            let mut value = |side: Side| -> Result<Option<f64>> {
                if sides.to(side)? {
                    look::pass(self.settle, self.stop);
                }
                source.value(self.stop)
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

    /// Bar on stderr: pairs done, the longest time left, the interval so far.
    fn progress(&self) -> ProgressBar {
        let style = ProgressStyle::with_template(
            "pair {pos} of at most {len} {wide_bar} at most {eta} left  {msg}",
        );
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(self.question.rules.max_pairs as u64).with_style(style)
    }
}

/// Measures the live workload with and without a plan, and restores everything; `None` when
/// nothing was received, so that there is nothing to compare.
pub(crate) fn verify(plan: &Plan, place: &Place, window: Duration) -> Result<Option<Comparison>> {
    let measure = WorkloadMeasure::CpuPerMegabyte;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    let mut source = Source::Workload { measure, window };
    let rules = Rules { max_pairs: 12, smallest_relevant: 0.02, ..Rules::default() };
    let question =
        ComparisonSpec { rules, scale: measure.scale(), better: measure.better(), seed: clock() };
    let trial = Trial { question, warm_up: 0, settle: window / 4, stop: &stop };
    let comparison = match trial.run([None, Some(plan.clone())], place, &mut source) {
        Err(error) if error.downcast_ref().is_some_and(Nothing::was_received) => return Ok(None),
        other => other?,
    };
    if stop.load(Ordering::Relaxed) {
        return Err(Stop(Exit::Refused, "interrupted: nothing remains written".into()).into());
    }
    Ok(Some(comparison))
}

/// Describes a verification in one line; `false` if the plan made it worse.
pub(crate) fn verified(comparison: Option<&Comparison>) -> (String, bool) {
    let Some(comparison) = comparison else {
        return ("not verified: nothing is received, so nothing can be compared".into(), true);
    };
    let words =
        format!("CPU time per received megabyte: {}", views::ab::verdict(comparison, Scale::Ratio));
    (words, comparison.verdict != Conclusion::Worse)
}

/// The direction of a command's number, which only the user knows.
fn better_of(lower: bool) -> Better {
    if lower { Better::Lower } else { Better::Higher }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_percentage_is_read_with_or_without_its_sign() {
        assert_eq!(
            (super::percent("1%"), super::percent("0.5 %"), super::percent("2")),
            (Ok(0.01), Ok(0.005), Ok(0.02))
        );
        assert!(
            super::percent("-1").is_err()
                && super::percent("x").is_err()
                && super::percent("nan").is_err()
        );
    }
}
