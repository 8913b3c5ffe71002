//! Compacts the daemon's many small transactions into one that has the same effect on undo.
//!
//! No file access here.
//!
//! For each knob, undo is simulated on the knob's current value, from the newest transaction to the
//! oldest. The result becomes the old value of the compacted entry. So compaction also works if
//! another program has interrupted a chain, or if an undo was killed half way: the entry has what
//! undo would have restored.

use netsilo_model::change::{Target, Value};

use crate::read::netns::NetnsId;
use crate::transaction::knob;
use crate::transaction::record::{Entry, History, Origin, Record, State, Transaction};

/// A knob's value and the text it was parsed from.
pub type KnobText = (Value, String);

/// How many of the newest undone transactions are kept.
pub const UNDONE_KEPT: usize = 64;

/// Compacts the daemon's transactions of a journal, and leaves out old ones that are undone.
///
/// Returns `None` if that would not shorten the journal, or if a transaction is unfinished or
/// awaits confirmation. Operators' open transactions are kept unchanged, for `undo --last` and for
/// their guards, and so are those of network namespaces other than `own`. Knobs that are
/// permanently `gone` need no undo. `now` reads the current value of a knob.
pub fn compact(
    history: &History,
    own: Option<NetnsId>,
    gone: &dyn Fn(&Entry) -> bool,
    now: &dyn Fn(&Entry) -> Option<KnobText>,
) -> Option<Vec<Record>> {
    let boot_id = history.boot_id.clone()?;
    let open: Vec<&Transaction> = history.transactions.iter().filter(|it| it.is_open()).collect();
    if open.iter().any(|it| it.is_unfinished() || it.awaits_confirmation().is_some()) {
        return None;
    }
    let undone = history.transactions.iter().rev().filter(|it| !it.is_open()).take(UNDONE_KEPT);
    // `undo --list` shows an operator's, and a guard may still query the state of its transaction.
    let kept = |it: &&Transaction| it.origin == Origin::Operator || it.confirm_by.is_some();
    let mut all: Vec<Transaction> = undone.filter(kept).cloned().collect();
    let mut from = 0;
    // Settings that depend on a knob belong to the transaction that writes it.
    let joins = |it: &Transaction| {
        let is_here = it.netns.is_none() || it.netns == own;
        it.origin == Origin::Daemon && it.attached.is_empty() && is_here
    };
    for group in open.chunk_by(|a, b| joins(a) && joins(b) && a.netns == b.netns) {
        from += group.len();
        // Undo of a newer transaction restores values of these.
        if open[from..].iter().any(|it| !it.attached.is_empty()) {
            all.extend(group.iter().map(|it| (*it).clone()));
            continue;
        }
        // The value of the knob after undo of all newer transactions.
        let found = |of: &Entry| {
            let scoped = group[0].scoped(&of.target);
            let newer = open[from..]
                .iter()
                .flat_map(|it| it.entries.iter().map(move |entry| (it, entry)))
                .find(|(it, entry)| it.scoped(&entry.target) == scoped)
                .map(|(_, entry)| entry);
            newer.map(|entry| (entry.old.clone(), entry.old_raw.clone())).or_else(|| now(of))
        };
        match group {
            [only] if !joins(only) => all.push((*only).clone()),
            [only] if only.entries.iter().all(|entry| !gone(entry)) => all.push((*only).clone()),
            _ => all.extend(compacted(group, gone, &found)),
        }
    }
    all.sort_unstable_by_key(|transaction| transaction.id);
    if all == history.transactions {
        return None;
    }
    let boot = Record::boot(boot_id);
    Some([boot].into_iter().chain(all.into_iter().flat_map(records)).collect())
}

/// Merges consecutive finished transactions into one. Returns `None` if there is nothing to undo.
fn compacted(
    group: &[&Transaction],
    gone: &dyn Fn(&Entry) -> bool,
    found: &dyn Fn(&Entry) -> Option<KnobText>,
) -> Option<Transaction> {
    let mut firsts: Vec<&Entry> = Vec::new();
    for entry in group.iter().flat_map(|it| &it.entries) {
        if firsts.iter().all(|it| it.target != entry.target) && !gone(entry) {
            firsts.push(entry);
        }
    }
    let (entries, written): (Vec<Entry>, Vec<Option<String>>) =
        firsts.into_iter().filter_map(|first| entry(group, &first.target, found(first))).unzip();
    let last = group.last()?;
    let whole = Transaction { entries, written, ..(*last).clone() };
    (!whole.entries.is_empty()).then_some(whole)
}

/// Merges the entries of one knob, with the text read back after the last write. Leaves out those
/// of a netdev that was replaced since, because undo would not restore them.
fn entry(
    group: &[&Transaction],
    target: &Target,
    found: Option<KnobText>,
) -> Option<(Entry, Option<String>)> {
    let all = || {
        let entries = group.iter().flat_map(|it| it.entries.iter().zip(&it.written));
        entries.filter(|(entry, _)| entry.target == *target)
    };
    let newest = all().next_back()?.0.created;
    let steps: Vec<(&Entry, KnobText)> = all()
        .filter(|(entry, _)| entry.created == newest)
        .filter_map(|(entry, raw)| {
            Some((entry, (knob::parse(target, raw.as_deref()?).ok()?, raw.clone()?)))
        })
        .collect();
    let (last, ours) = steps.last()?;
    let known =
        |value: &Value| steps.iter().any(|(entry, said)| said.0 == *value || entry.old == *value);
    // Another program's value may become ours again later. Then undo starts from the last written
    // value.
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

/// The records of a transaction that is complete or undone.
fn records(transaction: Transaction) -> Vec<Record> {
    let Transaction {
        id, pid, origin, request, netns, confirm_by, entries, written, attached, ..
    } = transaction;
    let begin = Record::Begin {
        transaction: id,
        pid,
        origin,
        request,
        netns,
        confirm_by,
        entries,
        attached,
    };
    let mut records = vec![begin];
    let wrote = |(entry, raw): (usize, Option<String>)| {
        Some(Record::Wrote { transaction: id, entry, raw: raw? })
    };
    records.extend(written.into_iter().enumerate().filter_map(wrote));
    let after = transaction.attached_after;
    records.extend(after.map(|attached| Record::AttachedAfter { transaction: id, attached }));
    let keeps = transaction.keeps;
    records.extend(keeps.map(|attached| Record::Keeps { transaction: id, attached }));
    match transaction.state {
        State::Undone(by) => {
            let given_up = transaction.given_up;
            records.push(Record::Undone { transaction: id, by, given_up });
        }
        State::Confirmed => records
            .extend([Record::Done { transaction: id }, Record::Confirmed { transaction: id }]),
        // Unfinished transactions are never compacted.
        State::Done | State::Begun | State::Failed => {
            records.push(Record::Done { transaction: id })
        }
    }
    records
}
