//! `netsilo plan`: prints what `apply` would write, and why.

use anyhow::Result;
use netsilo_decide::plan::{Plan, RefusalCause};

use crate::args::plan::PlanArgs;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::views;

/// Arguments of `netsilo plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    make: PlanArgs,
    /// Exit with 10 if there are changes to make
    #[arg(long)]
    detailed_exitcode: bool,
    /// Also print what each queue costs there, and on the CPUs that were not chosen
    #[arg(short, long)]
    verbose: bool,
    /// Print the plan as JSON, as `netsilo apply --plan` reads it
    #[arg(short, long)]
    json: bool,
}

/// Observes, plans and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let plan = args.make.plan()?;
    if args.json {
        out::json(&plan)?;
    } else {
        out::text(&views::plan::render(&plan))?;
        if args.verbose {
            out::text(&views::plan::alternatives(&plan))?;
        }
    }
    Ok(exit(&plan, args.detailed_exitcode))
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
        Exit::Ok
    }
}
