//! What lasts from window to window, and how it steps one knob.
//!
//! The phases of a window are methods of [`Memory`] in separate files.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::time::Duration;

use super::balancer::Balancer;
use super::budget::Budget;
use super::decision::{LogEntry, LogKind};
use super::events::Events;
use super::existing::Existing;
use super::expected::Moved;
use super::knob_state::{Action, Context, Input, TrackedKnob, WriteKind};
use super::pattern::WorkloadHistory;
use super::policy::Policy;
use super::rest::Rest;
use super::verification::{Verification, Verifications};
use netsilo_model::change::{Change, Target};
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::host::KnobOwner;

/// The state that lasts from window to window.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    pub(super) policy: Policy,
    /// The newest time passed in.
    pub(super) now: Duration,
    pub(super) knobs: BTreeMap<Target, TrackedKnob>,
    pub(super) events: Events,
    pub(super) existing: Existing,
    /// The netdevs that the last plan placed.
    pub(super) placed: BTreeSet<String>,
    pub(super) workload: WorkloadHistory,
    pub(super) verifications: Verifications,
    /// Verifications that have ended since the last window and are not judged yet.
    pub(super) ended: Vec<Verification>,
    /// The inverse of changes that made things worse. They wait until the budget allows them.
    pub(super) to_revert: Vec<Change>,
    pub(super) budget: Budget,
    /// The last decision's writes and reverts, until their results are known.
    pub(super) requests: BTreeMap<Target, Request>,
    /// The plan that is reused while nothing changes.
    pub(super) rest: Option<Rest>,
    /// The rx queues whose interrupts were held in the last window.
    pub(super) held_queues: BTreeSet<(String, u32)>,
    /// The outcome that a plan followed last.
    pub(super) followed: Option<String>,
    /// Whether the last plan follows it.
    pub(super) follows: bool,
    /// Other programs that write knobs, as seen in the last window.
    pub(super) owners: Vec<KnobOwner>,
    /// What irqbalance was asked to leave alone.
    pub(super) balancer: Balancer,
    /// Decisions since the last window.
    pub(super) log: Vec<LogEntry>,
}

/// A write that was requested.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) kind: WriteKind,
    pub(super) change: Change,
    /// Share of the data that is read on the core of the new value's CPU.
    pub(super) read_there: Option<f64>,
    pub(super) napis: BTreeSet<NapiId>,
    pub(super) moved: Option<Moved>,
}

impl Memory {
    /// The memory without a history.
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            now: Duration::ZERO,
            knobs: BTreeMap::new(),
            events: Events::default(),
            existing: Existing::default(),
            placed: BTreeSet::new(),
            workload: WorkloadHistory::default(),
            verifications: Verifications::default(),
            ended: Vec::new(),
            to_revert: Vec::new(),
            budget: Budget::default(),
            requests: BTreeMap::new(),
            rest: None,
            held_queues: BTreeSet::new(),
            followed: None,
            follows: false,
            owners: Vec::new(),
            balancer: Balancer::default(),
            log: Vec::new(),
        }
    }

    /// Makes a new plan in the next window. That window counts as a change of the workload.
    pub(super) fn restart(&mut self) {
        self.workload.restart();
        self.rest = None;
    }

    /// Gives an input to a knob and executes its actions.
    pub(super) fn step(&mut self, target: &Target, input: Input<'_>) {
        let Some(knob) = self.knobs.get_mut(target) else { return };
        let context = Context { now: self.now, target, policy: &self.policy, owners: &self.owners };
        let (next, actions) = take(knob).step(&context, input);
        *knob = next;
        for action in actions {
            match action {
                Action::Log(kind, why) => self.log(Some(target), kind, why),
                Action::EndVerifications => self.ended.extend(self.verifications.end_of(target)),
                Action::Replan => self.rest = None,
                Action::Forget => drop(self.knobs.remove(target)),
            }
        }
    }

    /// Whether a kernel event may have created this knob recently.
    pub(super) fn is_new(&self, target: &Target) -> bool {
        self.existing.since(target).is_some_and(|since| {
            self.events.may_have_created(target, since, self.now, &self.owners)
        })
    }

    pub(super) fn log(&mut self, target: Option<&Target>, kind: LogKind, why: String) {
        self.log.push(LogEntry { at: self.now, target: target.cloned(), kind, why });
    }
}
