//! Turns a [`Goal`] and an observation into a [`Plan`]: every change with its reason, and
//! everything left unchanged with its reason.

pub(crate) mod arfs;
mod by_value;
pub mod export;
mod flow_rules;
mod owners;
pub mod pin;
mod placement;
pub mod selection;

use netsilo_model::change::{Change, Target, Value, ordered};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::subject::Subject;
use serde::{Deserialize, Serialize};

pub use flow_rules::{Steering, SteeringError};

pub use crate::place::AlgorithmName;

/// Plans the changes that reach a goal.
///
/// Load comes from the whole observation; settings come from its later snapshot. The weights of
/// the cost model are those of the analysis.
pub fn plan(analysis: &Analysis<'_>, goal: &Goal) -> Plan {
    let after = analysis.after();
    let mut plan = Plan::default();
    let netdevs = selection::netdevs(after, goal, &mut plan);
    let pool = selection::pool(&after.topology, goal, &mut plan);
    by_value::defaults(after, goal, &mut plan);
    let places = placement::place(analysis, &netdevs, pool, goal, &mut plan);
    by_value::xps(after, &netdevs, &places, goal, &mut plan);
    by_value::rps(after, &netdevs, goal, &mut plan);
    by_value::rfs(after, &netdevs, goal, &mut plan);
    arfs::arfs(after, &netdevs, goal, &mut plan);
    flow_rules::steer(&netdevs, goal, &mut plan);
    arfs::advise(analysis, &netdevs, goal, &mut plan);
    plan.changes = ordered(plan.changes);
    plan.even_if_owned = goal.even_if_owned;
    plan
}

/// Plans XPS alone, for the present placement of the interrupts.
pub(crate) fn xps_of(after: &Snapshot, goal: &Goal) -> Vec<Change> {
    let mut plan = Plan::default();
    let netdevs = selection::netdevs(after, goal, &mut plan);
    by_value::xps(after, &netdevs, &placement::present_places(after), goal, &mut plan);
    plan.changes
}

/// What the operator wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Goal {
    /// The netdevs to place, by name; empty means every netdev that is up and has rx queues with
    /// interrupts.
    pub netdevs: Vec<String>,
    /// The CPUs that receive work may be placed on; `None` means all online CPUs except isolated
    /// and tickless ones.
    pub cpus: Option<CpuSet>,
    /// CPUs that nothing may be placed on, even if another option allows them.
    pub exclude: CpuSet,
    /// The affinity algorithm that places interrupts and NAPI kthreads.
    pub algorithm: AlgorithmName,
    /// Exceptions for single netdevs or queues; the first match applies.
    pub overrides: Vec<Override>,
    /// The weights of the cost model; the caller passes them to the [`Analysis`].
    pub costs: Costs,
    /// Whether to place interrupts and NAPI kthreads.
    pub irqs: bool,
    /// RPS: the CPUs for every rx queue of the netdevs; the empty set turns RPS off, `None` leaves
    /// it unchanged.
    pub rps: Option<CpuSet>,
    /// RFS: entries of the flow table, divided among the rx queues; 0 turns RFS off, `None` leaves
    /// it unchanged.
    pub rfs: Option<u32>,
    /// aRFS: whether the device steers each flow to the queue nearest its reader, by the RFS table;
    /// `None` leaves it unchanged.
    pub arfs: Option<bool>,
    /// Ports whose flows ntuple rules of the device steer to chosen rx queues; other rules stay
    /// unchanged.
    pub steer: Vec<Steering>,
    /// XPS: the CPUs that each tx queue serves; `None` leaves it unchanged.
    pub xps: Option<Xps>,
    /// `default_smp_affinity`; `None` leaves it unchanged.
    pub default_smp_affinity: Option<CpuSet>,
    /// `rps_default_mask`; `None` leaves it unchanged.
    pub rps_default_mask: Option<CpuSet>,
    /// Write knobs even if another program owns them.
    pub even_if_owned: bool,
}

impl Default for Goal {
    fn default() -> Self {
        Self {
            netdevs: Vec::new(),
            cpus: None,
            exclude: CpuSet::new(),
            overrides: Vec::new(),
            costs: Costs::default(),
            algorithm: AlgorithmName::default(),
            irqs: true,
            rps: None,
            rfs: None,
            arfs: None,
            steer: Vec::new(),
            xps: None,
            default_smp_affinity: None,
            rps_default_mask: None,
            even_if_owned: false,
        }
    }
}

/// Settings for one netdev, or some of its queues, that replace the goal's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Override {
    /// The netdev's name.
    pub netdev: String,
    /// The rx queues, as a list (`0-3,8`); `None` means all.
    pub queues: Option<CpuSet>,
    /// The algorithm for these queues.
    pub algorithm: Option<AlgorithmName>,
    /// The CPUs that these queues may be placed on.
    pub cpus: Option<CpuSet>,
    /// Leave these queues where they are.
    pub leave: bool,
}

/// Which CPUs each tx queue serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Xps {
    /// No XPS: the flow hash chooses the tx queue.
    Off,
    /// Each CPU sends through the tx queue whose completion interrupt is nearest; equally near
    /// queues share the CPUs evenly.
    Near,
}

/// What `apply` will write, and what it leaves unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Writes, in the order in which `apply` makes them.
    pub changes: Vec<Change>,
    /// Where each interrupt and NAPI kthread will be, whether it moves or not.
    #[serde(default)]
    pub placements: Vec<Placement>,
    /// The cost of the placement by the model; `None` if nothing moves.
    #[serde(default)]
    pub predicted: Option<Predicted>,
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
    /// Adds a change, if the new value differs from the old one.
    pub(crate) fn set(&mut self, target: Target, old: Value, new: Value, reason: String) {
        if old != new {
            self.changes.push(Change { target, old, new, reason });
        }
    }

    pub(crate) fn leave(&mut self, subject: &(impl ToString + ?Sized), reason: &str) {
        self.unchanged.push(Unchanged { subject: subject.to_string(), reason: reason.to_owned() });
    }

    /// Adds a refusal, unless the plan has the same one already.
    pub(crate) fn refuse(&mut self, subject: &str, cause: Cause, reason: String) {
        let refusal = Refusal { subject: subject.to_owned(), cause, reason };
        if !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }
}

/// Where an interrupt or NAPI kthread will be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// Cost of a placement by the model ([`netsilo_model::cost::weights`]), in CPU-nanoseconds per second.
///
/// Costs that are the same on every CPU are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// Cost of the present placement.
    pub before_ns_per_s: u64,
    /// Cost of the planned placement.
    pub after_ns_per_s: u64,
    /// Source of the cost weights, in words.
    pub distances: String,
}

/// Something that stays unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unchanged {
    /// The subject (`eth0 rx-3`, `irq 27 (virtio0-input.1)`).
    pub subject: String,
    /// The reason.
    pub reason: String,
}

/// A recommendation beyond what placement can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The subject (`eth0`).
    pub subject: String,
    /// What to do, and the evidence for it.
    pub text: String,
}

/// Something that cannot or must not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was requested.
    pub subject: String,
    /// The cause, in a form that programs can match.
    pub cause: Cause,
    /// The reason and what to do instead, for people.
    pub reason: String,
}

/// Why something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The kernel manages this interrupt's affinity.
    ManagedIrq,
    /// The interrupt controller cannot direct this interrupt.
    NoAffinitySupport,
    /// A CPU that is not online.
    OfflineCpu,
    /// A CPU that is isolated or tickless.
    IsolatedCpu,
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

#[cfg(test)]
mod tests;
