//! Folding: the many small transactions of a daemon become one that takes back the same. No files
//! here.
//!
//! What undo would do to each knob is tried out, from the newest transaction to the oldest, on what
//! the knob says now: where that leads is the folded old value. So a chain that someone else has
//! broken, or an undo that has died half way, folds into what would have come of it.

use netsilo_model::change::{Target, Value};

use crate::transaction::knob;
use crate::transaction::record::{Entry, History, Origin, Record, State, Transaction, VERSION};

/// A knob's value and its text.
pub type Said = (Value, String);

/// The journal with its daemon's transactions folded; `None` when that makes it no shorter, or not
/// now.
///
/// Operators' transactions stay what they are, for `undo --last` and for their guards. What is
/// `gone` for good needs no undo; `now` is what a knob says.
pub fn fold(
    history: &History,
    gone: &dyn Fn(&Target) -> bool,
    now: &dyn Fn(&Target) -> Option<Said>,
) -> Option<Vec<Record>> {
    let boot_id = history.boot_id.clone()?;
    let open: Vec<&Transaction> = history.transactions.iter().filter(|it| it.is_open()).collect();
    if open.iter().any(|it| it.is_unfinished() || it.awaits_confirmation().is_some()) {
        return None;
    }
    // A guard may still ask what became of its transaction.
    let asked_for = |it: &&Transaction| !it.is_open() && it.confirm_by.is_some();
    let mut kept: Vec<Transaction> =
        history.transactions.iter().filter(asked_for).cloned().collect();
    let mut from = 0;
    for group in open.chunk_by(|a, b| a.origin == Origin::Daemon && b.origin == Origin::Daemon) {
        from += group.len();
        // What undo will find here, once it has taken back all that is newer.
        let found = |target: &Target| {
            let newer = open[from..]
                .iter()
                .flat_map(|it| &it.entries)
                .find(|entry| entry.target == *target);
            newer.map(|entry| (entry.old.clone(), entry.old_raw.clone())).or_else(|| now(target))
        };
        match group {
            [only] if only.origin == Origin::Operator => kept.push((*only).clone()),
            [only] if only.entries.iter().all(|entry| !gone(&entry.target)) => {
                kept.push((*only).clone())
            }
            _ => kept.extend(folded(group, gone, &found)),
        }
    }
    kept.sort_by_key(|transaction| transaction.id);
    if kept == history.transactions {
        return None;
    }
    let boot = Record::Boot { version: VERSION, boot_id };
    Some([boot].into_iter().chain(kept.into_iter().flat_map(records)).collect())
}

/// Finished transactions, one after the other, as one; `None` when there is nothing to take back.
fn folded(
    group: &[&Transaction],
    gone: &dyn Fn(&Target) -> bool,
    found: &dyn Fn(&Target) -> Option<Said>,
) -> Option<Transaction> {
    let mut targets: Vec<&Target> = Vec::new();
    for entry in group.iter().flat_map(|it| &it.entries) {
        if !targets.contains(&&entry.target) && !gone(&entry.target) {
            targets.push(&entry.target);
        }
    }
    let (entries, written): (Vec<Entry>, Vec<Option<String>>) =
        targets.into_iter().filter_map(|target| entry(group, target, found(target))).unzip();
    let last = group.last()?;
    let whole = Transaction { entries, written, ..(*last).clone() };
    (!whole.entries.is_empty()).then_some(whole)
}

/// One knob's entries as one, with the text that it has since.
fn entry(
    group: &[&Transaction],
    target: &Target,
    found: Option<Said>,
) -> Option<(Entry, Option<String>)> {
    let steps: Vec<(&Entry, Said)> = group
        .iter()
        .flat_map(|it| it.entries.iter().zip(&it.written))
        .filter(|(entry, _)| entry.target == *target)
        .filter_map(|(entry, raw)| {
            Some((entry, (knob::parse(target, raw.as_deref()?).ok()?, raw.clone()?)))
        })
        .collect();
    let (last, ours) = steps.last()?;
    let known =
        |value: &Value| steps.iter().any(|(entry, said)| said.0 == *value || entry.old == *value);
    // A value that is none of ours may yet become ours again: then undo begins at the last.
    let start = found.filter(|found| known(&found.0)).unwrap_or_else(|| ours.clone());
    let mut end = start.clone();
    for (entry, said) in steps.iter().rev() {
        if end.0 != entry.old && end.0 == said.0 {
            end = (entry.old.clone(), entry.old_raw.clone());
        }
    }
    if end.0 == start.0 {
        return None;
    }
    let (new, settles_as) = (start.0.clone(), start.0);
    let whole = Entry { old: end.0, old_raw: end.1, new, settles_as, ..(*last).clone() };
    Some((whole, Some(start.1)))
}

/// The records that tell a transaction that is over or complete.
fn records(transaction: Transaction) -> Vec<Record> {
    let Transaction { id, pid, origin, confirm_by, entries, written, state } = transaction;
    let mut records = vec![Record::Begin { transaction: id, pid, origin, confirm_by, entries }];
    let wrote = |(entry, raw): (usize, Option<String>)| {
        Some(Record::Wrote { transaction: id, entry, raw: raw? })
    };
    records.extend(written.into_iter().enumerate().filter_map(wrote));
    match state {
        State::Undone(by) => records.push(Record::Undone { transaction: id, by }),
        State::Confirmed => records
            .extend([Record::Done { transaction: id }, Record::Confirmed { transaction: id }]),
        // Unfinished ones are never folded.
        State::Done | State::Begun | State::Failed => {
            records.push(Record::Done { transaction: id })
        }
    }
    records
}
