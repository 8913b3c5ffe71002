//! Applying a plan as one transaction, written as if one could die after each line.
//!
//! Check that nothing has moved since the plan was made; journal everything and sync; start the
//! guard; write, read back, record, one by one; on a failure restore in reverse. What the operator
//! sees of it comes out as [`Event`]s.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use netsilo_core::change::{Change, Target, Value, ordered};
use netsilo_core::host::Irq;

use crate::journal::{Journal, JournalError};
use crate::kernel::{Kernel, Place};
use crate::knob::{self, KnobError};
use crate::transaction::{By, Entry, Origin};
use crate::undo::{Fate, Undone, take_back};
use crate::verify::{Arrival, Moved};

/// How to apply.
pub struct Options<'a> {
    /// Restore unless confirmed within this time; needs [`Options::start_guard`].
    pub confirm_within: Option<Duration>,
    /// Starts the guard of a transaction and returns when it watches; called before the first
    /// write.
    pub start_guard: &'a mut dyn FnMut(u64) -> io::Result<()>,
    /// How long to wait for interrupts on their new CPUs; zero looks once.
    pub wait: Duration,
}

/// What happens while a plan is applied.
#[derive(Debug)]
pub enum Event<'a> {
    /// The plan and all old values are on disk.
    Journalled {
        /// The transaction's number.
        transaction: u64,
    },
    /// A knob was written.
    Wrote {
        /// Which of the plan's changes, from 0.
        index: usize,
        /// The change.
        change: &'a Change,
        /// What the knob says since then.
        settled: &'a Value,
    },
    /// A write failed; what was written before is being restored.
    Failed(&'a WriteError),
    /// A knob was restored, or not.
    Restored(&'a Target, &'a Fate),
    /// All is written; interrupts are being awaited.
    Waiting {
        /// How many.
        irqs: usize,
    },
    /// An interrupt arrived, or the time for it is over.
    Arrived(Irq, &'a Arrival),
}

/// What was applied.
#[derive(Debug, Default)]
pub struct Applied {
    /// The transaction; `None` if there was nothing to write.
    pub transaction: Option<u64>,
    /// The knobs written, and what they say since then.
    pub settled: Vec<(Target, Value)>,
    /// Where the interrupts that were moved arrived.
    pub arrivals: Vec<(Irq, Arrival)>,
    /// The knobs that someone else has written in the meantime, and what they say now.
    pub overwritten: Vec<(Target, Value)>,
}

/// Why a plan was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The journal cannot be used; nothing was written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// An earlier one ended half way.
    #[error("an earlier apply (transaction {0}) did not come to its end; run `netsilo undo` first")]
    Unfinished(u64),
    /// An earlier one is on probation.
    #[error(
        "transaction {0} waits for its confirmation; run `netsilo confirm` or `netsilo undo` first"
    )]
    Unconfirmed(u64),
    /// The plan contradicts itself.
    #[error("the plan names {0} twice; make a new plan")]
    Twice(Box<Target>),
    /// Values or devices are not those that the plan was made for.
    #[error("{}; nothing was written: make a new plan", list(.0))]
    Drifted(Vec<Drift>),
    /// The right to write is missing.
    #[error("{0}; nothing was written")]
    NoPermission(KnobError),
    /// No guard, no write.
    #[error("cannot start the guard: {0}; nothing was written")]
    NoGuard(io::Error),
    /// A write failed and all that was written before is restored.
    #[error("{why}; all is as before")]
    Restored {
        /// What failed.
        why: WriteError,
        /// What became of each knob.
        undone: Undone,
    },
    /// A write failed and something could not be restored.
    #[error("{why}; not everything could be restored, run `netsilo undo` to try again")]
    Incomplete {
        /// What failed.
        why: WriteError,
        /// What became of each knob.
        undone: Undone,
    },
}

/// What failed while writing.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A knob.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// A knob that is not as the plan found it.
#[derive(Debug)]
pub enum Drift {
    /// Its value is another one.
    Changed {
        /// The knob.
        target: Target,
        /// Its value when the plan was made.
        planned: Value,
        /// Its value now.
        now: Value,
    },
    /// It cannot be found or read.
    Unreadable(KnobError),
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { target, planned, now } => {
                write!(f, "{target} was {planned} when the plan was made and is {now} now")
            }
            Self::Unreadable(e) => e.fmt(f),
        }
    }
}

fn list(drifts: &[Drift]) -> String {
    drifts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// So many transactions of the daemon are folded into one.
const FOLD_AT: usize = 16;

/// Applies changes as one transaction of an operator's.
pub fn apply(
    kernel: &dyn Kernel,
    dir: &Path,
    changes: &[Change],
    options: &mut Options<'_>,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Applied, ApplyError> {
    apply_for(Origin::Operator, kernel, dir, changes, options, watch)
}

/// Applies changes as one transaction.
pub fn apply_for(
    origin: Origin,
    kernel: &dyn Kernel,
    dir: &Path,
    changes: &[Change],
    options: &mut Options<'_>,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Applied, ApplyError> {
    let mut journal = Journal::open(kernel, dir)?;
    refuse_on_top(&journal)?;
    if origin == Origin::Daemon && journal.daemons() >= FOLD_AT {
        journal.fold(kernel)?;
    }
    let writes = check(kernel, changes)?;
    if writes.is_empty() {
        return Ok(Applied::default());
    }
    let confirm_by = options.confirm_within.map(|within| kernel.now() + within);
    let entries = writes.iter().map(|write| write.entry.clone()).collect();
    let transaction = journal.begin(origin, entries, confirm_by)?;
    watch(Event::Journalled { transaction });
    if confirm_by.is_some()
        && let Err(e) = (options.start_guard)(transaction)
    {
        journal.undone(transaction, By::Apply)?;
        return Err(ApplyError::NoGuard(e));
    }
    let settled = match write_all(kernel, &mut journal, transaction, &writes, watch) {
        Ok(settled) => settled,
        Err(why) => return Err(roll_back(kernel, journal, transaction, why, watch)),
    };
    let moved = Moved::note(kernel, settled.iter().filter_map(moved_irq));
    // From here on nothing is written: others may, `confirm` and the guard among them.
    drop(journal);
    watch(Event::Waiting { irqs: settled.iter().filter_map(moved_irq).count() });
    let arrivals =
        moved.wait(kernel, options.wait, &mut |irq, arrival| watch(Event::Arrived(irq, arrival)));
    let overwritten =
        settled.iter().filter_map(|(target, value)| overwritten(kernel, target, value)).collect();
    Ok(Applied { transaction: Some(transaction), settled, arrivals, overwritten })
}

/// Journals what these knobs say, before a command that may write any of them; returns the
/// transaction, which stays unfinished until it is undone. Undoing writes what is set up anew
/// first, as applying does.
pub fn expect_any(
    kernel: &dyn Kernel,
    dir: &Path,
    targets: Vec<Target>,
    reason: &str,
) -> Result<u64, ApplyError> {
    let mut journal = Journal::open(kernel, dir)?;
    refuse_on_top(&journal)?;
    let as_it_is = |target: Target| {
        let reading = knob::read(kernel, &target).ok()?;
        Some((
            Change::untyped(target, reading.value.clone(), reading.value, reason).ok()?,
            reading.raw,
        ))
    };
    let (changes, raws): (Vec<Change>, Vec<String>) =
        targets.into_iter().filter_map(as_it_is).unzip();
    let raws: BTreeMap<Target, String> =
        changes.iter().map(|change| change.target.clone()).zip(raws).collect();
    let entry = |change: Change| {
        let old_raw = raws.get(&change.target).cloned().unwrap_or_default();
        Entry { whatever: true, ..Entry::new(&change, old_raw, change.new.clone()) }
    };
    let entries = ordered(changes).into_iter().rev().map(entry).collect();
    Ok(journal.begin(Origin::Operator, entries, None)?)
}

/// Another writer shows itself by what it writes over our values.
fn overwritten(kernel: &dyn Kernel, target: &Target, settled: &Value) -> Option<(Target, Value)> {
    let now = knob::read_settled(kernel, target, settled).ok()?.value;
    (now != *settled).then(|| (target.clone(), now))
}

/// Nothing is stacked on a transaction that may still be taken back by itself.
fn refuse_on_top(journal: &Journal) -> Result<(), ApplyError> {
    for transaction in journal.transactions().iter().filter(|t| t.is_open()) {
        if transaction.is_unfinished() {
            return Err(ApplyError::Unfinished(transaction.id));
        }
        if transaction.awaits_confirmation().is_some() {
            return Err(ApplyError::Unconfirmed(transaction.id));
        }
    }
    Ok(())
}

/// A change that was checked and can be written.
struct Write<'a> {
    index: usize,
    change: &'a Change,
    place: Place,
    entry: Entry,
}

/// Checks that the plan still fits and may be written; leaves out what would change nothing.
fn check<'a>(kernel: &dyn Kernel, changes: &'a [Change]) -> Result<Vec<Write<'a>>, ApplyError> {
    let mut seen = BTreeSet::new();
    let mut drifts = Vec::new();
    let mut writes = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let (target, old, new) = (&change.target, &change.old, &change.new);
        if !seen.insert(target) {
            return Err(ApplyError::Twice(Box::new(target.clone())));
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
        // Writing an equal value is not harmless: it flushes the table of rps_sock_flow_entries.
        if *new == now.value || settles_as == now.value {
            continue;
        }
        knob::may_write(kernel, change, &now.place).map_err(ApplyError::NoPermission)?;
        let entry = Entry::new(change, now.raw, settles_as);
        writes.push(Write { index, change, place: now.place, entry });
    }
    if drifts.is_empty() { Ok(writes) } else { Err(ApplyError::Drifted(drifts)) }
}

/// Writes, reads back and records, one by one.
fn write_all(
    kernel: &dyn Kernel,
    journal: &mut Journal,
    transaction: u64,
    writes: &[Write<'_>],
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Vec<(Target, Value)>, WriteError> {
    let mut all = Vec::new();
    for (number, Write { index, change, place, entry }) in writes.iter().enumerate() {
        knob::write(kernel, change, place)?;
        let after = knob::read_settled(kernel, &change.target, &entry.settles_as)?;
        journal.wrote(transaction, number, &after.raw)?;
        watch(Event::Wrote { index: *index, change, settled: &after.value });
        all.push((change.target.clone(), after.value));
    }
    journal.done(transaction)?;
    Ok(all)
}

/// Restores what was written before a failure.
fn roll_back(
    kernel: &dyn Kernel,
    mut journal: Journal,
    transaction: u64,
    why: WriteError,
    watch: &mut dyn FnMut(Event<'_>),
) -> ApplyError {
    watch(Event::Failed(&why));
    // A journal that takes no more records must not keep us from restoring: undo can do without
    // them.
    let _ = journal.failed(transaction, why.to_string());
    let knobs = journal.transaction(transaction).cloned();
    let undone = knobs.map_or(Undone { transaction, knobs: Vec::new() }, |knobs| {
        take_back(kernel, &knobs, &[], &mut |target, fate| watch(Event::Restored(target, fate)))
    });
    if undone.is_complete() {
        let _ = journal.undone(transaction, By::Apply);
        ApplyError::Restored { why, undone }
    } else {
        ApplyError::Incomplete { why, undone }
    }
}

fn moved_irq((target, settled): &(Target, Value)) -> Option<(Irq, netsilo_core::cpuset::CpuSet)> {
    match (target, settled) {
        (Target::IrqAffinity(knob), Value::Cpus(cpus)) => Some((knob.irq, cpus.clone())),
        _ => None,
    }
}
