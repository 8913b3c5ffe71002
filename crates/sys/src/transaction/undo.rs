//! Restores exactly the values that are still ours, newest transaction first.
//!
//! Collects all errors. Restoring never stops at the first one.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use netsilo_model::change::{Target, Value};

use crate::read::netns::{NetnsId, NotEntered};
use crate::transaction::attached::{self, Attached, AttachedRow, Wish};
use crate::transaction::journal::{Journal, JournalError};
use crate::transaction::kernel::{Kernel, KnobAddress};
use crate::transaction::knob::{self, KnobError, Patience, Reading};
use crate::transaction::record::{Entry, Origin, RestoredBy, State, Transaction};

/// Which transactions to undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoScope {
    /// All transactions of this boot, back to the values before the first.
    All,
    /// The newest one only.
    Last,
    /// Only this one.
    Only(u64),
    /// Only this one, and only if it is not confirmed.
    Unconfirmed(u64),
    /// The daemon's transactions, except those below an operator's transaction.
    Daemons,
}

/// The result of restoring one knob.
#[derive(Debug)]
pub enum RestoreResult {
    /// The knob has its old value again, byte for byte.
    Restored,
    /// The knob has its old value again but the kernel prints it differently, or it has an
    /// equivalent value.
    Reworded(String),
    /// It had its old value already.
    AlreadyOld,
    /// Another program or the driver has changed it since, so it was not touched.
    Foreign(Value),
    /// The interrupt, device or thread no longer exists.
    Gone(KnobError),
    /// It could not be restored.
    Failed(KnobError),
    /// The kernel accepted the old value but still reports this one.
    NotApplied(Value),
}

impl RestoreResult {
    /// Whether the kernel may accept the value once others are restored.
    fn may_succeed_later(&self) -> bool {
        match self {
            Self::NotApplied(_) => true,
            Self::Failed(error) => error.is_not_followed(),
            _ => false,
        }
    }

    /// Whether the kernel still has a value of ours.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::NotApplied(_))
    }
}

/// The result of undoing one transaction.
#[derive(Debug)]
pub struct Undone {
    /// Its number.
    pub transaction: u64,
    /// The result for each knob, in the order of restoring.
    pub knobs: Vec<(Target, RestoreResult)>,
    /// The results for settings of queues that the transaction's writes, or restoring them, had
    /// reset.
    pub attached: Vec<AttachedRow>,
}

impl Undone {
    /// Whether none of our values is left.
    pub fn is_complete(&self) -> bool {
        self.failures().next().is_none() && !self.attached.iter().any(AttachedRow::is_failure)
    }

    /// The knobs that could not be restored.
    pub fn failures(&self) -> impl Iterator<Item = &Target> {
        self.knobs.iter().filter(|(_, result)| result.is_failure()).map(|(target, _)| target)
    }
}

/// The kernel as the network namespace of a transaction shows it.
pub(crate) struct NetnsKernel<'a> {
    kernel: &'a dyn Kernel,
    /// Why the network namespace of the transaction could not be entered. Interrupts and threads
    /// are the same in all namespaces.
    missing: Option<&'a NotEntered>,
}

impl<'a> NetnsKernel<'a> {
    /// The network namespace of this process.
    pub(crate) fn here(kernel: &'a dyn Kernel) -> Self {
        Self { kernel, missing: None }
    }

    /// Whether a knob can be looked for here. A device comes back to the first network namespace
    /// when its own one ends, with its settings (`default_device_exit_net`).
    fn has(&self, target: &Target) -> Result<(), KnobError> {
        let is_device = || target.netdev().is_some_and(|netdev| netdev.device_path.is_some());
        match self.missing {
            Some(NotEntered::Gone) if is_device() => Ok(()),
            Some(why) if target.is_of_netns() => Err(KnobError::not_entered(target, why)),
            _ => Ok(()),
        }
    }

    /// Records the settings that a transaction leaves, if they can be read.
    fn stays_open(&self, journal: &mut Journal, id: u64) {
        if self.missing.is_none() {
            stays_open(self.kernel, journal, id);
        }
    }
}

/// The network namespaces of transactions. Each is entered once.
struct NetnsKernels<'a> {
    here: &'a dyn Kernel,
    own: Option<NetnsId>,
    others: BTreeMap<NetnsId, Result<Box<dyn Kernel>, NotEntered>>,
}

impl<'a> NetnsKernels<'a> {
    fn new(here: &'a dyn Kernel) -> Self {
        Self { here, own: here.netns(), others: BTreeMap::new() }
    }

    fn of(&mut self, transaction: &Transaction) -> NetnsKernel<'_> {
        let Some(netns) = transaction.netns.filter(|netns| Some(*netns) != self.own) else {
            return NetnsKernel::here(self.here);
        };
        let there = self.others.entry(netns).or_insert_with(|| self.here.within(netns));
        match &*there {
            Ok(there) => NetnsKernel::here(there.as_ref()),
            Err(why) => NetnsKernel { kernel: self.here, missing: Some(why) },
        }
    }
}

/// Undoes transactions. An empty result means that there was nothing to undo.
///
/// If a knob could not be restored, its transaction stays open, so that the next `undo` retries.
/// With `forget` it is closed anyway, for example when an old CPU is permanently offline.
pub fn undo(
    kernel: &dyn Kernel,
    dir: &Path,
    which: UndoScope,
    forget: bool,
    by: RestoredBy,
    watch: &mut dyn FnMut(&Target, &RestoreResult),
) -> Result<Vec<Undone>, JournalError> {
    let Some(mut journal) = Journal::open_existing(kernel, dir)? else {
        return Ok(Vec::new());
    };
    let chosen = chosen(journal.transactions(), which).into_iter().cloned().collect::<Vec<_>>();
    let mut kernels = NetnsKernels::new(kernel);
    let mut all: Vec<Undone> = Vec::new();
    let mut stuck = HashSet::new();
    let mut complete = true;
    for transaction in chosen {
        let there = kernels.of(&transaction);
        let undone = restore_transaction(&there, &mut journal, &transaction, &stuck, watch);
        let failures = undone.failures().map(|target| transaction.scoped(target));
        stuck.extend(failures.map(|(netns, target)| (netns, target.clone())));
        complete &= undone.is_complete();
        let given_up = undone.failures().count();
        all.push(undone);
        // Values form a chain: the value of an older transaction appears only after all newer ones
        // are undone.
        if complete || forget {
            journal.undone(transaction.id, by, given_up).map_err(|why| {
                JournalError::Unrecorded {
                    transaction: transaction.id,
                    why: Box::new(why),
                    undo: journal.command("undo"),
                }
            })?;
        } else {
            there.stays_open(&mut journal, transaction.id);
        }
    }
    Ok(all)
}

/// The transactions that are in a scope, newest first.
fn chosen(transactions: &[Transaction], which: UndoScope) -> Vec<&Transaction> {
    let open = transactions.iter().rev().filter(|t| t.is_open());
    match which {
        UndoScope::All => open.collect(),
        UndoScope::Last => open.take(1).collect(),
        UndoScope::Daemons => open.take_while(|t| t.origin == Origin::Daemon).collect(),
        UndoScope::Only(id) => open.filter(|t| t.id == id).collect(),
        UndoScope::Unconfirmed(id) => {
            open.filter(|t| t.id == id && t.state != State::Confirmed).collect()
        }
    }
}

/// What [`undo`] would do to these transactions' knobs now, newest transaction first. Writes
/// nothing.
pub fn expected(
    kernel: &dyn Kernel,
    transactions: &[Transaction],
    which: UndoScope,
) -> Vec<Undone> {
    let mut values: BTreeMap<(Option<NetnsId>, &Target), Value> = BTreeMap::new();
    let mut patience = Patience::default();
    let mut kernels = NetnsKernels::new(kernel);
    let mut all = Vec::new();
    for transaction in chosen(transactions, which) {
        let there = kernels.of(transaction);
        let mut knobs = Vec::new();
        for (entry, written) in transaction.entries.iter().zip(&transaction.written).rev() {
            let written = written.as_deref();
            let read_back = written.and_then(|raw| knob::parse(&entry.target, raw).ok());
            let scoped = transaction.scoped(&entry.target);
            let kept = match values.get(&scoped) {
                Some(value) => theirs(entry, read_back.as_ref(), value),
                None => ours(&there, entry, written, &mut patience).err(),
            };
            let result = kept.unwrap_or(RestoreResult::Restored);
            let value = match &result {
                RestoreResult::Foreign(value) => value,
                _ => &entry.old,
            };
            if !result.is_failure() {
                values.insert(scoped, value.clone());
            }
            knobs.push((entry.target.clone(), result));
        }
        all.push(Undone { transaction: transaction.id, knobs, attached: Vec::new() });
    }
    all
}

/// Restores the knobs of one transaction in reverse order, then the settings that depend on them.
/// Leaves out knobs that still have the value of a newer transaction.
pub(crate) fn restore_transaction(
    there: &NetnsKernel<'_>,
    journal: &mut Journal,
    transaction: &Transaction,
    stuck: &HashSet<(Option<NetnsId>, Target)>,
    watch: &mut dyn FnMut(&Target, &RestoreResult),
) -> Undone {
    let kernel = there.kernel;
    let keeps = there.missing.is_none().then(|| keeps(kernel, journal, transaction)).flatten();
    let mut knobs = Vec::new();
    let mut done = |entry: &Entry, result| {
        watch(&entry.target, &result);
        knobs.push((entry.target.clone(), result));
    };
    let mut again = Vec::new();
    let mut patience = Patience::default();
    for (entry, written) in transaction.entries.iter().zip(&transaction.written).rev() {
        let (netns, target) = transaction.scoped(&entry.target);
        if stuck.contains(&(netns, target.clone())) {
            continue;
        }
        match restore(there, entry, written.as_deref(), &mut patience) {
            result if result.may_succeed_later() => again.push((entry, written)),
            result => done(entry, result),
        }
    }
    // A value may depend on one that was restored later: the kernel keeps
    // `tx-tcp-mangleid-segmentation` off while `tx-tcp-segmentation` is off
    // (`netdev_fix_features`).
    for (entry, written) in again {
        let result = match restore(there, entry, written.as_deref(), &mut Patience::default()) {
            RestoreResult::AlreadyOld => RestoreResult::Restored,
            result => result,
        };
        done(entry, result);
    }
    let failed: BTreeSet<KnobAddress> = knobs
        .iter()
        .filter(|(_, result)| result.is_failure())
        .filter_map(|(target, _)| Some(knob::read(kernel, target).ok()?.place))
        .collect();
    let wish =
        |place: &KnobAddress| if failed.contains(place) { Wish::Nothing } else { Wish::Recorded };
    let attached = keeps.as_ref().map_or_else(Vec::new, |keeps| {
        attached::restore(kernel, &transaction.attached, keeps, &wish)
    });
    Undone { transaction: transaction.id, knobs, attached }
}

/// Records the settings that a transaction leaves if it stays open. The next undo checks again what
/// another program has changed.
pub(crate) fn stays_open(kernel: &dyn Kernel, journal: &mut Journal, id: u64) {
    let Some(Transaction { attached, keeps: Some(keeps), attached_after, .. }) =
        journal.transaction(id)
    else {
        return;
    };
    let changed = attached::changed(kernel, attached);
    if !attached::without(keeps.clone(), &changed).is_empty() {
        // Another program's value has not been restored yet, and only this record has it.
        return;
    }
    let mut left = attached::without(changed, keeps);
    // A newer transaction that also stays open may restore these.
    left.extend(attached_after.clone().unwrap_or_default());
    // If the journal cannot be appended to, restoring must continue.
    let _ = journal.attached_after(id, left);
}

/// The attached settings that another program has changed since. `None` if no write of the
/// transaction can have reset any. They are recorded first: once a driver has recreated its queues,
/// their values are lost.
fn keeps(
    kernel: &dyn Kernel,
    journal: &mut Journal,
    transaction: &Transaction,
) -> Option<Vec<Attached>> {
    if transaction.attached.is_empty() || transaction.keeps.is_some() {
        return transaction.keeps.clone();
    }
    let mut own = BTreeMap::new();
    // It is recorded once a write has reset the settings.
    let mut may_be_reset = transaction.attached_after.is_some();
    for (entry, written) in transaction.entries.iter().zip(&transaction.written) {
        let now = knob::read_now(kernel, &entry.target, entry.kthread.as_ref());
        let Ok(now) = now else { continue };
        let read_back = written.as_deref().and_then(|raw| knob::parse(&entry.target, raw).ok());
        let is_ours = is_ours(entry, read_back.as_ref(), &now.value);
        // If the driver rounds a value to the old one, nothing shows that it was written.
        let is_written = written.is_some() || is_ours || now.value != entry.old;
        may_be_reset |= is_written && entry.target.may_reset_queues();
        // Settings that were not written may have been reset.
        if written.is_some() || is_ours {
            own.insert(now.place, is_ours || now.value == entry.old);
        }
    }
    if !may_be_reset {
        return None;
    }
    let after = transaction.attached_after.as_deref();
    let is_ours = |place: &KnobAddress| own.get(place).copied();
    let keeps = attached::foreign(kernel, &transaction.attached, after, &is_ours);
    // If the journal cannot be appended to, restoring must continue.
    let _ = journal.keeps(transaction.id, keeps.clone());
    Some(keeps)
}

/// Restores one knob, if its value is still ours.
fn restore(
    there: &NetnsKernel<'_>,
    entry: &Entry,
    written: Option<&str>,
    patience: &mut Patience,
) -> RestoreResult {
    let kernel = there.kernel;
    let (target, now) = match ours(there, entry, written, patience) {
        Ok(now) => (&entry.target, now),
        Err(result) => return result,
    };
    if let Err(e) = knob::write_back(kernel, target, &now.place, &entry.old_raw) {
        return failed(e);
    }
    let read = || knob::read_now(kernel, target, entry.kthread.as_ref());
    match knob::settle(kernel, &entry.old, &mut Patience::default(), &read) {
        Ok(after) if after.raw == entry.old_raw => RestoreResult::Restored,
        Ok(after) if after.value == entry.old => RestoreResult::Reworded(after.raw),
        Ok(after) if knob::is_as_good(kernel, target, &after.value, &entry.old) => {
            RestoreResult::Reworded(after.raw)
        }
        Ok(after) => RestoreResult::NotApplied(after.value),
        Err(e) => failed(e),
    }
}

/// Reads a knob that has the value that was written to it; the error is why it needs no restoring,
/// or cannot be read.
fn ours(
    there: &NetnsKernel<'_>,
    entry: &Entry,
    written: Option<&str>,
    patience: &mut Patience,
) -> Result<Reading, RestoreResult> {
    there.has(&entry.target).map_err(failed)?;
    let kernel = there.kernel;
    let read_back = written.and_then(|raw| knob::parse(&entry.target, raw).ok());
    let read = || knob::read_now(kernel, &entry.target, entry.kthread.as_ref());
    let expected = read_back.as_ref().unwrap_or(&entry.settles_as);
    let now = knob::settle(kernel, expected, patience, &read).map_err(failed)?;
    now.refuse_replaced(&entry.target, entry.created).map_err(failed)?;
    match theirs(entry, read_back.as_ref(), &now.value) {
        Some(result) => Err(result),
        None => Ok(now),
    }
}

/// Why a knob with this value needs no restoring; `None` if we wrote it.
fn theirs(entry: &Entry, read_back: Option<&Value>, now: &Value) -> Option<RestoreResult> {
    if *now == entry.old {
        return Some(RestoreResult::AlreadyOld);
    }
    (!is_ours(entry, read_back, now)).then(|| RestoreResult::Foreign(now.clone()))
}

fn failed(error: KnobError) -> RestoreResult {
    if error.is_gone() { RestoreResult::Gone(error) } else { RestoreResult::Failed(error) }
}

/// Whether we wrote the current value.
///
/// The current value is compared with the value read back. If we were killed before the read, it is
/// compared with the possible values.
fn is_ours(entry: &Entry, read_back: Option<&Value>, now: &Value) -> bool {
    match read_back {
        _ if entry.restore_any_value => true,
        Some(read_back) => now == read_back,
        None => {
            *now == entry.new
                || *now == entry.settles_as
                || entry.target.may_round_to(&entry.new, now)
        }
    }
}
