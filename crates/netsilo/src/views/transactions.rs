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
use crate::views::undone::{Fate, fate};

/// Seconds from 1970 to the first year that RFC 3339 cannot write.
const YEAR_10000: u64 = 253_402_300_800;

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
    /// The other network namespace in which it wrote, by its name or inode number.
    #[serde(skip_serializing_if = "Option::is_none")]
    netns: Option<String>,
    /// In words: `not undone`, `undone by undo`, `undone by undo, 2 settings given up`.
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
    /// What an undo would do; `null` if the transaction is undone.
    undo: Option<Fate>,
    /// The value of another program, or the error.
    detail: Option<String>,
    /// The newer transaction that has replaced the value; undo of that one brings it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_by: Option<u64>,
}

impl<'a> Transactions<'a> {
    /// These transactions; `expected` is what an undo of them would do, `netns` the other network
    /// namespace of a transaction.
    pub(crate) fn new(
        transactions: impl DoubleEndedIterator<Item = &'a Transaction>,
        expected: &[Undone],
        netns: &dyn Fn(&Transaction) -> Option<String>,
    ) -> Self {
        let mut newer = HashMap::new();
        let written = |it: &'a Transaction| {
            // They are in the order of undoing.
            let undone = expected.iter().find(|undone| undone.transaction == it.id);
            let results = undone.into_iter().flat_map(|undone| undone.knobs.iter().rev());
            let results = results.map(|(_, result)| Some(result)).chain(repeat(None));
            let knob = |(entry, result): (&'a Entry, Option<&RestoreResult>)| {
                let (undo, detail) = result.map(fate).unzip();
                let replaced_by =
                    newer.get(&it.scoped(&entry.target)).copied().filter(|_| it.is_open());
                let Entry { target, old, new, .. } = entry;
                WrittenKnob { target, old, new, undo, detail: detail.flatten(), replaced_by }
            };
            let knobs = it.entries.iter().zip(results).map(knob).collect();
            if it.is_open() {
                newer.extend(it.entries.iter().map(|entry| (it.scoped(&entry.target), it.id)));
            }
            Written {
                transaction: it.id,
                verb: it.request.as_ref().map(|request| request.verb.as_str()),
                at: it.request.as_ref().map(|request| request.at),
                netns: netns(it),
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
            let at = it.at.filter(|at| *at < YEAR_10000).map(|at| {
                let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
                format!(", {}", humantime::format_rfc3339_seconds(at))
            });
            let verb = it.verb.map(|verb| format!(", by {verb}")).unwrap_or_default();
            let netns = it.netns.as_ref().map(|netns| format!(", in netns {netns}"));
            let (id, state) = (it.transaction, &it.state);
            let (at, netns) = (at.unwrap_or_default(), netns.unwrap_or_default());
            let _ = writeln!(text, "transaction {id}{at}{verb}{netns}: {state}");
            for knob in &it.knobs {
                let WrittenKnob { target, old, new, undo: Some(undo), detail, .. } = knob else {
                    continue;
                };
                let detail = detail.as_deref().unwrap_or_default();
                let standing = match (undo, knob.replaced_by) {
                    (_, Some(id)) => format!("replaced by transaction {id}"),
                    (Fate::Restored, None) => "in effect".into(),
                    (Fate::WasOld, None) => "the old value is back".into(),
                    (Fate::Foreign, None) => {
                        format!("another program or the driver has changed it to {detail}")
                    }
                    (Fate::Gone, None) => format!("gone: {detail}"),
                    (Fate::Failed, None) => format!("cannot be read: {detail}"),
                };
                let _ = writeln!(text, "  {target}: {old} -> {new}; {standing}");
            }
        }
        let knobs = self.transactions.iter().flat_map(|it| &it.knobs);
        let is_written =
            |it: &&WrittenKnob<'_>| it.undo == Some(Fate::Restored) && it.replaced_by.is_none();
        let settings = plural(knobs.filter(is_written).count(), "setting");
        let _ = writeln!(text, "undo would restore {settings}");
        text
    }
}

fn state(transaction: &Transaction) -> String {
    match transaction.state {
        State::Undone(by) if transaction.given_up > 0 => {
            format!("undone by {by}, {} given up", plural(transaction.given_up, "setting"))
        }
        State::Undone(by) => format!("undone by {by}"),
        State::Begun => "being written, or its writer was killed".into(),
        State::Failed => "failed, and not restored yet".into(),
        _ if transaction.awaits_confirmation().is_some() => "awaits netsilo confirm".into(),
        State::Done | State::Confirmed => "not undone".into(),
    }
}
