//! What netsilo wrote since boot, and what an undo would do now, as text and as JSON.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::iter::repeat;
use std::time::{Duration, SystemTime};

use netsilo_model::change::{Target, Value};
use netsilo_sys::transaction::record::{Entry, State, Transaction};
use netsilo_sys::transaction::undo::{RestoreResult, Undone};
use serde::Serialize;

use crate::tell::words::plural;

/// What netsilo wrote, as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Transactions<'a> {
    /// The transactions, newest first.
    transactions: Vec<Written<'a>>,
}

/// One transaction.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Written<'a> {
    transaction: u64,
    /// The verb that wrote it: `apply`, `tune`, `run`; `null` in the journal of an older netsilo.
    verb: Option<&'a str>,
    /// When it began to write, in seconds since 1970.
    at: Option<u64>,
    /// In words: `not undone`, `undone by undo`.
    state: String,
    knobs: Vec<WrittenKnob<'a>>,
}

/// One knob of a transaction.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WrittenKnob<'a> {
    target: &'a Target,
    old: &'a Value,
    new: &'a Value,
    standing: Standing,
    /// The newer transaction, the value of another program, or the error.
    detail: Option<String>,
}

/// Whether a value that was written is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum Standing {
    /// It is; undo writes the old one.
    InEffect,
    /// A newer transaction has replaced it; undo of that one brings it back.
    Replaced,
    /// The old value is back.
    Old,
    /// Another program or the driver has changed it; undo leaves it alone.
    Foreign,
    /// The knob does not exist any more.
    Gone,
    /// It cannot be read.
    Unreadable,
    /// The transaction is undone.
    Undone,
}

impl<'a> Transactions<'a> {
    /// These transactions; `expected` is what an undo of them would do.
    pub(crate) fn new(
        transactions: impl DoubleEndedIterator<Item = &'a Transaction>,
        expected: &[Undone],
    ) -> Self {
        let mut newer = HashMap::new();
        let written = |it: &'a Transaction| {
            // They are in the order of undoing.
            let undone = expected.iter().find(|undone| undone.transaction == it.id);
            let results = undone.into_iter().flat_map(|undone| undone.knobs.iter().rev());
            let results = results.map(|(_, result)| Some(result)).chain(repeat(None));
            let knob = |(entry, result): (&'a Entry, Option<&RestoreResult>)| {
                let (standing, detail) = match newer.get(&entry.target) {
                    Some(id) if it.is_open() => {
                        (Standing::Replaced, Some(format!("by transaction {id}")))
                    }
                    _ => standing(result),
                };
                let Entry { target, old, new, .. } = entry;
                WrittenKnob { target, old, new, standing, detail }
            };
            let knobs = it.entries.iter().zip(results).map(knob).collect();
            if it.is_open() {
                newer.extend(it.entries.iter().map(|entry| (&entry.target, it.id)));
            }
            Written {
                transaction: it.id,
                verb: it.request.as_ref().map(|request| request.verb.as_str()),
                at: it.request.as_ref().map(|request| request.at),
                state: state(it),
                knobs,
            }
        };
        Self { transactions: transactions.rev().map(written).collect() }
    }

    /// As text. An undone transaction is one line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for it in &self.transactions {
            let at = it.at.map(|at| {
                let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
                format!(", {}", humantime::format_rfc3339_seconds(at))
            });
            let verb = it.verb.map(|verb| format!(", by {verb}")).unwrap_or_default();
            let (id, state) = (it.transaction, &it.state);
            let _ = writeln!(text, "transaction {id}{}{verb}: {state}", at.unwrap_or_default());
            for knob in it.knobs.iter().filter(|knob| knob.standing != Standing::Undone) {
                let WrittenKnob { target, old, new, standing, detail } = knob;
                let detail = detail.iter().fold(String::new(), |_, detail| format!(" {detail}"));
                let standing = match standing {
                    Standing::InEffect => "in effect",
                    Standing::Replaced => "replaced",
                    Standing::Old => "the old value is back",
                    Standing::Foreign => "another program or the driver has changed it to",
                    Standing::Gone => "gone:",
                    Standing::Unreadable => "cannot be read:",
                    Standing::Undone => "undone",
                };
                let _ = writeln!(text, "  {target}: {old} -> {new}; {standing}{detail}");
            }
        }
        let knobs = self.transactions.iter().flat_map(|it| &it.knobs);
        let count = |standing| knobs.clone().filter(|it| it.standing == standing).count();
        let restored = count(Standing::InEffect);
        let _ = writeln!(text, "undo would write {}", plural(restored, "old value"));
        text
    }
}

fn standing(result: Option<&RestoreResult>) -> (Standing, Option<String>) {
    match result {
        None => (Standing::Undone, None),
        Some(RestoreResult::Restored | RestoreResult::Reworded(_)) => (Standing::InEffect, None),
        Some(RestoreResult::AlreadyOld) => (Standing::Old, None),
        Some(RestoreResult::Foreign(value) | RestoreResult::NotApplied(value)) => {
            (Standing::Foreign, Some(value.to_string()))
        }
        Some(RestoreResult::Gone(error)) => (Standing::Gone, Some(error.to_string())),
        Some(RestoreResult::Failed(error)) => (Standing::Unreadable, Some(error.to_string())),
    }
}

fn state(transaction: &Transaction) -> String {
    match transaction.state {
        State::Undone(by) => format!("undone by {by}"),
        State::Begun => "being written, or its writer was killed".into(),
        State::Failed => "failed, and not restored yet".into(),
        _ if transaction.awaits_confirmation().is_some() => "awaits netsilo confirm".into(),
        State::Done | State::Confirmed => "not undone".into(),
    }
}
