//! Writing what the controller decided, through the same transaction as `apply`, and telling it
//! what became of it.

use std::path::Path;
use std::time::Duration;

use netsilo_core::change::{Change, Target};
use netsilo_core::controller::WriteOutcome;
use netsilo_sys::apply::{ApplyError, Drift, Options, WriteError, apply_for};
use netsilo_sys::journal;
use netsilo_sys::kernel::Kernel;
use netsilo_sys::knob::KnobError;
use netsilo_sys::transaction::{By, Origin};
use netsilo_sys::undo::{Which, undo};

/// What became of a batch of writes.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Knob by knob; those of which nothing is said were not tried.
    pub(crate) outcomes: Vec<(Target, WriteOutcome)>,
    /// Why no more was tried.
    pub(crate) stopped: Option<Stopped>,
}

/// Why a batch was not written to its end.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The right to write is missing.
    NoPermission(String),
    /// Not now.
    NotNow(String),
}

/// Writes changes as transactions of the daemon's: one, unless some of the knobs stand in the way
/// of the others.
pub(crate) fn write(kernel: &dyn Kernel, dir: &Path, mut changes: Vec<Change>) -> Batch {
    let mut batch = Batch::default();
    while !changes.is_empty() {
        let before = batch.outcomes.len();
        let mut options =
            Options { confirm_within: None, start_guard: &mut |_| Ok(()), wait: Duration::ZERO };
        match apply_for(Origin::Daemon, kernel, dir, &changes, &mut options, &mut |_| {}) {
            Ok(applied) => {
                let said = |target: &Target| {
                    applied.settled.iter().find(|(it, _)| it == target).map(|(_, value)| value)
                };
                for change in &changes {
                    let value = said(&change.target).unwrap_or(&change.new).clone();
                    batch.outcomes.push((change.target.clone(), WriteOutcome::InForce(value)));
                }
                for (target, now) in applied.overwritten {
                    batch.outcomes.retain(|(it, _)| *it != target);
                    batch.outcomes.push((target, WriteOutcome::Overwritten(now)));
                }
                return batch;
            }
            Err(ApplyError::Drifted(drifts)) => {
                batch.outcomes.extend(drifts.into_iter().map(drifted))
            }
            Err(ApplyError::Restored { why: WriteError::Knob(error), .. }) => {
                batch.outcomes.push(refused(&error))
            }
            Err(error) => {
                batch.stopped = Some(stopped(&error));
                return batch;
            }
        }
        // Without those that failed; each round leaves at least one out.
        changes.retain(|change| {
            !batch.outcomes[before..].iter().any(|(target, _)| *target == change.target)
        });
        if batch.outcomes.len() == before {
            return batch;
        }
    }
    batch
}

fn drifted(drift: Drift) -> (Target, WriteOutcome) {
    match drift {
        Drift::Changed { target, now, .. } => (target, WriteOutcome::Overwritten(now)),
        Drift::Unreadable(error) => refused(&error),
    }
}

fn refused(error: &KnobError) -> (Target, WriteOutcome) {
    let written =
        if error.is_gone() { WriteOutcome::Gone } else { WriteOutcome::Refused(error.to_string()) };
    (error.target().clone(), written)
}

fn stopped(error: &ApplyError) -> Stopped {
    match error {
        ApplyError::NoPermission(_) => Stopped::NoPermission(error.to_string()),
        ApplyError::Journal(journal) if journal.is_permission() => {
            Stopped::NoPermission(error.to_string())
        }
        _ => Stopped::NotNow(error.to_string()),
    }
}

/// Restores what an earlier writer left half written, unless its guard will; what was done, in
/// words.
pub(crate) fn recover(kernel: &dyn Kernel, dir: &Path) -> anyhow::Result<Option<String>> {
    let transactions =
        journal::look(kernel, dir)?.map(|history| history.transactions).unwrap_or_default();
    let unfinished =
        transactions.iter().find(|it| it.is_unfinished() && it.awaits_confirmation().is_none());
    let Some(id) = unfinished.map(|it| it.id) else { return Ok(None) };
    let undone = undo(kernel, dir, Which::Only(id), false, By::Daemon, &mut |_, _| {})?;
    let left: Vec<String> =
        undone.iter().flat_map(|it| it.failures()).map(ToString::to_string).collect();
    let words = format!("transaction {id} was written half and is restored");
    Ok(Some(if left.is_empty() { words } else { format!("{words}, but for {}", left.join(", ")) }))
}
