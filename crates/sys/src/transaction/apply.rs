//! Applies a plan as one transaction. The process may die after any line.
//!
//! The steps: check that nothing has changed since the plan was made; write the whole plan and the
//! old values to the journal and sync it; start the guard; then write, read back and record each
//! change. If a write fails, the earlier ones are restored in reverse order. Progress is reported
//! as [`ApplyEvent`]s.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use netsilo_model::change::{Change, Target, Value, ordered};
use netsilo_model::machine::ids::Irq;

use crate::transaction::attached::{self, AttachedRow};
use crate::transaction::journal::{Journal, JournalError};
use crate::transaction::kernel::{Kernel, KnobAddress};
use crate::transaction::knob::{self, KnobError, Reading};
use crate::transaction::queues::Finder;
use crate::transaction::record::{Entry, Origin, RestoredBy};
use crate::transaction::undo::{
    NetnsKernel, RestoreResult, Undone, restore_transaction, stays_open,
};
use crate::transaction::verify::{Arrival, Moved};

/// Options of [`apply`].
pub struct TransactionOptions<'a> {
    /// If set, the guard restores the old values unless the operator confirms within this time.
    /// Needs [`TransactionOptions::start_guard`].
    pub confirm_within: Option<Duration>,
    /// Starts the guard of a transaction and returns once the guard is watching. Called before the
    /// first write.
    pub start_guard: &'a mut dyn FnMut(u64) -> io::Result<()>,
    /// How long to wait until interrupts arrive on their new CPUs. Zero checks once.
    pub wait: Duration,
}

/// A step of applying a plan.
#[derive(Debug)]
pub enum ApplyEvent<'a> {
    /// The plan and all old values are on disk.
    Journalled {
        /// The transaction's number.
        transaction: u64,
    },
    /// A knob was written.
    Wrote {
        /// Index in the plan's changes, from 0.
        index: usize,
        /// The change.
        change: &'a Change,
        /// The value read back after the write.
        settled: &'a Value,
    },
    /// A write failed; the earlier writes are being restored.
    Failed(&'a WriteError),
    /// The result of restoring one knob.
    Restored(&'a Target, &'a RestoreResult),
    /// The result of restoring a setting that a write had reset.
    Attached(&'a AttachedRow),
    /// Every change is written. Waiting for interrupts to arrive.
    Waiting {
        /// Number of interrupts.
        irqs: usize,
        /// Maximum time for all interrupts together.
        at_most: Duration,
    },
    /// An interrupt arrived, or the time limit passed.
    Arrived(Irq, &'a Arrival),
}

/// The result of a successful apply.
#[derive(Debug, Default)]
pub struct Applied {
    /// The transaction; `None` if there was nothing to write.
    pub transaction: Option<u64>,
    /// The guard restores the old values at this time since boot. `None` without a guard.
    pub confirm_by: Option<Duration>,
    /// The knobs written, with the values read back.
    pub settled: Vec<(Target, Value)>,
    /// Where each moved interrupt arrived.
    pub arrivals: Vec<(Irq, Arrival)>,
    /// Knobs that another program has overwritten since, with their current values.
    pub overwritten: Vec<(Target, Value)>,
}

/// Why a plan was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The journal cannot be used. Nothing was written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// An earlier transaction was interrupted.
    #[error("an earlier apply (transaction {transaction}) did not finish; run `{undo}` first")]
    Unfinished {
        /// The transaction.
        transaction: u64,
        /// The command that restores it.
        undo: String,
    },
    /// An earlier transaction waits for its confirmation.
    #[error(
        "transaction {transaction} is waiting for confirmation; run `{confirm}` or `{undo}` first"
    )]
    Unconfirmed {
        /// The transaction.
        transaction: u64,
        /// The command that keeps it.
        confirm: String,
        /// The command that restores it.
        undo: String,
    },
    /// The plan names a knob twice.
    #[error("the plan names {0} twice; make a new plan")]
    DuplicateTarget(Box<Target>),
    /// Values or devices have changed since the plan was made.
    #[error("{}; nothing was written: make a new plan", list(.0))]
    Drifted(Vec<Drift>),
    /// No permission to write.
    #[error("{0}; nothing was written")]
    NoPermission(KnobError),
    /// The write might never return from the kernel now.
    #[error("{0}; nothing was written")]
    Waiting(KnobError),
    /// The guard did not start.
    #[error("cannot start the guard: {0}; nothing was written")]
    NoGuard(io::Error),
    /// A write failed and every earlier write was restored.
    #[error("{why}; all settings are restored")]
    Restored {
        /// What failed.
        why: WriteError,
        /// The result for each knob.
        undone: Box<Undone>,
    },
    /// A write failed and at least one earlier write could not be restored.
    #[error("{why}; some settings could not be restored, run `{undo}` to try again")]
    Incomplete {
        /// The command that tries again.
        undo: String,
        /// What failed.
        why: WriteError,
        /// The result for each knob.
        undone: Box<Undone>,
    },
}

/// The cause of a failed write.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A knob.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl WriteError {
    fn is_no_answer(&self) -> bool {
        matches!(self, Self::Knob(error) if error.is_no_answer())
    }
}

/// A knob that differs from what the plan expects.
#[derive(Debug)]
pub enum Drift {
    /// Its value has changed.
    Changed {
        /// The knob.
        target: Target,
        /// Its value when the plan was made.
        planned: Value,
        /// Its current value.
        now: Value,
    },
    /// Its netdev has another name, or another netdev has its interface index.
    OtherName {
        /// The knob.
        target: Target,
        /// The netdev that is here.
        name: String,
    },
    /// It was not found or could not be read.
    Unreadable(KnobError),
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { target, planned, now } => {
                write!(f, "{target} was {planned} when the plan was made and is {now} now")
            }
            Self::OtherName { target, name } => {
                write!(f, "{target}: this netdev is called {name} now, or {name} replaced it")
            }
            Self::Unreadable(e) => e.fmt(f),
        }
    }
}

/// Maximum number of drifts that the error names.
const NAMED: usize = 8;

fn list(drifts: &[Drift]) -> String {
    let mut words: Vec<String> = drifts.iter().take(NAMED).map(ToString::to_string).collect();
    if drifts.len() > NAMED {
        words.push(format!("and {} more settings", drifts.len() - NAMED));
    }
    words.join("; ")
}

/// Applies changes as one transaction with [`Origin::Operator`].
pub fn apply(
    kernel: &dyn Kernel,
    dir: &Path,
    changes: &[Change],
    options: &mut TransactionOptions<'_>,
    watch: &mut dyn FnMut(ApplyEvent<'_>),
) -> Result<Applied, ApplyError> {
    apply_for(Origin::Operator, kernel, dir, changes, options, watch)
}

/// Applies changes as one transaction.
pub fn apply_for(
    origin: Origin,
    kernel: &dyn Kernel,
    dir: &Path,
    changes: &[Change],
    options: &mut TransactionOptions<'_>,
    watch: &mut dyn FnMut(ApplyEvent<'_>),
) -> Result<Applied, ApplyError> {
    let mut journal = Journal::open(kernel, dir)?;
    refuse_on_top(&journal)?;
    if journal.is_long() {
        journal.compact(kernel)?;
    }
    let writes = check(kernel, changes)?;
    if writes.is_empty() {
        return Ok(Applied::default());
    }
    let confirm_by = options.confirm_within.map(|within| kernel.now() + within);
    let entries = writes.iter().map(|write| write.entry.clone()).collect();
    let attached = attached::before(kernel, writes.iter().map(|write| &write.change.target));
    let transaction = journal.begin(origin, entries, attached, confirm_by)?;
    watch(ApplyEvent::Journalled { transaction });
    if confirm_by.is_some()
        && let Err(e) = (options.start_guard)(transaction)
    {
        journal.undone(transaction, RestoredBy::Apply, 0)?;
        return Err(ApplyError::NoGuard(e));
    }
    let settled = match write_all(kernel, &mut journal, transaction, &writes, watch) {
        Ok(settled) => settled,
        Err(why) => return Err(roll_back(kernel, journal, transaction, why, watch)),
    };
    let moved = Moved::note(kernel, settled.iter().filter_map(moved_irq));
    // No writes follow, so release the lock: `confirm` and the guard may need it.
    drop(journal);
    watch(ApplyEvent::Waiting { irqs: moved.len(), at_most: options.wait });
    let arrivals = moved
        .wait(kernel, options.wait, &mut |irq, arrival| watch(ApplyEvent::Arrived(irq, arrival)));
    let overwritten =
        settled.iter().filter_map(|(target, value)| overwritten(kernel, target, value)).collect();
    Ok(Applied { transaction: Some(transaction), confirm_by, settled, arrivals, overwritten })
}

/// Records the current values of these knobs before running a command that may write any of them.
///
/// Returns the transaction's number. The transaction stays unfinished until it is undone. Entries
/// are stored in reverse write order, so that undo writes them in the order of an apply.
pub fn record_current_values(
    kernel: &dyn Kernel,
    dir: &Path,
    targets: Vec<Target>,
    reason: &str,
) -> Result<u64, ApplyError> {
    let mut journal = Journal::open(kernel, dir)?;
    refuse_on_top(&journal)?;
    let as_it_is = |target: Target| {
        let reading = knob::read(kernel, &target).ok()?;
        let value = reading.value.clone();
        Some((Change::untyped(target, value.clone(), value, reason).ok()?, reading))
    };
    let (changes, readings): (Vec<Change>, Vec<Reading>) =
        targets.into_iter().filter_map(as_it_is).unzip();
    let mut readings: BTreeMap<Target, Reading> =
        changes.iter().map(|change| change.target.clone()).zip(readings).collect();
    let finder = Finder::new(kernel);
    let entry = |change: Change| {
        let now = readings.remove(&change.target)?;
        let settles_as = now.value.clone();
        let kthread = knob::napi_of(kernel, &finder, &change.target);
        Some(Entry { restore_any_value: true, ..Entry::new(&change, now, settles_as, kthread) })
    };
    let attached = attached::before(kernel, changes.iter().map(|change| &change.target));
    let entries = ordered(changes).into_iter().rev().filter_map(entry).collect();
    Ok(journal.begin(Origin::Operator, entries, attached, None)?)
}

/// The current value, if another program has overwritten ours.
fn overwritten(kernel: &dyn Kernel, target: &Target, settled: &Value) -> Option<(Target, Value)> {
    let now = knob::read_settled(kernel, target, settled).ok()?.value;
    (now != *settled).then(|| (target.clone(), now))
}

/// Refuses to start a transaction while an earlier one may still be restored automatically.
fn refuse_on_top(journal: &Journal) -> Result<(), ApplyError> {
    for it in journal.transactions().iter().filter(|t| t.is_open()) {
        let (transaction, undo) = (it.id, journal.command("undo"));
        if it.is_unfinished() {
            return Err(ApplyError::Unfinished { transaction, undo });
        }
        if it.awaits_confirmation().is_some() {
            let confirm = journal.command("confirm");
            return Err(ApplyError::Unconfirmed { transaction, confirm, undo });
        }
    }
    Ok(())
}

/// A change that passed the checks and may be written.
struct Write<'a> {
    index: usize,
    change: &'a Change,
    place: KnobAddress,
    entry: Entry,
}

/// Checks that the plan still matches the machine and may be written. Skips changes with no effect.
fn check<'a>(kernel: &dyn Kernel, changes: &'a [Change]) -> Result<Vec<Write<'a>>, ApplyError> {
    let finder = Finder::new(kernel);
    let mut seen = BTreeSet::new();
    let mut drifts = Vec::new();
    let mut writes = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let (target, old, new) = (&change.target, &change.old, &change.new);
        if !seen.insert(target) {
            return Err(ApplyError::DuplicateTarget(Box::new(target.clone())));
        }
        if let Some(name) = knob::other_name(kernel, target) {
            drifts.push(Drift::OtherName { target: target.clone(), name });
            continue;
        }
        let now = match knob::read(kernel, target) {
            Ok(now) if now.value == *old => now,
            Ok(now) => {
                drifts.push(Drift::Changed {
                    target: target.clone(),
                    planned: old.clone(),
                    now: now.value,
                });
                continue;
            }
            Err(e) if e.is_permission() => return Err(ApplyError::NoPermission(e)),
            Err(e) => {
                drifts.push(Drift::Unreadable(e));
                continue;
            }
        };
        let settles_as = knob::settles_as(kernel, change);
        // Writing an equal value has an effect too: it flushes the table of rps_sock_flow_entries.
        if *new == now.value || settles_as == now.value {
            continue;
        }
        knob::may_write(kernel, change, &now.place).map_err(ApplyError::NoPermission)?;
        knob::refuse_waiting(kernel, target, &now.place).map_err(ApplyError::Waiting)?;
        let place = now.place.clone();
        let kthread = knob::napi_of(kernel, &finder, target);
        let entry = Entry::new(change, now, settles_as, kthread);
        writes.push(Write { index, change, place, entry });
    }
    // A hand-written plan may have any order. Knobs that reset queues are written before the
    // queues' settings.
    writes.sort_by_key(|write| write.change.target.step(write.change.new.is_off()));
    if drifts.is_empty() { Ok(writes) } else { Err(ApplyError::Drifted(drifts)) }
}

/// Writes, reads back and records the changes one by one.
fn write_all(
    kernel: &dyn Kernel,
    journal: &mut Journal,
    transaction: u64,
    writes: &[Write<'_>],
    watch: &mut dyn FnMut(ApplyEvent<'_>),
) -> Result<Vec<(Target, Value)>, WriteError> {
    let attached = journal.transaction(transaction).map(|it| it.attached.clone());
    let attached = attached.unwrap_or_default();
    let last_reset = writes.iter().rposition(|it| it.change.target.may_reset_queues());
    let mut all = Vec::new();
    let mut written = BTreeMap::new();
    for (number, Write { index, change, place, entry }) in writes.iter().enumerate() {
        knob::write(kernel, change, place)?;
        let after = knob::read_settled(kernel, &change.target, &entry.settles_as)?;
        journal.wrote(transaction, number, &after.raw)?;
        watch(ApplyEvent::Wrote { index: *index, change, settled: &after.value });
        all.push((change.target.clone(), after.value));
        written.insert(after.place, after.raw);
        if Some(number) == last_reset && !attached.is_empty() {
            let targets: Vec<&Target> = all.iter().map(|(target, _)| target).collect();
            for row in attached::keep(kernel, &attached, &targets, &written) {
                if row.is_failure() {
                    watch(ApplyEvent::Attached(&row));
                }
            }
            journal.attached_after(transaction, attached::changed(kernel, &attached))?;
        }
    }
    journal.done(transaction)?;
    Ok(all)
}

/// Restores the changes written before a failure.
fn roll_back(
    kernel: &dyn Kernel,
    mut journal: Journal,
    transaction: u64,
    why: WriteError,
    watch: &mut dyn FnMut(ApplyEvent<'_>),
) -> ApplyError {
    watch(ApplyEvent::Failed(&why));
    // If the journal cannot be appended to, restoring must continue: undo works without this
    // record.
    let _ = journal.failed(transaction, why.to_string());
    let knobs = journal.transaction(transaction).cloned();
    let nothing = Undone { transaction, knobs: Vec::new(), attached: Vec::new() };
    let undone = knobs.map_or(nothing, |knobs| {
        let none = Default::default();
        restore_transaction(
            &NetnsKernel::here(kernel),
            &mut journal,
            &knobs,
            &none,
            &mut |target, result| watch(ApplyEvent::Restored(target, result)),
        )
    });
    undone.attached.iter().for_each(|row| watch(ApplyEvent::Attached(row)));
    // If the kernel did not answer, the write may still take effect: its transaction stays open.
    if undone.is_complete() && !why.is_no_answer() {
        let _ = journal.undone(transaction, RestoredBy::Apply, 0);
        ApplyError::Restored { why, undone: Box::new(undone) }
    } else {
        stays_open(kernel, &mut journal, transaction);
        ApplyError::Incomplete { why, undone: Box::new(undone), undo: journal.command("undo") }
    }
}

fn moved_irq(
    (target, settled): &(Target, Value),
) -> Option<(Irq, netsilo_model::machine::cpuset::CpuSet)> {
    match (target, settled) {
        (Target::IrqAffinity(knob), Value::Cpus(cpus)) => Some((knob.irq, cpus.clone())),
        _ => None,
    }
}
