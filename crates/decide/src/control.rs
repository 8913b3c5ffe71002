//! The controller: for each observation window it decides what to write, hold, revert or leave to
//! other programs.
//!
//! Pure: time, observation, kernel events and write outcomes are arguments; the answer is a
//! [`Decision`]. `docs/controller.md` has the rules, the reasons for them, and what the tests show.
//!
//! **What lives here**: the memory from window to window, and the states of the knobs. It may use
//! the model crate, `place`, `plan`, `judge::annotate` and `stats`. Another way to place or to
//! judge must not come in: the controller decides when a planned change is written, not what is
//! planned.

mod budget;
mod decision;
mod demand;
mod events;
mod history;
mod hold;
mod knob_state;
mod pattern;
mod policy;
mod reconcile;
mod release;
mod rest;
mod trial;
mod view;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::time::Duration;

use self::budget::Budget;
pub use self::decision::{
    BeforeAfter, Conflict, ControllerState, Decision, Effect, Held, LogEntry, LogKind, TrialResult,
    WriteOutcome,
};
use self::events::{Events, covers};
use self::hold::Hold;
use self::knob_state::{Input, Knob, WriteKind};
use self::pattern::WorkloadHistory;
pub use self::policy::{Policy, WINDOW};
use self::release::Candidate;
use self::rest::Rest;
use self::trial::{Trial, Trials};
use self::view::Window;
use crate::plan::{Goal, Plan};
use netsilo_model::change::{Change, Target};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::host::KnobOwner;
use netsilo_model::snapshot::observation::Observation;

/// The state that lasts from window to window.
#[derive(Debug, Clone)]
pub struct Controller {
    policy: Policy,
    /// The newest time that was given.
    now: Duration,
    knobs: BTreeMap<Target, Knob>,
    events: Events,
    workload: WorkloadHistory,
    trials: Trials,
    /// Trials that have ended since the last window, not yet judged.
    ended: Vec<Trial>,
    /// Changes that made it worse, inverted, until the budget allows them.
    to_revert: Vec<Change>,
    budget: Budget,
    /// The last decision's writes and reverts, until their outcome is known.
    requests: BTreeMap<Target, Request>,
    /// The plan to reuse while nothing changes.
    rest: Option<Rest>,
    /// The rx queues whose interrupts were held in the last window.
    held_queues: BTreeSet<(String, u32)>,
    /// Other programs that write knobs, as of the last window.
    owners: Vec<KnobOwner>,
    /// Decisions since the last window.
    log: Vec<LogEntry>,
}

/// A write that was requested.
#[derive(Debug, Clone)]
struct Request {
    kind: WriteKind,
    change: Change,
    /// Share of the data that is read on the core of the new value's CPU.
    read_there: Option<f64>,
    napis: BTreeSet<NapiId>,
}

impl Controller {
    /// A controller without a history.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            now: Duration::ZERO,
            knobs: BTreeMap::new(),
            events: Events::default(),
            workload: WorkloadHistory::default(),
            trials: Trials::default(),
            ended: Vec::new(),
            to_revert: Vec::new(),
            budget: Budget::default(),
            requests: BTreeMap::new(),
            rest: None,
            held_queues: BTreeSet::new(),
            owners: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Sets another policy; knobs that were left to other programs are ours to write again.
    pub fn reconfigure(&mut self, policy: Policy) {
        self.policy = policy;
        self.restart();
        for target in self.knobs.keys().cloned().collect::<Vec<_>>() {
            self.step(&target, Input::Return { why: "the configuration was loaded again" });
        }
    }

    /// Sets another goal under the same policy: netdevs came or went that rules of the
    /// configuration match.
    pub fn set_goal(&mut self, goal: Goal) {
        self.policy.goal = goal;
        self.restart();
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The kernel announced an event.
    pub fn note_event(&mut self, now: Duration, event: &Event) {
        self.now = now;
        let covered = self.knobs.keys().filter(|target| covers(event, target));
        let covered: Vec<Target> = covered.cloned().collect();
        // Netdevs of containers come and go all the time: they cover no knob of ours.
        if !covered.is_empty() {
            self.restart();
        }
        for target in covered {
            self.step(&target, Input::Announced(event));
        }
        self.events.note(now, event.clone());
    }

    /// Decides after an observation window that ended `now`, in time since boot.
    pub fn tick(&mut self, now: Duration, observation: &Observation) -> Decision {
        let costs = self.policy.goal.costs.clone();
        let analysis = Analysis::new(observation, &costs);
        let window = Window::new(now, &analysis);
        self.observe(&window);
        self.reconcile(&window);
        let trials = self.judge_trials(&window);
        let plan = self.want(&window);
        let revert = self.revert(&window);
        let plan = self.track_wants(&window, plan, &revert);
        let candidates = self.candidates(&window, &plan);
        let state = self.state(&plan, &candidates, &revert);
        self.remember(&window, &plan, &candidates, &revert);
        let (writes, held) = self.write(&window, &plan, &candidates);
        let (conflicts, log) = (self.conflicts(), take(&mut self.log));
        let locality = analysis.silos.locality();
        Decision { plan, writes, revert, log, state, conflicts, held, trials, locality }
    }

    /// The outcomes of the last decision's writes and reverts; due before the next window.
    pub fn wrote(&mut self, now: Duration, outcomes: &[(Target, WriteOutcome)]) {
        self.now = now;
        let (mut batch, mut napis, mut since) = (Vec::new(), BTreeSet::new(), now);
        for (target, outcome) in outcomes {
            let Some(request) = self.requests.remove(target) else { continue };
            let Request { kind, change, read_there, napis: behind } = request;
            let wanted_since = self.knobs.get(target).and_then(Knob::wanted_since);
            self.knobs.entry(target.clone()).or_insert_with(|| Knob::new(now, false));
            self.step(
                target,
                Input::Written { request: kind, change: &change, read_there, outcome },
            );
            if matches!(outcome, WriteOutcome::InForce(_)) && kind == WriteKind::Write {
                since = since.min(wanted_since.unwrap_or(now));
                napis.extend(behind);
                batch.push(change);
            }
        }
        if !batch.is_empty() {
            self.ended.extend(self.trials.begin(now, since, batch, napis, &self.policy));
        }
    }

    /// Makes a new plan in the next window, which counts as a change of the workload.
    fn restart(&mut self) {
        self.workload.restart();
        self.rest = None;
    }

    /// Phase one: takes what later phases compare the knobs with.
    fn observe(&mut self, window: &Window<'_>) {
        self.now = window.now;
        self.owners.clone_from(&window.after().writers);
        self.requests.clear();
        self.workload.observe(window.now, &window.pattern, self.policy.calm);
    }

    /// Requests the reverts of values that are still ours, as far as the budget allows.
    fn revert(&mut self, window: &Window<'_>) -> Vec<Change> {
        let ours = |change: &Change| {
            let knob = self.knobs.get(&change.target);
            knob.is_some_and(|knob| knob.ours() == Some(&change.old))
                && change.target.value_in(window.after()).as_ref() == Some(&change.old)
        };
        let mut revert: Vec<Change> = take(&mut self.to_revert).into_iter().filter(ours).collect();
        let room = self.budget.left(window.now, self.policy.changes_per_minute).min(revert.len());
        self.to_revert = revert.split_off(room);
        self.budget.spend(window.now, revert.len());
        for change in &revert {
            let (kind, napis) = (WriteKind::Revert, BTreeSet::new());
            let request = Request { kind, change: change.clone(), read_there: None, napis };
            self.requests.insert(change.target.clone(), request);
        }
        revert
    }

    /// What the controller is doing.
    fn state(
        &self,
        plan: &Plan,
        candidates: &[Candidate<'_>],
        revert: &[Change],
    ) -> ControllerState {
        let any = |is: fn(Option<&Hold>) -> bool| candidates.iter().any(|it| is(it.hold.as_ref()));
        if plan.placements.is_empty() && plan.changes.is_empty() {
            ControllerState::Observing
        } else if !revert.is_empty() || any(|hold| hold.is_none_or(Hold::is_short)) {
            ControllerState::Settling
        } else if any(|hold| hold.is_some_and(Hold::is_timed)) {
            ControllerState::HoldOff
        } else if self.trials.is_open() {
            ControllerState::Verifying
        } else {
            ControllerState::Settled
        }
    }

    /// Keeps what the next window's plan depends on.
    fn remember(
        &mut self,
        window: &Window<'_>,
        plan: &Plan,
        candidates: &[Candidate<'_>],
        revert: &[Change],
    ) {
        let held = candidates.iter().filter(|it| it.hold.as_ref().is_some_and(|it| !it.is_short()));
        self.held_queues = held.filter_map(|it| window.queue(&it.change.target)).collect();
        if self.rest.is_none() && revert.is_empty() {
            self.rest = Rest::begin(plan, candidates, window);
        }
    }

    /// Phase six: requests the released changes, and reports the held ones.
    fn write(
        &mut self,
        window: &Window<'_>,
        plan: &Plan,
        candidates: &[Candidate<'_>],
    ) -> (Plan, Vec<Held>) {
        let mut writes = Plan { even_if_owned: plan.even_if_owned, ..Plan::default() };
        let mut held = Vec::new();
        for Candidate { change, hold } in candidates {
            let target = &change.target;
            if let Some(hold) = hold {
                self.step(target, Input::Held(hold));
                held.push(Held { target: target.clone(), why: hold.to_string() });
                continue;
            }
            self.step(target, Input::Requested(change));
            let reset = self.knobs.get(target).is_some_and(Knob::is_reset);
            let request = Request {
                kind: if reset { WriteKind::Reapply } else { WriteKind::Write },
                change: (*change).clone(),
                read_there: view::cpu_of(&change.new)
                    .and_then(|cpu| window.read_on_core_of(target, cpu)),
                napis: window.napis([target]),
            };
            self.requests.insert(target.clone(), request);
            writes.changes.push((*change).clone());
        }
        self.budget.spend(window.now, writes.changes.len());
        (writes, held)
    }

    fn log(&mut self, target: Option<&Target>, kind: LogKind, why: String) {
        self.log.push(LogEntry { at: self.now, target: target.cloned(), kind, why });
    }
}

fn is_xps(target: &Target) -> bool {
    matches!(target, Target::XpsCpus { .. })
}

#[cfg(test)]
mod simulate;
#[cfg(test)]
mod tests;
