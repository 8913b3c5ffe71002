//! `netsilo plan`: prints what `apply` would write, and why.

use anyhow::Result;
use netsilo_decide::plan::{Plan, RefusalCause};
use netsilo_model::change::Target;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::schema::NETSILO;
use netsilo_predict::live::claim::Claim;
use netsilo_predict::live::forecast::Forecast;
use netsilo_predict::live::proposal::Proposal;
use serde::Serialize;

use crate::args::plan::PlanArgs;
use crate::forecast::forecast_or_why;
use crate::ndjson::{self, Answer, WithForecast};
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::tell::versioned::Versioned;
use crate::views;

/// Arguments of `netsilo plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    make: PlanArgs,
    /// Exit with 10 if there are changes to make
    #[arg(long)]
    detailed_exitcode: bool,
    /// Also print the cost of each queue on its CPU, and on the CPUs that were not chosen
    #[arg(short, long)]
    verbose: bool,
    /// Also predict each CPU's time and what is saturated first (docs/predict.md); with --json and
    /// --ndjson, add the forecast
    #[arg(long)]
    predict: bool,
    /// Print the plan as JSON, in the form that `netsilo apply --plan` reads
    #[arg(short, long)]
    json: bool,
    /// Plan for each line of standard input, which is an observation (netsilo capture --ndjson) or
    /// the path of a bundle, and print one line of JSON for each
    #[arg(long, conflicts_with_all = [
        "detailed_exitcode", "verbose", "json", "from", "interval", "window", "no_bpf",
    ])]
    ndjson: bool,
}

/// Observes, plans and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.ndjson {
        let goal = args.make.goal_elsewhere()?;
        return ndjson::filter(|observation| {
            let analysis = Analysis::new(observation, &goal.costs);
            let answer = args.make.plan_elsewhere(&analysis, &goal);
            let wants = args.predict && !answer.changes.is_empty();
            let forecast = wants.then(|| predicted(&analysis, &answer).ok()).flatten();
            Answer::Plan(Box::new(WithForecast { answer, forecast }))
        });
    }
    let goal = args.make.goal()?;
    let observation = args.make.observe()?;
    let analysis = Analysis::new(&observation, &goal.costs);
    let plan = args.make.plan(&analysis, &goal)?;
    // Limits change nothing that a forecast considers.
    let places = plan.changes.iter().any(|change| !matches!(change.target, Target::Sysctl(_)));
    let predicts = args.predict || places && !args.json;
    let forecast = predicts.then(|| predicted(&analysis, &plan));
    if args.json {
        let forecast = forecast.and_then(|it| it.map_err(|why| out::note(&without(&why))).ok());
        out::json(&Versioned::first(PlanResult::new(&plan, forecast)))?;
        return Ok(exit(&plan, args.detailed_exitcode));
    }
    out::styled(&views::plan::render(&plan));
    if args.verbose {
        out::text(&views::plan::alternatives(&plan));
    }
    let presentation = Presentation::of_stdout();
    match forecast {
        Some(Ok(forecast)) if args.predict => {
            out::text("\n");
            out::styled(&views::forecast::render(&forecast, true, presentation));
        }
        Some(Ok(forecast)) => out::styled(&views::forecast::line(&forecast)),
        Some(Err(why)) => out::styled(&Styled::new(Meaning::Quiet, without(&why) + "\n")),
        None => (),
    }
    args.make.next(&plan).into_iter().for_each(|next| out::note(&next));
    Ok(exit(&plan, args.detailed_exitcode))
}

/// Prints a plan that is not to be written.
pub(crate) fn print(plan: &Plan, json: bool) -> Result<Exit> {
    if json {
        out::json(&Versioned::first(PlanResult::new(plan, None)))?;
    } else {
        out::styled(&views::plan::render(plan));
    }
    Ok(exit(plan, false))
}

/// A plan as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PlanResult<'a> {
    /// Version of netsilo.
    netsilo: &'static str,
    #[serde(flatten)]
    plan: &'a Plan,
    /// With `--predict`: what the plan would do to the observed load.
    #[serde(skip_serializing_if = "Option::is_none")]
    forecast: Option<Forecast>,
}

impl<'a> PlanResult<'a> {
    /// The form of a plan that `apply --plan` reads.
    pub(crate) fn new(plan: &'a Plan, forecast: Option<Forecast>) -> Self {
        Self { netsilo: NETSILO, plan, forecast }
    }
}

/// What the plan would do to the observed load. The error is the reason why there is too little
/// data.
fn predicted(analysis: &Analysis<'_>, plan: &Plan) -> Result<Forecast, String> {
    forecast_or_why(analysis, &[Proposal::new("plan", analysis.after(), &plan.changes)])
}

/// The forecast of a plan that clearly hurts.
pub(crate) fn predicted_loss(analysis: &Analysis<'_>, plan: &Plan) -> Option<String> {
    let forecast = predicted(analysis, plan).ok()?;
    let changed = forecast.settings.last().filter(|it| it.claim == Some(Claim::Hurt))?;
    Some(changed.gain?.percent_range())
}

/// Why a plan has no forecast.
fn without(why: &str) -> String {
    format!("no forecast: {why}")
}

/// Returns the exit code of a verb that only makes this plan.
pub(crate) fn exit(plan: &Plan, detailed: bool) -> Exit {
    let refused =
        |cause: fn(RefusalCause) -> bool| plan.refusals.iter().any(|refusal| cause(refusal.cause));
    if plan.changes.is_empty() && refused(|cause| cause == RefusalCause::OtherOwner) {
        Exit::OtherOwner
    } else if plan.changes.is_empty() && refused(|_| true) {
        Exit::Refused
    } else if !plan.changes.is_empty() && detailed {
        Exit::ChangesPending
    } else {
        Exit::Printed
    }
}
