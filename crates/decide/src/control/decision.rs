//! What the controller returns for each window, and the results of its writes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use netsilo_model::change::{Change, Target, Value};
use netsilo_model::derive::locality::Locality;

/// The controller's decision after one window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Everything that is wanted: the plan of `netsilo plan`, made around the knobs that are held.
    pub plan: Plan,
    /// What to write now: a part of the plan, often nothing.
    pub writes: Plan,
    /// The inverse of our changes that made things worse. They are to be written now.
    pub revert: Vec<Change>,
    /// New decisions since the last window, with their reasons.
    pub log: Vec<LogEntry>,
    /// What the controller is doing.
    pub state: ControllerState,
    /// Knobs that another program has written, and that are left to it.
    pub conflicts: Vec<Conflict>,
    /// Wanted changes that are held, each with the reason.
    pub held: Vec<Held>,
    /// The batches of writes that were judged in this window.
    pub verifications: Vec<VerificationResult>,
    /// For the data of this window: how far the protocol work is from the reader.
    #[serde(default)]
    pub locality: Locality,
}

/// What the controller is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ControllerState {
    /// No window has shown anything yet that could be placed.
    #[default]
    Observing,
    /// Changes are wanted, but not for long enough yet, or they are being written.
    Settling,
    /// No further change is wanted; the effect of the last writes is being measured.
    Verifying,
    /// Changes are wanted, but all of them are held for some time.
    HoldOff,
    /// No change is wanted.
    Settled,
}

/// A decision and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogEntry {
    /// When, since boot.
    pub at: Duration,
    /// The knob; `None` for a batch of several knobs.
    pub target: Option<Target>,
    /// What was decided.
    #[serde(rename = "what")]
    pub kind: LogKind,
    /// Why, in words that an operator would accept.
    pub why: String,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogKind {
    /// A change is to be written.
    Write,
    /// A change is wanted, but only as advice: netsilo writes nothing here.
    Advise,
    /// A reset removed a change, and it is to be written again.
    Reapply,
    /// A change is wanted, but not written now.
    Hold,
    /// A written value is in effect.
    InEffect,
    /// The kernel refused a write.
    Refused,
    /// The knob no longer exists.
    Gone,
    /// Another program has written the knob, so it is left to that program.
    Yield,
    /// netsilo may write the knob again.
    Regain,
    /// An event explains why the value changed: a reset, not another program.
    Reset,
    /// The written value is better than the previous one.
    Confirm,
    /// No difference between the written value and the previous one could be shown.
    NoDifference,
    /// The written value made things worse, and is reverted.
    Revert,
    /// The effect could not be judged.
    NotVerified,
    /// Plans follow a measured outcome from now on.
    Follow,
    /// Plans follow the cost model again.
    Estimate,
}

impl LogKind {
    /// The kind of the same decision if nothing is written.
    pub fn without_writes(self) -> Self {
        match self {
            Self::Write | Self::Reapply | Self::Revert => Self::Advise,
            other => other,
        }
    }
}

/// A knob that another program has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conflict {
    /// The knob.
    pub target: Target,
    /// Our value.
    pub ours: Value,
    /// The other program's value.
    pub theirs: Value,
    /// The program that likely wrote it; `unknown` if no known program runs.
    pub owner: String,
    /// When it was noticed, since boot.
    pub since: Duration,
}

/// A change that is wanted but not written now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Held {
    /// The knob.
    pub target: Target,
    /// Why not now.
    pub why: String,
    /// Whether the reason lasts as long as the workload. Then the change is never written.
    #[serde(default)]
    pub lasting: bool,
}

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteResult {
    /// In effect. The knob reports this value since the write (the kernel rounds counts).
    InEffect(Value),
    /// Failed for this reason. The knob has its old value.
    Refused(String),
    /// Not written, because another program had written this value in the meantime.
    Overwritten(Value),
    /// The knob no longer exists, or its number belongs to another knob now.
    Gone,
}

/// The measured effect of a batch of writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VerificationResult {
    /// When it was written, since boot.
    pub written_at: Duration,
    /// The knobs.
    pub targets: Vec<Target>,
    /// Better or worse.
    pub result: MeasuredEffect,
    /// CPU time per received megabyte, or per thousand forwarded packets, before and after.
    pub cost: Option<BeforeAfter>,
    /// Wakeups of threads that slept on a different CPU than the waker's, for the same amount of
    /// work.
    #[serde(default)]
    pub wakeups: Option<BeforeAfter>,
    /// Before and after: share of the bytes that are read under the last-level cache where the
    /// protocol ran, or of the forwarded packets that are completed there.
    pub locality: Option<BeforeAfter>,
    /// The wakeups that the plan predicted: those of the windows before, but from the new CPUs.
    /// `None` if they cannot be known.
    #[serde(default)]
    pub expected_wakeups: Option<f64>,
    /// The locality that the plan predicted.
    #[serde(default)]
    pub expected_locality: Option<f64>,
    /// The effect in one line of text.
    pub words: String,
}

/// Whether a batch of writes made things better or worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MeasuredEffect {
    /// A megabyte or a forwarded packet costs less CPU time, or fewer wakeups across CPUs.
    Better,
    /// No difference shown.
    NoDifference,
    /// A megabyte costs more, beyond noise. Or it is read farther away, for no gain.
    Worse,
    /// It could not be judged.
    Unknown,
}

/// A measure before and after.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BeforeAfter {
    /// Windows before.
    pub windows_before: usize,
    /// Windows after.
    pub windows_after: usize,
    /// Mean before (geometric for costs).
    pub before: f64,
    /// Mean after.
    pub after: f64,
    /// Lower end of the 99% interval of after compared with before (costs and wakeups: ratio;
    /// locality: difference).
    pub low: f64,
    /// Upper end.
    pub high: f64,
}
