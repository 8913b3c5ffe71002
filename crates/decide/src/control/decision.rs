//! What the controller answers with, and what it is told.

use std::time::Duration;

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::derive::locality::Locality;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// What one window led to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// All that is wanted: as `netsilo plan` would say, but that what is held is planned around.
    pub plan: Plan,
    /// What to write now: a part of it, often none.
    pub writes: Plan,
    /// Changes of ours that made it worse, reversed: to be written now.
    pub revert: Vec<Change>,
    /// What was decided, and why; only what is new since the last window.
    pub log: Vec<Entry>,
    /// How things stand.
    pub state: ControllerState,
    /// Knobs that someone else has written since, and that are left to them.
    pub conflicts: Vec<Conflict>,
    /// What was wanted and is held, with the reason.
    pub held: Vec<Held>,
    /// The changes whose effect was judged in this window.
    pub verdicts: Vec<Verdict>,
    /// How far what was read in this window had come.
    #[serde(default)]
    pub locality: Locality,
}

/// How things stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerState {
    /// Nothing was seen yet that could be placed.
    #[default]
    Observing,
    /// Changes are wanted: not yet for long enough, or being written.
    Settling,
    /// Nothing more is wanted; whether the last writes were good is being measured.
    Verifying,
    /// Changes are wanted, but each of them is held for the time being.
    HoldOff,
    /// No change is wanted.
    Settled,
}

/// A decision and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, since boot.
    pub at: Duration,
    /// The knob; `None` where it concerns the whole.
    pub target: Option<Target>,
    /// What was decided.
    pub what: What,
    /// Why, as a human would accept it.
    pub why: String,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A change is to be written.
    Write,
    /// A change that a reset undid is to be written again.
    Reapply,
    /// A change is wanted, but not made now.
    Hold,
    /// What was written is in force.
    InForce,
    /// The kernel refused it.
    Refused,
    /// The knob is no more.
    Gone,
    /// Someone else has written it: it is left to them.
    Yield,
    /// It is ours to write again.
    Regain,
    /// An event explains why it changed: a reset, not another writer.
    Reset,
    /// What was written is better than what was before.
    Confirm,
    /// What was written makes no difference that could be shown.
    NoDifference,
    /// What was written made it worse, and is taken back.
    Revert,
    /// Whether it was good could not be told.
    NotVerified,
}

/// A knob that someone else has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The knob.
    pub target: Target,
    /// What we wrote.
    pub ours: Value,
    /// What it says now.
    pub theirs: Value,
    /// Who that was, likely; `unknown` where no known writer runs.
    pub writer: String,
    /// When it was noticed, since boot.
    pub since: Duration,
}

/// A change that is wanted and not made now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The knob.
    pub target: Target,
    /// Why not now.
    pub why: String,
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// It is in force; the knob says this since (the kernel rounds counts).
    InForce(Value),
    /// It failed, for this reason; the knob has its old value.
    Refused(String),
    /// Someone else had written the knob in the meantime; it says this.
    Overwritten(Value),
    /// The knob is gone, or is another one's now.
    Gone,
}

/// How a batch of writes turned out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// When it was written, since boot.
    pub written_at: Duration,
    /// The knobs.
    pub targets: Vec<Target>,
    /// What it comes to.
    pub result: VerdictResult,
    /// CPU time per received megabyte, or per thousand forwarded packets, before and after.
    pub cost: Option<Compared>,
    /// Share of the bytes read under the last-level cache where the protocol ran, before and after.
    pub locality: Option<Compared>,
    /// In one line, for people.
    pub words: String,
}

/// What a verdict comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictResult {
    /// A megabyte, or a forwarded packet, costs less.
    Better,
    /// No difference shown.
    NoDifference,
    /// A megabyte costs more, beyond noise.
    Worse,
    /// It could not be told.
    Unknown,
}

/// A measure before and after.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Windows before.
    pub windows_before: usize,
    /// Windows after.
    pub windows_after: usize,
    /// Mean before (geometric for costs).
    pub before: f64,
    /// Mean after.
    pub after: f64,
    /// After relative to before (cost: ratio; locality: difference): the lower end of the 99%
    /// interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}
