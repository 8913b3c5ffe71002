//! The journal's records, and the transactions that they form.
//!
//! No file access here.

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::machine::schema::{NETSILO, Stamp};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::read::netns::NetnsId;
use crate::transaction::attached::Attached;
use crate::transaction::knob::{NapiOf, Reading};

/// The newest version of the records that this netsilo reads; the one that it writes.
pub const VERSION: u32 = 1;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The first line: the boot to which all others belong.
    Boot {
        /// [`VERSION`].
        version: u32,
        /// The version of the netsilo that began the journal. Older journals lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        netsilo: Option<String>,
        /// `/proc/sys/kernel/random/boot_id`.
        boot_id: String,
    },
    /// A whole plan with the old values. It is on disk before the first write.
    Begin {
        /// The transaction's number, unique in this journal.
        transaction: u64,
        /// The process that writes.
        pid: u32,
        /// Who requested it.
        #[serde(default, skip_serializing_if = "Origin::is_operator")]
        origin: Origin,
        /// By which command, and when. Older journals lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<Request>,
        /// The network namespace in which it wrote. Older journals lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        netns: Option<NetnsId>,
        /// Restore the old values unless confirmed by this time since boot (CLOCK_BOOTTIME).
        confirm_by: Option<Duration>,
        /// The writes, in order.
        entries: Vec<Entry>,
        /// Settings that these writes may reset, with their texts before.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attached: Vec<Attached>,
    },
    /// A knob was written. The record has the value read back.
    Wrote {
        /// The transaction.
        transaction: u64,
        /// Index of the entry.
        entry: usize,
        /// The text read back after the write, because the kernel rounds some values.
        raw: String,
    },
    /// The attached settings that differ after the writes, or after an incomplete restore. Their
    /// values are the driver's or ours.
    AttachedAfter {
        /// The transaction.
        transaction: u64,
        /// The settings with their texts.
        attached: Vec<Attached>,
    },
    /// Restoring begins. These attached settings were changed by another program since and get its
    /// value again.
    Keeps {
        /// The transaction.
        transaction: u64,
        /// The settings with their texts.
        attached: Vec<Attached>,
    },
    /// All writes are complete.
    Done {
        /// The transaction.
        transaction: u64,
    },
    /// A write failed. The earlier writes are being restored.
    Failed {
        /// The transaction.
        transaction: u64,
        /// What failed.
        why: String,
    },
    /// The operator keeps it.
    Confirmed {
        /// The transaction.
        transaction: u64,
    },
    /// The values that were still ours are restored. The transaction is over.
    Undone {
        /// The transaction.
        transaction: u64,
        /// Who restored it.
        by: RestoredBy,
        /// How many values could not be restored and were given up.
        #[serde(default, skip_serializing_if = "is_zero")]
        given_up: usize,
    },
}

/// One knob of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The knob, with everything that identifies it.
    pub target: Target,
    /// Its value before.
    pub old: Value,
    /// Its text before, byte for byte.
    pub old_raw: String,
    /// When a virtual netdev was created: a later netdev may have the same name and index. Journals
    /// of older versions lack this, and undo then compares only name and index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    /// The NAPI of a kthread. When the driver recreates its NAPIs, another kthread may poll it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kthread: Option<NapiOf>,
    /// The requested value.
    pub new: Value,
    /// The value that the kernel is known to store (rounded counts, RPS sets without isolated
    /// CPUs).
    pub settles_as: Value,
    /// Why, for people.
    pub reason: String,
    /// Restore whatever the current value is, because another command may write arbitrary values.
    #[serde(rename = "whatever", default, skip_serializing_if = "std::ops::Not::not")]
    pub restore_any_value: bool,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Record {
    /// The first line of a journal that this netsilo begins.
    pub fn boot(boot_id: String) -> Self {
        Self::Boot { version: VERSION, netsilo: Some(NETSILO.to_owned()), boot_id }
    }
}

impl Entry {
    /// A change that is about to overwrite what was read, with the value that the kernel will
    /// store.
    pub fn new(change: &Change, now: Reading, settles_as: Value, kthread: Option<NapiOf>) -> Self {
        Self {
            target: change.target.clone(),
            old: change.old.clone(),
            old_raw: now.raw,
            created: now.created,
            kthread,
            new: change.new.clone(),
            settles_as,
            reason: change.reason.clone(),
            restore_any_value: false,
        }
    }

    /// Refuses values of a type that the knob does not accept.
    fn checked(self) -> Result<Self, String> {
        for value in [&self.old, &self.new, &self.settles_as] {
            self.target.check(value).map_err(|e| e.to_string())?;
        }
        Ok(self)
    }

    /// Converts an offload from 0 or 1 to a switch. Older journals of the same boot may have
    /// numbers.
    fn upgrade(self) -> Self {
        let today = |value| match value {
            Value::Count(on) => Value::Switch(on != 0),
            value => value,
        };
        if !matches!(self.target, Target::Offload(_)) || !matches!(self.old, Value::Count(_)) {
            return self;
        }
        let old = today(self.old);
        Self {
            old_raw: format!("{old}\n"),
            old,
            new: today(self.new),
            settles_as: today(self.settles_as),
            ..self
        }
    }
}

/// Who requested a transaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A person or their program: `apply`.
    #[default]
    Operator,
    /// The daemon, whose transactions are compacted into one.
    Daemon,
}

impl Origin {
    fn is_operator(&self) -> bool {
        *self == Self::Operator
    }
}

/// The command that requested a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The program's verb: `apply`, `tune`, `run`.
    pub verb: String,
    /// When it began to write, in seconds since 1970.
    pub at: u64,
    /// Its command line, without the program. Older journals lack it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
}

/// Who restored a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoredBy {
    /// `apply` itself, after a failure.
    Apply,
    /// `undo`.
    Undo,
    /// The guard: the transaction was not confirmed in time.
    Guard,
    /// `confirm`, which came too late and found that the guard was gone.
    Confirm,
    /// The daemon, at exit, or at start if its predecessor was killed while writing.
    Daemon,
}

impl std::fmt::Display for RestoredBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Apply => "apply",
            Self::Undo => "undo",
            Self::Guard => "its guard",
            Self::Confirm => "confirm",
            Self::Daemon => "the daemon",
        })
    }
}

/// One `apply`, as recorded in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Its number.
    pub id: u64,
    /// The process that wrote it.
    pub pid: u32,
    /// Who requested it.
    pub origin: Origin,
    /// By which command, and when. Older journals lack it.
    pub request: Option<Request>,
    /// The network namespace in which it wrote. Older journals lack it.
    pub netns: Option<NetnsId>,
    /// Restore unless confirmed by then (CLOCK_BOOTTIME).
    pub confirm_by: Option<Duration>,
    /// Its knobs, in the order of writing.
    pub entries: Vec<Entry>,
    /// The text read back after each entry was written; `None` if it was not.
    pub written: Vec<Option<String>>,
    /// Settings that its writes may reset, with their texts before.
    pub attached: Vec<Attached>,
    /// The settings that differed after its writes. `None` if the transaction was interrupted
    /// before.
    pub attached_after: Option<Vec<Attached>>,
    /// The settings that keep another program's value. `None` before the transaction is restored.
    pub keeps: Option<Vec<Attached>>,
    /// How many values could not be restored when it was undone, and were given up.
    pub given_up: usize,
    /// Its state.
    pub state: State,
}

/// The state of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Writing, or killed while writing.
    Begun,
    /// A write failed. The restore is incomplete or was interrupted.
    Failed,
    /// All writes are complete.
    Done,
    /// All writes are complete, and the operator keeps them.
    Confirmed,
    /// It is undone.
    Undone(RestoredBy),
}

impl Transaction {
    /// Whether the kernel may still have some of its values.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Undone(_))
    }

    /// A knob of it, and the network namespace of the knob, if it belongs to one: two namespaces
    /// may have equal netdevs.
    pub fn scoped<'a>(&self, target: &'a Target) -> (Option<NetnsId>, &'a Target) {
        (self.netns.filter(|_| target.is_of_netns()), target)
    }

    /// Whether its writer was interrupted.
    pub fn is_unfinished(&self) -> bool {
        matches!(self.state, State::Begun | State::Failed)
    }

    /// The deadline for confirmation, while the transaction awaits one.
    pub fn awaits_confirmation(&self) -> Option<Duration> {
        if matches!(self.state, State::Undone(_) | State::Confirmed) {
            None
        } else {
            self.confirm_by
        }
    }
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a journal record: {why}")]
pub struct BadLine {
    /// Its number, from 1.
    pub line: usize,
    /// The problem.
    pub why: String,
}

/// The contents of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The boot to which the journal belongs. `None` before the first line.
    pub boot_id: Option<String>,
    /// The transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// Total size of complete lines in bytes.
    pub whole_bytes: usize,
    /// Size in bytes of the incomplete record after them. Its writer was killed.
    pub torn_bytes: usize,
}

impl History {
    /// Reads a journal. Ignores a last line without a newline.
    pub fn replay(bytes: &[u8]) -> Result<Self, BadLine> {
        let whole_bytes = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut history =
            Self { whole_bytes, torn_bytes: bytes.len() - whole_bytes, ..Self::default() };
        for (number, line) in
            bytes[..whole_bytes].split_inclusive(|&byte| byte == b'\n').enumerate()
        {
            let bad = |why: String| BadLine { line: number + 1, why };
            let record = serde_json::from_slice(line).map_err(|error| {
                // serde lists all knobs where it expects one.
                let words = error.to_string();
                bad(words.split(", expected one of").next().unwrap_or(&words).to_owned())
            })?;
            history.add_record(record).map_err(bad)?;
        }
        Ok(history)
    }

    /// Adds a record.
    pub fn add_record(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Boot { .. } if self.boot_id.is_some() => {
                return Err("a second boot record".into());
            }
            Record::Boot { version, netsilo, boot_id } => {
                let stamp = Stamp { schema: Some(version), netsilo };
                stamp.check(VERSION).map_err(|unknown| unknown.to_string())?;
                self.boot_id = Some(boot_id);
            }
            _ if self.boot_id.is_none() => return Err("no boot record precedes it".into()),
            Record::Begin { transaction: u64::MAX, .. } => {
                return Err("no transaction number can follow this one".into());
            }
            Record::Begin {
                transaction: id,
                pid,
                origin,
                request,
                netns,
                confirm_by,
                entries,
                attached,
            } => {
                let today = entries.into_iter().map(|entry| entry.upgrade().checked());
                let entries = today.collect::<Result<Vec<Entry>, String>>()?;
                if self.transactions.last().is_some_and(|t| t.id >= id) {
                    return Err(format!("transaction {id} is not newer than the earlier ones"));
                }
                let written = vec![None; entries.len()];
                self.transactions.push(Transaction {
                    id,
                    pid,
                    origin,
                    request,
                    netns,
                    confirm_by,
                    entries,
                    written,
                    attached,
                    attached_after: None,
                    keeps: None,
                    given_up: 0,
                    state: State::Begun,
                });
            }
            Record::Wrote { transaction, entry, raw } => {
                let written = self.find(transaction)?.written.get_mut(entry);
                *written
                    .ok_or_else(|| format!("transaction {transaction} has no entry {entry}"))? =
                    Some(raw);
            }
            Record::AttachedAfter { transaction, attached } => {
                let transaction = self.find(transaction)?;
                (transaction.attached_after, transaction.keeps) = (Some(attached), None);
            }
            Record::Keeps { transaction, attached } => {
                self.find(transaction)?.keeps = Some(attached);
            }
            Record::Done { transaction } => self.find(transaction)?.state = State::Done,
            Record::Failed { transaction, .. } => self.find(transaction)?.state = State::Failed,
            Record::Confirmed { transaction } => self.find(transaction)?.state = State::Confirmed,
            Record::Undone { transaction, by, given_up } => {
                let transaction = self.find(transaction)?;
                (transaction.state, transaction.given_up) = (State::Undone(by), given_up);
            }
        }
        Ok(())
    }

    /// The number for the next transaction.
    pub fn next_id(&self) -> u64 {
        self.transactions.last().map_or(1, |t| t.id + 1)
    }

    fn find(&mut self, id: u64) -> Result<&mut Transaction, String> {
        // each number is larger than the one before
        match self.transactions.binary_search_by_key(&id, |t| t.id) {
            Ok(at) => Ok(&mut self.transactions[at]),
            Err(_) => Err(format!("transaction {id} has no begin record")),
        }
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::change::knobs;

    use super::*;

    fn line(record: &Record) -> String {
        serde_json::to_string(record).unwrap() + "\n"
    }

    fn boot() -> String {
        line(&Record::boot("b".into()))
    }

    fn begin(transaction: u64) -> String {
        let entry = Entry {
            target: knobs::RpsSockFlowEntries.into(),
            old: Value::Count(0),
            old_raw: "0\n".into(),
            created: None,
            kthread: None,
            new: Value::Count(1000),
            settles_as: Value::Count(1024),
            reason: "rfs".into(),
            restore_any_value: false,
        };
        line(&Record::Begin {
            transaction,
            pid: 7,
            origin: Origin::Operator,
            request: None,
            netns: None,
            confirm_by: None,
            entries: vec![entry],
            attached: Vec::new(),
        })
    }

    #[test]
    fn a_value_that_the_knob_does_not_take_is_refused() {
        let wrong = begin(1).replace(r#""new":{"count":1000}"#, r#""new":{"cpus":"0-3"}"#);
        assert_eq!(
            History::replay((boot() + &wrong).as_bytes()).unwrap_err().to_string(),
            "line 2 is not a journal record: rps_sock_flow_entries: the knob \
             `rps_sock_flow_entries` takes a value of type `count`, not `cpus`"
        );
    }

    #[test]
    fn a_torn_last_line_is_ignored() {
        let wrote = line(&Record::Wrote { transaction: 1, entry: 0, raw: "1024\n".into() });
        let whole = boot() + &begin(1);
        let before = History::replay(whole.as_bytes()).unwrap();
        for cut in 1..wrote.len() {
            let torn = History::replay((whole.clone() + &wrote[..cut]).as_bytes()).unwrap();
            assert_eq!((torn.torn_bytes, &torn.transactions), (cut, &before.transactions));
        }
        let after = History::replay((whole + &wrote).as_bytes()).unwrap();
        assert_eq!(
            (after.torn_bytes, &after.transactions[0].written),
            (0, &vec![Some("1024\n".into())])
        );
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        let message = |text: String| History::replay(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(message(begin(1)), "line 1 is not a journal record: no boot record precedes it");
        assert!(
            message(boot() + "x\n" + &begin(1))
                .starts_with("line 2 is not a journal record: expected value")
        );
        let done = line(&Record::Done { transaction: 3 });
        assert_eq!(
            message(boot() + &done),
            "line 2 is not a journal record: transaction 3 has no begin record"
        );
        assert!(message(boot() + &begin(2) + &begin(2)).contains("not newer"));
        assert!(
            message(boot() + &begin(u64::MAX))
                .ends_with("no transaction number can follow this one")
        );
        let other = Record::Boot { version: 9, netsilo: None, boot_id: "b".into() };
        assert!(
            message(line(&other)).starts_with("line 1 is not a journal record: schema 9; this")
        );
    }

    proptest::proptest! {
        #[test]
        fn damaged_journals_never_panic_and_whole_lines_are_counted(
            at in 0..400usize,
            byte: u8,
            cut in 0..400usize,
        ) {
            let done = Record::Done { transaction: 1 };
            let mut journal = (boot() + &begin(1) + &line(&done)).into_bytes();
            if let Some(place) = journal.get_mut(at) {
                *place = byte;
            }
            journal.truncate(cut);
            if let Ok(history) = History::replay(&journal) {
                assert_eq!(history.whole_bytes + history.torn_bytes, journal.len());
            }
        }
    }

    #[test]
    fn states_follow_the_records() {
        let open = |text: &str| {
            let history = History::replay((boot() + &begin(1) + text).as_bytes()).unwrap();
            (history.transactions[0].is_open(), history.transactions[0].is_unfinished())
        };
        assert_eq!(open(""), (true, true));
        assert_eq!(open(&line(&Record::Done { transaction: 1 })), (true, false));
        assert_eq!(open(&line(&Record::Failed { transaction: 1, why: "x".into() })), (true, true));
        assert_eq!(open(&line(&Record::Confirmed { transaction: 1 })), (true, false));
        assert_eq!(
            open(&line(&Record::Undone { transaction: 1, by: RestoredBy::Guard, given_up: 0 })),
            (false, false)
        );
    }
}
