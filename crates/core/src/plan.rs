//! From a [`Goal`] and an observation to a [`Plan`]: every change with its reason, and everything
//! left alone with why.

pub mod fix;
pub(crate) mod flows;
mod owners;
mod placement;
pub mod selection;
mod steer;
mod steering;

use serde::{Deserialize, Serialize};

pub use steer::{Steering, SteeringError};

pub use crate::algorithm::AlgorithmName;
use crate::change::{Change, Knob, NetdevIdentity, ordered};
use crate::cost::Costs;
use crate::cpuset::CpuSet;
use crate::diagnose::Seen;
use crate::host::{Irq, Observation, Snapshot};
use crate::rates::{Rates, rates};
use crate::silo::{Silos, silos};

/// What would have to change to reach a goal, by what was observed; settings are those of the later
/// snapshot.
pub fn plan(observation: &Observation, goal: &Goal) -> Plan {
    let rates = rates(&observation.before, &observation.after);
    plan_of(observation, &rates, &silos(observation, &rates), goal)
}

/// The same, by rates and silos that are at hand.
pub fn plan_of(observation: &Observation, rates: &Rates, silos: &Silos, goal: &Goal) -> Plan {
    let after = &observation.after;
    let mut plan = Plan::default();
    let netdevs = selection::netdevs(after, goal, &mut plan);
    let pool = selection::pool(&after.topology, goal, &mut plan);
    steering::defaults(after, goal, &mut plan);
    let places = placement::place(observation, rates, silos, &netdevs, pool, goal, &mut plan);
    steering::xps(after, &netdevs, &places, goal, &mut plan);
    let seen = Seen { observation, rates, silos, costs: &goal.costs };
    steering::rps(&seen, &netdevs, goal, &mut plan);
    steering::rfs(&seen, &netdevs, goal, &mut plan);
    flows::arfs(&seen, &netdevs, goal, &mut plan);
    steer::steer(&netdevs, goal, &mut plan);
    flows::advise(after, silos, &netdevs, goal, &mut plan);
    plan.changes = ordered(plan.changes);
    plan.even_if_owned = goal.even_if_owned;
    plan
}

/// XPS alone, by where the interrupts are.
pub(crate) fn xps_of(after: &Snapshot, goal: &Goal) -> Vec<Change> {
    let mut plan = Plan::default();
    let netdevs = selection::netdevs(after, goal, &mut plan);
    steering::xps(after, &netdevs, &placement::present_places(after), goal, &mut plan);
    plan.changes
}

/// What the operator wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Goal {
    /// The netdevs to place, by name; empty means all that have queues with interrupts and are up.
    pub netdevs: Vec<String>,
    /// The CPUs that receive work may be placed on; `None` means all online ones that are not set
    /// apart.
    pub cpus: Option<CpuSet>,
    /// CPUs that nothing may be placed on, whatever else allows it.
    pub exclude: CpuSet,
    /// The affinity algorithm that places interrupts and NAPI kthreads.
    pub algorithm: AlgorithmName,
    /// What is wanted otherwise for some netdevs or queues; the first that fits counts.
    pub overrides: Vec<Override>,
    /// The weights of the cost model.
    pub costs: Costs,
    /// Whether to place interrupts and NAPI kthreads at all.
    pub irqs: bool,
    /// RPS: the CPUs for every rx queue of the netdevs, the empty set for off; `None` leaves it
    /// alone.
    pub rps: Option<CpuSet>,
    /// RFS: entries of the flow table, shared out over the rx queues, 0 for off; `None` leaves it
    /// alone.
    pub rfs: Option<u32>,
    /// aRFS: whether the device steers each flow to the queue nearest its reader, by the RFS table;
    /// `None` leaves it alone.
    pub arfs: Option<bool>,
    /// Flows to a port, each taken to rx queues of one's choice by rules of the device; what is not
    /// named is left alone.
    pub steer: Vec<Steering>,
    /// XPS: what each tx queue serves; `None` leaves it alone.
    pub xps: Option<Xps>,
    /// `default_smp_affinity`; `None` leaves it alone.
    pub default_smp_affinity: Option<CpuSet>,
    /// `rps_default_mask`; `None` leaves it alone.
    pub rps_default_mask: Option<CpuSet>,
    /// Act even though another program owns the knobs.
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

/// What is wanted otherwise for a netdev, or some of its queues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Override {
    /// The netdev's name.
    pub netdev: String,
    /// The rx queues, as a list (`0-3,8`); `None` means all.
    pub queues: Option<CpuSet>,
    /// The algorithm for them.
    pub algorithm: Option<AlgorithmName>,
    /// The CPUs that they may be placed on.
    pub cpus: Option<CpuSet>,
    /// Leave them where they are.
    pub leave: bool,
}

/// What each tx queue serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Xps {
    /// No XPS: queues by hash.
    Off,
    /// Each CPU sends through the queue whose completion interrupt is nearest, evenly shared out.
    Near,
}

/// What `apply` will do, and what it leaves alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Writes in the order in which they will be made.
    pub changes: Vec<Change>,
    /// Where each interrupt and NAPI kthread shall be, whether it moves or not.
    #[serde(default)]
    pub placements: Vec<Placement>,
    /// What the placement costs, by the model; `None` where nothing moves.
    #[serde(default)]
    pub predicted: Option<Predicted>,
    /// What was looked at and stays as it is, with the reason.
    #[serde(default)]
    pub unchanged: Vec<Unchanged>,
    /// What was asked for and cannot or must not be done, known before trying.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
    /// What would help where no setting of this plan does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
    /// Whether to apply it although another program owns some of the knobs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_if_owned: bool,
}

impl Plan {
    /// Adds a change, if it is one.
    fn set<K: Knob>(&mut self, knob: K, old: K::Value, new: K::Value, reason: String) {
        if old != new {
            self.changes.push(Change::new(knob, old, new, reason));
        }
    }

    fn leave(&mut self, subject: &str, reason: &str) {
        self.unchanged.push(Unchanged { subject: subject.to_owned(), reason: reason.to_owned() });
    }

    /// Adds a refusal, unless the same was refused before.
    fn refuse(&mut self, subject: &str, cause: Cause, reason: String) {
        let refusal = Refusal { subject: subject.to_owned(), cause, reason };
        if !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }
}

/// Where an interrupt or NAPI kthread shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// How people call it (`eth0 rx-3`).
    pub label: String,
    /// The device.
    pub netdev: NetdevIdentity,
    /// The interrupt; `None` for a NAPI kthread whose interrupt is not known.
    pub irq: Option<Irq>,
    /// Its action names, joined by commas; empty without an interrupt.
    pub action: String,
    /// The CPUs.
    pub cpus: CpuSet,
    /// Who suggests it.
    pub algorithm: AlgorithmName,
    /// Why, in one line.
    pub basis: String,
    /// Whether it is elsewhere now.
    pub moves: bool,
    /// What the move gains by the cost model, all else where the plan puts it; negative where it
    /// costs.
    pub gain_ns_per_s: i64,
}

/// What a placement costs by the model ([`crate::cost`]), in CPU-nanoseconds per second, without
/// what it costs anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// As everything is placed now.
    pub before_ns_per_s: u64,
    /// As the plan places it.
    pub after_ns_per_s: u64,
    /// Where the distances come from.
    pub distances: String,
}

/// Something that stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unchanged {
    /// What (`eth0 rx-3`, `irq 27 (virtio0-input.1)`).
    pub subject: String,
    /// Why.
    pub reason: String,
}

/// What would help where placing does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What it is about (`eth0`).
    pub subject: String,
    /// What to do, and what speaks for it.
    pub text: String,
}

/// Something that cannot or must not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was asked for.
    pub subject: String,
    /// Why not, in a form that programs can tell apart.
    pub cause: Cause,
    /// Why not and what to do instead, for people.
    pub reason: String,
}

/// Why something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The kernel manages this interrupt's affinity.
    ManagedIrq,
    /// The interrupt controller cannot direct it.
    NoAffinitySupport,
    /// A CPU that is not online.
    OfflineCpu,
    /// A CPU that is isolated or tickless.
    IsolatedCpu,
    /// No CPU would be left.
    EmptyMask,
    /// No such netdev.
    NoSuchNetdev,
    /// The kernel has no such knob.
    NoSuchKnob,
    /// Another program owns the knob.
    OtherOwner,
    /// The queue is held by AF_XDP, io_uring or a lease.
    LeasedQueue,
    /// A number that the kernel does not take.
    OutOfRange,
    /// Something else of the same plan wants another value.
    Contradicted,
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
