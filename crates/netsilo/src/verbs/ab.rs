//! `netsilo ab`: switches between two settings, measures each again and again, and says whether it
//! makes a difference.

mod settings;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_decide::plan::Plan;
use netsilo_stats::sequential::Rules;
use netsilo_trial::comparison::{Better, Comparison, Pair, Question, Scale, Verdict};
use netsilo_trial::workload::Measure;
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
    /// What B is compared with: none, plan, plan:ALGORITHM, or a plan as printed by plan --json
    #[arg(long, value_name = "SETTING", default_value = "none")]
    a: Setting,
    /// The same for B
    #[arg(long, value_name = "SETTING", default_value = "plan")]
    b: Setting,
    /// What to measure of the live workload, without a command: cpu-per-megabyte, locality,
    /// ipis-per-packet, softirqs-per-packet, runqueue-latency (the 99th percentile of how long
    /// threads that read sockets wait, runnable, for a cpu)
    #[arg(long, value_name = "MEASURE", default_value = "cpu-per-megabyte", value_parser = measure, conflicts_with = "command")]
    measure: Measure,
    /// How long each look at the live workload takes
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    each: Duration,
    /// Pairs at most; it stops before when it is clear or hopeless
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: u16,
    /// Pairs that are measured first and do not count
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u16,
    /// Wait so long after each switch
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// A difference below this does not matter
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent)]
    matters: f64,
    /// The command's number is a cost
    #[arg(long, requires = "command")]
    lower_is_better: bool,
    /// Where the random numbers begin that put each pair in order [default: the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Do not ask
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
    /// A command that prints a number, the last word that is one; a load against this machine, for
    /// example
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn measure(text: &str) -> Result<Measure, String> {
    let known = Measure::ALL.into_iter().find(|measure| measure.as_str() == text);
    known.ok_or_else(|| format!("known are {}", Measure::ALL.map(Measure::as_str).join(", ")))
}

/// `1%`, `0.5 %`, `2`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim().parse::<f64>();
    number
        .ok()
        .filter(|it| (0.0..100.0).contains(it))
        .map(|it| it / 100.0)
        .ok_or_else(|| "write a percentage (1%)".into())
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Told<'a> {
    pub(crate) version: u32,
    pub(crate) a: &'a Setting,
    pub(crate) b: &'a Setting,
    pub(crate) measured: String,
    /// Of its numbers: `ns`, or none.
    pub(crate) unit: Option<&'static str>,
    pub(crate) question: Question,
    pub(crate) interrupted: bool,
    #[serde(flatten)]
    pub(crate) comparison: &'a Comparison,
}

/// Plans, asks, compares, prints.
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
    if !args.yes
        && !agreed(&format!("write and take back {} for each pair", count(writes, "change")))?
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
    let question = Question {
        rules: Rules { most: args.pairs.into(), matters: args.matters, ..Rules::default() },
        scale: source.scale(),
        better: source.better(args.lower_is_better),
        seed: args.seed.unwrap_or_else(clock),
    };
    let trial = Trial { question, warm_up: args.warm_up.into(), settle: args.settle, stop: &stop };
    let comparison = trial.run(plans, &args.place, &mut source)?;
    let interrupted = stop.load(Ordering::Relaxed);
    let (a, b, measured, unit) = (&args.a, &args.b, source.to_string(), source.unit());
    let told =
        Told { version: 1, a, b, measured, unit, question, interrupted, comparison: &comparison };
    if args.json {
        out::json(&told)?;
    } else {
        out::text(&views::ab::render(&told))?;
    }
    Ok(if interrupted { Exit::Refused } else { Exit::Ok })
}

/// The plan of each setting; none where nothing is to be written.
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

/// How two settings are tried.
struct Trial<'a> {
    question: Question,
    warm_up: usize,
    settle: Duration,
    stop: &'a AtomicBool,
}

impl Trial<'_> {
    /// Measures pairs until the question is answered, or it is told to stop. At the end nothing of
    /// it is left.
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
        // what could not be restored is worse news than what could not be measured
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
                    "{a} and {b} cannot be compared by their ratio: the command must print numbers above 0"
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

    /// Pairs done on stderr, the time that all of them would still take, and what they say so far.
    fn progress(&self) -> ProgressBar {
        let style = ProgressStyle::with_template(
            "pair {pos} of at most {len} {wide_bar} at most {eta} left  {msg}",
        );
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(self.question.rules.most as u64).with_style(style)
    }
}

/// Whether a plan makes it worse: switches it on and off for a while under the live workload, and
/// leaves it off. `None` where nothing is received, so that nothing can be told.
pub(crate) fn verify(plan: &Plan, place: &Place, window: Duration) -> Result<Option<Comparison>> {
    let measure = Measure::CpuPerMegabyte;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    let mut source = Source::Workload { measure, window };
    let rules = Rules { most: 12, matters: 0.02, ..Rules::default() };
    let question =
        Question { rules, scale: measure.scale(), better: measure.better(), seed: clock() };
    let trial = Trial { question, warm_up: 0, settle: window / 4, stop: &stop };
    let comparison = match trial.run([None, Some(plan.clone())], place, &mut source) {
        Err(error) if error.downcast_ref().is_some_and(Nothing::was_received) => return Ok(None),
        other => other?,
    };
    if stop.load(Ordering::Relaxed) {
        return Err(Stop(Exit::Refused, "interrupted: all is as before".into()).into());
    }
    Ok(Some(comparison))
}

/// What a verification showed, in a line; whether the plan may stay.
pub(crate) fn verified(comparison: Option<&Comparison>) -> (String, bool) {
    let Some(comparison) = comparison else {
        return ("not verified: nothing is received, so nothing can be compared".into(), true);
    };
    let words =
        format!("a received megabyte's cpu time: {}", views::ab::verdict(comparison, Scale::Ratio));
    (words, comparison.verdict != Verdict::Worse)
}

/// Whether higher is better, where only the source knows.
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
