//! `netsilo tune`: tries placements and knobs in a race, and keeps the winner.
//!
//! `args` has the arguments. `candidates` observes the machine and makes the candidates. `meter`
//! measures one window. `search` runs the race; `netsilo-trial` makes its decisions. `folder` keeps
//! its records. `kthreads` finds kthreads that were replaced. `keep_outcome` stores the outcome for
//! `plan`, and `kept_outcomes` lists and removes outcomes. May use `verbs`, for the measurement it
//! shares with `ab`, and `runs`. No number is computed here.

mod args;
mod candidates;
mod folder;
mod keep_outcome;
pub(crate) mod kept_outcomes;
mod kthreads;
mod meter;
mod search;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netsilo_trial::race::{Race, RacePlan, RaceResult};

use crate::runs::{as_found, writes};
use crate::tell::consent::{self, confirmed_by_user};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::versioned::Versioned;
use crate::tell::words::plural;
use crate::temporary_changes::TemporaryChanges;
pub(crate) use crate::tune::args::Args;
use crate::tune::candidates::Field;
use crate::tune::folder::Folder;
use crate::tune::meter::Meter;
use crate::tune::search::Search;
use crate::views::tune::{TuneResult, candidates as listed, render};

/// Makes or reads the plan of a race, runs it, and keeps the winner. Or lists or removes outcomes.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.kept.outcomes {
        return kept_outcomes::list(&args.outcomes_dir, args.json);
    }
    if let Some(which) = &args.kept.forget {
        return kept_outcomes::forget(&args.outcomes_dir, which);
    }
    let (stop, asking) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        // while the question is open nothing needs to be restored, so a signal may end the program
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&asking))
            .context("cannot await signals")?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    if let Some(dir) = &args.resume {
        return resume(args, dir, &stop, &asking);
    }
    let objective = args.objective()?;
    ensure_positive(args)?;
    let mut field = candidates::field(args, objective, &stop)?;
    if args.dry_run {
        return dry_run(args, &field);
    }
    if stop.load(Ordering::Relaxed) {
        return Err(ExitError(Exit::Refused, "interrupted: nothing was written".into()).into());
    }
    let plan = candidates::plan(args, objective, &mut field)?;
    if !args.json || !args.yes {
        out::proposal(&listed(&field.listing()).into(), args.json);
    }
    agree(args, &plan, plan.rules.turns, args.scope.even_if_owned, &asking)?;
    let folder = args.output.as_deref().map(|dir| Folder::create(dir, &plan)).transpose()?;
    let race = Race::new(plan.rules, plan.candidates.len());
    search(args, &plan, race, folder, args.budget, &stop)
}

fn ensure_positive(args: &Args) -> Result<()> {
    for (name, time) in [("--for", args.budget), ("--window", args.window)] {
        if time < meter::PEEK / 5 {
            let least = humantime::format_duration(meter::PEEK / 5);
            return Err(ExitError(Exit::Usage, format!("{name} must be at least {least}")).into());
        }
    }
    Ok(())
}

fn dry_run(args: &Args, field: &Field) -> Result<Exit> {
    if args.json {
        out::json(&Versioned::first(field.listing()))?
    } else {
        out::text(&listed(&field.listing()))
    }
    Ok(Exit::Printed)
}

/// Asks for consent. Fails if the answer is no.
fn agree(
    args: &Args,
    plan: &RacePlan,
    turns: usize,
    even_if_owned: bool,
    asking: &AtomicBool,
) -> Result<()> {
    consent::refuse(&writes(&plan.candidates, even_if_owned), &args.state.root()?)?;
    let question = format!(
        "try {} in at most {}, restore each, and keep the winner",
        plural(plan.candidates.len() - 1, "candidate"),
        plural(turns, "window")
    );
    asking.store(true, Ordering::Relaxed);
    let agreed = args.yes || confirmed_by_user(&question)?;
    asking.store(false, Ordering::Relaxed);
    if !agreed {
        return Err(ExitError(Exit::Refused, "nothing was written".into()).into());
    }
    Ok(())
}

/// Continues a race. If it had already ended, applies its winner.
fn resume(args: &Args, dir: &Path, stop: &AtomicBool, asking: &AtomicBool) -> Result<Exit> {
    let (folder, plan, race) = Folder::open(dir, args.trust)?;
    candidates::is_this_machine(&plan)?;
    as_found(&args.state, &plan.candidates)?;
    let left = plan.rules.turns.saturating_sub(race.turns());
    agree(args, &plan, left, args.scope.even_if_owned, asking)?;
    let share = left as f64 / plan.rules.turns as f64;
    search(args, &plan, race, Some(folder), plan.budget.mul_f64(share), stop)
}

/// Runs the race, keeps the winner and prints the result.
fn search(
    args: &Args,
    plan: &RacePlan,
    race: Race,
    folder: Option<Folder>,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Exit> {
    let meter = Meter::start(plan, stop)?;
    let mut temporary = TemporaryChanges::new(&args.state, meter.longest_window())?;
    let dir = folder.as_ref().map(|folder| folder.path().to_owned());
    let search = Search { plan, race, meter, folder, until: Instant::now() + time, stop };
    let ended = search.run(&mut temporary);
    // a failed restore is reported before a failed measurement
    temporary.restore()?;
    let race = ended?;
    let interrupted = stop.load(Ordering::Relaxed);
    let mut plan = plan.clone();
    for candidate in &mut plan.candidates {
        candidate.changes = kthreads::present_kthreads(&candidate.changes)?;
    }
    let kept = match race.result() {
        RaceResult::Won { candidate, .. } if !interrupted => {
            temporary.replace(&plan.candidates[candidate].changes)?;
            if args.restore { None } else { Some(keep(&mut temporary)?) }
        }
        _ => None,
    };
    let result = TuneResult::new(&plan, &race, interrupted, kept);
    if args.json {
        out::json(&result)?
    } else {
        out::text(&render(&result, &args.state.command("undo --last")))
    }
    if !interrupted {
        keep_outcome::keep_outcome(&args.outcomes_dir, &plan, &race);
    }
    // a winner that is not kept was in effect only to measure the outcome
    temporary.restore()?;
    if interrupted && let Some(dir) = dir {
        out::note(&format!("to continue: netsilo tune --resume {}", dir.display()));
    }
    Ok(if interrupted { Exit::Refused } else { Exit::Done })
}

/// Confirms the winner, which is fully written, as one transaction. Returns its number.
fn keep(temporary: &mut TemporaryChanges<'_>) -> Result<u64> {
    let kept = temporary.keep()?;
    kept.context("the guard undid the winner's changes before they could be confirmed")
}
