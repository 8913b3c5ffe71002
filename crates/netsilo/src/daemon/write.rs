//! Writes what the controller decided, through the same transaction as `apply`. Returns the result
//! of each write.

use std::path::Path;
use std::time::Duration;

use netsilo_decide::control::WriteResult;
use netsilo_model::change::{Change, Target};
use netsilo_sys::transaction::apply::{
    ApplyError, Drift, TransactionOptions, WriteError, apply_for,
};
use netsilo_sys::transaction::journal;
use netsilo_sys::transaction::kernel::Kernel;
use netsilo_sys::transaction::knob::KnobError;
use netsilo_sys::transaction::record::{Origin, RestoredBy};
use netsilo_sys::transaction::undo::{UndoScope, undo};

/// The results of a batch of writes.
#[derive(Debug, Default)]
pub(crate) struct BatchResult {
    /// Result of each knob. A knob without a result was not tried.
    pub(crate) results: Vec<(Target, WriteResult)>,
    /// Why the batch ended early.
    pub(crate) stopped: Option<Stopped>,
}

/// Why a batch ended early.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// A privilege is missing.
    NoPermission(String),
    /// A later window may try again.
    NotNow(String),
}

/// Writes changes as one transaction of the daemon. If some knobs fail, the others are written
/// without them, in further transactions.
pub(crate) fn write(kernel: &dyn Kernel, dir: &Path, mut changes: Vec<Change>) -> BatchResult {
    let mut batch = BatchResult::default();
    while !changes.is_empty() {
        let before = batch.results.len();
        let mut options = TransactionOptions {
            confirm_within: None,
            start_guard: &mut |_| Ok(()),
            wait: Duration::ZERO,
        };
        match apply_for(Origin::Daemon, kernel, dir, &changes, &mut options, &mut |_| {}) {
            Ok(applied) => {
                let settled = |target: &Target| {
                    applied.settled.iter().find(|(it, _)| it == target).map(|(_, value)| value)
                };
                for change in &changes {
                    let value = settled(&change.target).unwrap_or(&change.new).clone();
                    batch.results.push((change.target.clone(), WriteResult::InEffect(value)));
                }
                for (target, now) in applied.overwritten {
                    batch.results.retain(|(it, _)| *it != target);
                    batch.results.push((target, WriteResult::Overwritten(now)));
                }
                return batch;
            }
            Err(ApplyError::Drifted(drifts)) => {
                batch.results.extend(drifts.into_iter().map(drifted))
            }
            Err(
                ApplyError::Restored { why: WriteError::Knob(error), .. }
                | ApplyError::Waiting(error),
            ) => batch.results.push(refused(&error)),
            Err(error) => {
                batch.stopped = Some(stopped(&error));
                return batch;
            }
        }
        // irqbalance would move the interrupts that it was not told to leave alone.
        if let Some((target, result)) = batch.results[before..]
            .iter()
            .find(|(target, _)| matches!(target, Target::IrqbalanceBan(_)))
        {
            batch.stopped = Some(Stopped::NotNow(format!("{target}: {}", words(result))));
            return batch;
        }
        // Retry without the failed knobs. Each round drops at least one.
        changes.retain(|change| {
            !batch.results[before..].iter().any(|(target, _)| *target == change.target)
        });
        if batch.results.len() == before {
            return batch;
        }
    }
    batch
}

/// Why a change was not made.
fn words(result: &WriteResult) -> String {
    match result {
        WriteResult::Refused(why) => why.clone(),
        WriteResult::Overwritten(now) => format!("it is {now} now"),
        WriteResult::Gone | WriteResult::InEffect(_) => "it has ended".to_owned(),
    }
}

fn drifted(drift: Drift) -> (Target, WriteResult) {
    match drift {
        Drift::Changed { target, now, .. } => (target, WriteResult::Overwritten(now)),
        Drift::OtherName { target, .. } => (target, WriteResult::Gone),
        Drift::Unreadable(error) => refused(&error),
    }
}

fn refused(error: &KnobError) -> (Target, WriteResult) {
    let written =
        if error.is_gone() { WriteResult::Gone } else { WriteResult::Refused(error.to_string()) };
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

/// Time that a guard may need to restore after its deadline.
const GUARD: Duration = Duration::from_secs(5);

/// The result of recovering what an earlier writer had left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// What was done.
    pub(crate) words: Option<String>,
    /// When to check again. A transaction awaits its confirmation, and has a guard until then.
    pub(crate) look_at: Option<Duration>,
}

/// Restores a transaction that an earlier writer left unfinished. If the transaction awaits
/// confirmation, it is restored only if its guard has not done so after the deadline, because the
/// guard was killed too.
pub(crate) fn recover(kernel: &dyn Kernel, dir: &Path) -> anyhow::Result<Recovered> {
    let transactions = journal::read_without_lock(kernel, dir)?
        .map(|history| history.transactions)
        .unwrap_or_default();
    let mut open = transactions.iter().filter(|it| it.is_open());
    let left = open.find(|it| it.is_unfinished() || it.awaits_confirmation().is_some());
    let Some(left) = left else { return Ok(Recovered::default()) };
    let why = match left.awaits_confirmation().map(|deadline| deadline + GUARD) {
        Some(look_at) if kernel.now() < look_at => {
            return Ok(Recovered { words: None, look_at: Some(look_at) });
        }
        Some(_) => "was neither confirmed nor undone by its guard",
        None => "was left unfinished",
    };
    let (id, scope) = (left.id, UndoScope::Only(left.id));
    let undone = undo(kernel, dir, scope, false, RestoredBy::Daemon, &mut |_, _| {})?;
    let left: Vec<String> =
        undone.iter().flat_map(|it| it.failures()).map(ToString::to_string).collect();
    let words = format!("transaction {id} {why}; netsilo undid it");
    let words =
        if left.is_empty() { words } else { format!("{words}, except {}", left.join(", ")) };
    Ok(Recovered { words: Some(words), look_at: None })
}
