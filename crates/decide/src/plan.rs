//! Turns a [`Goal`] and an analysis into a [`Plan`]: every change with its reason, and everything
//! left unchanged with its reason. A measured outcome ([`measured_outcome`]) beats the cost model.
//!
//! **What lives here**: goals, plans, the making of plans ([`plan()`]), pinning of consumers
//! ([`pin`]), and plans as files of other programs ([`export`]). It may use the model crate and
//! `place`. Verdicts and findings must not come in: `judge::annotate` adds them to a finished plan.
//! Nothing here writes, and nothing here knows time: one analysis in, one plan out.

pub(crate) mod arfs;
mod by_value;
mod choice;
mod completions;
mod contents;
mod expected;
pub mod export;
pub mod find_outcome;
mod flow_rules;
mod free_vectors;
mod goal;
pub mod goal_text;
mod irq_changes;
pub mod isolate;
pub(crate) mod leave_alone;
mod make;
mod matching_outcome;
pub mod measured_outcome;
pub(crate) mod moves;
pub(crate) mod owners;
pub mod pin;
mod placement;
mod placement_cost;
mod places;
mod port_steering;
mod refused;
pub mod selection;
pub(crate) mod threads;
mod vectors;

pub use contents::{
    Advice, Alternative, Choice, Placement, PlacementCost, Plan, Rated, Refusal, RefusalCause,
    Unchanged,
};
pub use expected::expected_cost;
pub use goal::{Goal, Override, Xps};
pub use make::{plan, plan_as_measured};
pub(crate) use make::{plan_in_detail, plan_xps};
pub use matching_outcome::MatchingOutcome;
pub(crate) use placement_cost::Detail;
pub use port_steering::{PortSteering, PortSteeringError};

pub use crate::place::AlgorithmName;

#[cfg(test)]
mod tests;
