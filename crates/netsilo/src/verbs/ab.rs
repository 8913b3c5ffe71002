//! `netsilo ab`: switches between two settings, measures both repeatedly, and reports whether they
//! differ.

pub(crate) mod comparison_run;
pub(crate) mod measurement;
mod sides;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;
use netsilo_trial::comparison::ComparisonSpec;
use netsilo_trial::stats::sequential::Rules;
use netsilo_trial::workload::WorkloadMeasure;

use crate::args::ab_setting::AbSetting;
use crate::args::goal::GoalArgs;
use crate::args::state_dir::StateDir;
use crate::args::{look, named};
use crate::tell::consent::{self, confirmed_by_user};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::styled::Styled;
use crate::tell::words::plural;
use crate::verbs::ab::comparison_run::{ComparisonRun, clock};
use crate::verbs::ab::measurement::Measurement;
use crate::views;
use crate::views::ab::AbResult;

/// Arguments of `netsilo ab`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Setting A: none, plan, plan:ALGORITHM, or a file printed by plan --json
    #[arg(long, value_name = "SETTING", default_value = "none")]
    a: AbSetting,
    /// Setting B, written like --a
    #[arg(long, value_name = "SETTING", default_value = "plan")]
    b: AbSetting,
    /// What to measure in the live workload if no COMMAND is given; runqueue-latency is the 99th
    /// percentile of how long threads that read sockets wait for a CPU while runnable
    #[arg(
        long,
        value_name = "MEASURE",
        default_value = "cpu-per-megabyte",
        value_parser = named::measures(),
        conflicts_with = "command"
    )]
    measure: WorkloadMeasure,
    /// Length of each measurement of the live workload
    #[arg(
        long,
        value_name = "TIME",
        default_value = "2s",
        value_parser = crate::args::parse::counting_time
    )]
    each: Duration,
    /// Measure at most this many pairs; stop earlier if the result is clear or out of reach
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pairs: u16,
    /// Measure this many pairs first and ignore them
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u16,
    /// Wait this long after each switch before measuring
    #[arg(
        long,
        value_name = "TIME",
        default_value = "500ms",
        value_parser = crate::args::parse::duration
    )]
    settle: Duration,
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
    look: look::LiveArgs,
    #[command(flatten)]
    state: StateDir,
    /// Command that prints a number, for example a load against this machine; the last number that
    /// it prints counts
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Plans both settings, asks, compares them and prints the result.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let plans = plans(args)?;
    let writes = plans.iter().flatten().map(|plan| plan.changes.len()).sum();
    if !args.json || !args.yes {
        for (name, plan) in ["A", "B"].into_iter().zip(&plans) {
            if let Some(plan) = plan {
                let mut shown = Styled::from(format!("{name}:\n"));
                shown.append(&views::plan::render(plan));
                out::proposal(&shown, args.json);
            }
        }
    }
    if writes == 0 {
        let message = "neither setting changes anything: there is nothing to compare";
        return Err(ExitError(Exit::Refused, message.into()).into());
    }
    let written: Vec<Plan> = plans.iter().flatten().cloned().collect();
    consent::refuse(&written, &args.state.root()?)?;
    if !args.yes
        && !confirmed_by_user(&format!(
            "write and restore {} in each pair",
            plural(writes, "change")
        ))?
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
    let mut measurement = match args.command.as_slice() {
        [] => Measurement::Workload { measure: args.measure, window: args.each },
        command => Measurement::Command(command.to_vec()),
    };
    let question = ComparisonSpec {
        rules: Rules { max_pairs: args.pairs.into(), ..Rules::default() },
        scale: measurement.scale(),
        better: measurement.better(args.lower_is_better),
        seed: args.seed.unwrap_or_else(clock),
    };
    let trial =
        ComparisonRun { question, warm_up: args.warm_up.into(), settle: args.settle, stop: &stop };
    let comparison = trial.run(plans, &args.state, &mut measurement)?;
    let interrupted = stop.load(Ordering::Relaxed);
    let (a, b, measured, unit) = (&args.a, &args.b, measurement.to_string(), measurement.unit());
    let result = AbResult {
        schema: 1,
        a,
        b,
        measured,
        unit,
        question,
        interrupted,
        comparison: &comparison,
    };
    if args.json {
        out::json(&result)?;
    } else {
        out::styled(&views::ab::render(&result));
    }
    Ok(if interrupted { Exit::Refused } else { Exit::Done })
}

/// Returns the plan of each setting, or `None` for a setting that writes nothing.
fn plans(args: &Args) -> Result<[Option<Plan>; 2]> {
    let settings = [&args.a, &args.b];
    let looks = settings.iter().any(|setting| setting.needs_observation());
    let look = args.look.with_default_interval(args.goal.interval());
    let seen = looks.then(|| look.observe_with(args.goal.options())).transpose()?;
    let [a, b] = settings.map(|setting| setting.plan(seen.as_ref(), &args.goal));
    Ok([a?, b?])
}
