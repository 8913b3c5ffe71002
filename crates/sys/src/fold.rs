//! Folding: the many small transactions of a daemon become one that takes back the same. No files here.
//!
//! Undo goes from the newest transaction to the oldest and restores only what is still ours. So where each transaction
//! found what the one before it had left, the first old value counts; where someone else wrote in between, the value found
//! after that, since undo would stop there.

use netsilo_core::change::Target;

use crate::knob;
use crate::transaction::{Entry, History, Origin, Record, State, Transaction, VERSION};

/// The journal with its daemon's transactions folded; `None` when that makes it no shorter, or not now.
///
/// Operators' transactions stay what they are, for `undo --last` and for their guards. What is `gone` for good needs no undo.
pub fn fold(history: &History, gone: &dyn Fn(&Target) -> bool) -> Option<Vec<Record>> {
    let boot_id = history.boot_id.clone()?;
    let mut kept: Vec<Transaction> = Vec::new();
    for transaction in &history.transactions {
        if transaction.is_open() && (transaction.is_unfinished() || transaction.awaits_confirmation().is_some()) {
            return None;
        }
        // A guard may still ask what became of its transaction.
        if !transaction.is_open() && transaction.confirm_by.is_none() {
            continue;
        }
        match kept.iter_mut().rev().find(|earlier| earlier.is_open()) {
            Some(earlier) if earlier.origin == Origin::Daemon && transaction.origin == Origin::Daemon => {
                let both = merged(earlier, transaction);
                *earlier = both;
            }
            _ => kept.push(transaction.clone()),
        }
    }
    for transaction in kept.iter_mut().filter(|it| it.origin == Origin::Daemon) {
        retain(transaction, |entry| !gone(&entry.target));
    }
    kept.retain(|transaction| transaction.origin == Origin::Operator || !transaction.entries.is_empty());
    kept.sort_by_key(|transaction| transaction.id);
    if kept == history.transactions {
        return None;
    }
    let boot = Record::Boot { version: VERSION, boot_id };
    Some([boot].into_iter().chain(kept.into_iter().flat_map(records)).collect())
}

/// Two finished transactions, one after the other, as one.
fn merged(earlier: &Transaction, later: &Transaction) -> Transaction {
    let mut both = Transaction { id: later.id, pid: later.pid, ..earlier.clone() };
    for (entry, written) in later.entries.iter().zip(&later.written) {
        let at = both.entries.iter().position(|it| it.target == entry.target);
        let Some(at) = at else {
            both.entries.push(entry.clone());
            both.written.push(written.clone());
            continue;
        };
        let chained = said(&both, at) == Some(entry.old.clone());
        let first = &both.entries[at];
        let (old, old_raw) = if chained {
            (first.old.clone(), first.old_raw.clone())
        } else {
            (entry.old.clone(), entry.old_raw.clone())
        };
        both.entries[at] = Entry { old, old_raw, ..entry.clone() };
        both.written[at] = written.clone();
    }
    let back = |at: usize| said(&both, at).as_ref() == Some(&both.entries[at].old);
    let is_back: Vec<Target> =
        (0..both.entries.len()).filter(|&at| back(at)).map(|at| both.entries[at].target.clone()).collect();
    retain(&mut both, |entry| !is_back.contains(&entry.target));
    both
}

/// What a knob said after the write.
fn said(transaction: &Transaction, at: usize) -> Option<netsilo_core::change::Value> {
    knob::parse(&transaction.entries[at].target, transaction.written[at].as_deref()?).ok()
}

fn retain(transaction: &mut Transaction, keep: impl Fn(&Entry) -> bool) {
    let Transaction { entries, written, .. } = transaction;
    (*entries, *written) = entries.drain(..).zip(written.drain(..)).filter(|(entry, _)| keep(entry)).unzip();
}

/// The records that tell a transaction that is over or complete.
fn records(transaction: Transaction) -> Vec<Record> {
    let Transaction { id, pid, origin, confirm_by, entries, written, state } = transaction;
    let mut records = vec![Record::Begin { transaction: id, pid, origin, confirm_by, entries }];
    let wrote = |(entry, raw): (usize, Option<String>)| Some(Record::Wrote { transaction: id, entry, raw: raw? });
    records.extend(written.into_iter().enumerate().filter_map(wrote));
    match state {
        State::Undone(by) => records.push(Record::Undone { transaction: id, by }),
        State::Confirmed => records.extend([Record::Done { transaction: id }, Record::Confirmed { transaction: id }]),
        // Unfinished ones are never folded.
        State::Done | State::Begun | State::Failed => records.push(Record::Done { transaction: id }),
    }
    records
}
