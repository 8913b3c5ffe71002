//! [`Plan`]: what will be written, what stays, what is refused, and what would help beyond that.

use netsilo_model::change::{Change, Knob, Target};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::Distance;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::place::AlgorithmName;
use crate::place::parts::Parts;
use crate::plan::measured_outcome::MeasuredBasis;

/// What `apply` will write, and what it leaves unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Plan {
    /// Writes, in the order in which `apply` makes them.
    pub changes: Vec<Change>,
    /// Where each interrupt and NAPI kthread will be, whether it moves or not.
    #[serde(default)]
    pub placements: Vec<Placement>,
    /// The cost of the placement by the model; `None` if nothing moves.
    #[serde(default)]
    pub predicted: Option<PlacementCost>,
    /// Whose placement it is, and the runner-up; `None` if nothing is nearly full, and if a goal
    /// or a measured outcome decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
    /// The measured outcome that it rests on; `None` if it rests on the cost model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredBasis>,
    /// The measured outcome that it does not use, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_outcome: Option<Unchanged>,
    /// What was examined and stays unchanged, with the reason.
    #[serde(default)]
    pub unchanged: Vec<Unchanged>,
    /// What was requested and cannot or must not be done, known before anything is written.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
    /// What would help beyond the settings that this plan can write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
    /// Whether to apply the plan although another program owns some of the knobs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_if_owned: bool,
}

impl Plan {
    /// This plan and then another part of it.
    pub(crate) fn and(mut self, part: Self) -> Self {
        self.changes.extend(part.changes);
        self.placements.extend(part.placements);
        self.unchanged.extend(part.unchanged);
        self.advice.extend(part.advice);
        self.refuse_all(part.refusals);
        self.predicted = part.predicted.or(self.predicted);
        self
    }

    /// Adds a change, if the new value differs from the old one.
    pub(crate) fn set<K: Knob + Into<Target>>(
        &mut self,
        knob: K,
        old: K::Value,
        new: K::Value,
        reason: String,
    ) {
        if old != new {
            self.changes.push(Change::new(knob, old, new, reason));
        }
    }

    pub(crate) fn leave(&mut self, subject: &(impl ToString + ?Sized), reason: &str) {
        self.unchanged.push(Unchanged { subject: subject.to_string(), reason: reason.to_owned() });
    }

    /// Says why a plan by the model does not use a measured outcome.
    pub(crate) fn without_outcome(mut self, id: &str, why: &str) -> Self {
        let (subject, reason) = (format!("measured outcome {id}"), format!("not used: {why}"));
        self.unused_outcome = Some(Unchanged { subject, reason });
        self
    }

    /// What the plan leaves as it is: a measured outcome first, then what was examined.
    pub fn all_unchanged(&self) -> impl Iterator<Item = &Unchanged> {
        self.unused_outcome.iter().chain(&self.unchanged)
    }

    /// Adds a refusal, unless the plan has the same one already.
    pub(crate) fn refuse(&mut self, subject: &str, cause: RefusalCause, reason: String) {
        self.refuse_all([Refusal::new(subject, cause, reason)]);
    }

    /// Adds refusals, except those that the plan has already.
    pub(crate) fn refuse_all(&mut self, refusals: impl IntoIterator<Item = Refusal>) {
        for refusal in refusals {
            if !self.refusals.contains(&refusal) {
                self.refusals.push(refusal);
            }
        }
    }
}

/// Where an interrupt or NAPI kthread will be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placement {
    /// Name in reports (`eth0 rx-3`).
    pub label: Subject,
    /// The device.
    pub netdev: NetdevIdentity,
    /// The interrupt; `None` for a NAPI kthread with an unknown interrupt.
    pub irq: Option<Irq>,
    /// Action names of the interrupt, joined by commas; empty without an interrupt.
    pub action: String,
    /// The CPUs.
    pub cpus: CpuSet,
    /// The algorithm that suggested these CPUs.
    pub algorithm: AlgorithmName,
    /// The reason, in one line.
    pub basis: String,
    /// Whether it is on another CPU now.
    pub moves: bool,
    /// Gain of the move by the cost model, in CPU-nanoseconds per second, with everything else
    /// where the plan puts it; negative if the move costs.
    pub gain_ns_per_s: i64,
    /// The parts of its cost there.
    #[serde(default)]
    pub cost: Parts,
    /// CPUs that were considered and not chosen, the cheapest first: the present one, and the
    /// cheapest at each distance from the reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
}

impl Placement {
    /// Whether it is an interrupt of transmit completions alone, which follows an rx queue.
    pub fn is_of_completions(&self) -> bool {
        matches!(self.label, Subject::TxQueue(..))
    }
}

/// A CPU that was not chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Alternative {
    /// The CPU.
    pub cpu: CpuId,
    /// Its distance from the CPU that reads most; `None` without a known reader.
    pub distance: Option<Distance>,
    /// The parts of the cost there.
    pub cost: Parts,
}

/// Cost of a placement by the model ([`netsilo_model::cost::weights`]), in CPU-nanoseconds per
/// second.
///
/// Costs that are the same on every CPU are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlacementCost {
    /// Cost of the present placement.
    pub before_ns_per_s: u64,
    /// Cost of the planned placement.
    pub after_ns_per_s: u64,
    /// The part of the present cost that takes CPU time; the rest delays work.
    #[serde(default)]
    pub before_cpu_ns_per_s: u64,
    /// The part of the planned cost that takes CPU time.
    #[serde(default)]
    pub after_cpu_ns_per_s: u64,
    /// Source of the cost weights, in words.
    pub distances: String,
}

/// How a placement was chosen where something is nearly full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Choice {
    /// Whose placement the plan has.
    pub chosen: Rated,
    /// The best one of the others; `None` if all proposers agree.
    pub runner_up: Option<Rated>,
}

/// A proposer, and the forecast of its placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rated {
    /// The algorithm, or `as it is`.
    pub proposer: String,
    /// How many times the observed load fits until something is full, as forecast.
    pub fits: f64,
}

/// Something that stays unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unchanged {
    /// The subject (`eth0 rx-3`, `irq 27 (virtio0-input.1)`).
    pub subject: String,
    /// The reason.
    pub reason: String,
}

/// A recommendation beyond what placement can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Advice {
    /// The subject (`eth0`).
    pub subject: String,
    /// What to do, and the evidence for it.
    pub text: String,
    /// Whether it is to switch RFS on, which the verdict on RFS may call harmful.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_rfs: bool,
}

/// Something that cannot or must not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    /// What was requested.
    pub subject: String,
    /// The cause, in a form that programs can match.
    pub cause: RefusalCause,
    /// The reason and what to do instead, for people.
    pub reason: String,
}

impl Refusal {
    pub(crate) fn new(subject: &str, cause: RefusalCause, reason: String) -> Self {
        Self { subject: subject.to_owned(), cause, reason }
    }
}

/// Why something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RefusalCause {
    /// The kernel manages this interrupt's affinity.
    ManagedIrq,
    /// The interrupt controller cannot direct this interrupt.
    NoAffinitySupport,
    /// A CPU that is not online.
    OfflineCpu,
    /// A CPU that is isolated (at boot or by a cpuset partition) or tickless.
    IsolatedCpu,
    /// CPUs without a free interrupt vector.
    NoFreeVector,
    /// The set of CPUs would be empty.
    EmptyMask,
    /// No such netdev.
    NoSuchNetdev,
    /// The kernel has no such knob.
    NoSuchKnob,
    /// Another program owns the knob.
    OtherOwner,
    /// The queue is in use by AF_XDP, io_uring or a lease.
    LeasedQueue,
    /// A number that the kernel rejects.
    OutOfRange,
    /// Another part of the same plan sets another value.
    Contradicted,
}
