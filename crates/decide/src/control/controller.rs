//! The controller: runs the phases of each window, using its memory of earlier windows.

use std::mem::take;
use std::time::Duration;

use super::decision::{ControllerState, Decision, WriteResult};
use super::events::{covers, is_of};
use super::hold::Hold;
use super::knob_state::Input;
use super::memory::Memory;
use super::policy::Policy;
use super::rest::Rest;
use super::view::{Window, is_xps};
use super::wanted_change::WantedChange;
use crate::plan::find_outcome::FindOutcome;
use crate::plan::{Goal, Plan};
use netsilo_model::change::{Change, Target};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::observation::Observation;

/// The controller, with its memory of earlier windows.
#[derive(Debug, Clone)]
pub struct Controller {
    pub(super) memory: Memory,
}

impl Controller {
    /// A controller without a history.
    pub fn new(policy: Policy) -> Self {
        Self { memory: Memory::new(policy) }
    }

    /// Sets another policy. netsilo may write knobs again that it had left to other programs.
    pub fn reconfigure(&mut self, policy: Policy) {
        self.memory.policy = policy;
        self.memory.restart();
        self.memory.balancer.forget();
        for target in self.memory.knobs.keys().cloned().collect::<Vec<_>>() {
            self.memory.step(&target, Input::Return { why: "the configuration was loaded again" });
        }
    }

    /// Sets another goal under the same policy, because netdevs that match rules of the
    /// configuration came or went.
    pub fn set_goal(&mut self, goal: Goal) {
        self.memory.policy.goal = goal;
        self.memory.restart();
    }

    /// Outcomes were measured or forgotten.
    pub fn outcomes_changed(&mut self) {
        self.memory.restart();
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.memory.policy
    }

    /// The knobs with a history: those that are planned now, and those planned before.
    pub fn tracked(&self) -> impl Iterator<Item = &Target> {
        self.memory.knobs.keys()
    }

    /// The kernel announced an event.
    pub fn note_event(&mut self, now: Duration, event: &Event) {
        self.memory.now = now;
        let owners = &self.memory.owners;
        let covered = self.memory.knobs.keys().filter(|target| covers(event, target, owners));
        let covered: Vec<Target> = covered.cloned().collect();
        // Netdevs of containers come and go all the time. netsilo has no knobs on them.
        if !covered.is_empty() || self.memory.placed.iter().any(|netdev| is_of(event, netdev)) {
            self.memory.restart();
        }
        for target in covered {
            self.memory.step(&target, Input::Announced(event));
        }
        self.memory.events.note(now, event.clone());
    }

    /// Decides after an observation window that ended at `now`, in time since boot. Plans follow
    /// the measured outcome of its workload.
    pub fn tick(
        &mut self,
        now: Duration,
        observation: &Observation,
        outcomes: &FindOutcome<'_>,
    ) -> Decision {
        let costs = self.memory.policy.goal.costs.clone();
        let analysis = Analysis::new(observation, &costs);
        let window = Window::new(now, &analysis);
        self.observe(&window);
        self.memory.reconcile(&window);
        let verifications = self.memory.judge_verifications(&window);
        let plan = self.memory.want(&window, outcomes);
        let revert = self.memory.revert(&window);
        let plan = self.track_wants(&window, plan, &revert);
        let wanted_changes = self.memory.wanted_changes(&window, &plan);
        let state = self.state(&plan, &wanted_changes, &revert);
        self.remember(&window, &plan, &wanted_changes, &revert);
        let (writes, held) = self.memory.write(&window, &plan, &wanted_changes);
        let (conflicts, log) = (self.memory.conflicts(), take(&mut self.memory.log));
        let locality = analysis.silos.locality();
        Decision { plan, writes, revert, log, state, conflicts, held, verifications, locality }
    }

    /// Takes the results of the last decision's writes and reverts. Call it before the next window.
    pub fn wrote(&mut self, now: Duration, results: &[(Target, WriteResult)]) {
        self.memory.wrote(now, results);
    }

    /// Phase one: reads the values with which later phases compare the knobs.
    fn observe(&mut self, window: &Window<'_>) {
        self.memory.now = window.now;
        self.memory.owners.clone_from(&window.after().knob_owners);
        self.memory.note_balancer();
        self.memory.existing.observe(window.now, window.after());
        self.memory.requests.clear();
        self.memory.workload.observe(window.now, &window.pattern, self.memory.policy.calm);
    }

    /// Tracks what is wanted for each knob. Returns the plan with XPS for the new CPUs of the
    /// interrupts.
    fn track_wants(&mut self, window: &Window<'_>, plan: Plan, revert: &[Change]) -> Plan {
        self.memory.track(window, &plan, |target| !is_xps(target));
        let plan = match self.memory.rest {
            Some(_) => plan,
            None => self.memory.plan_xps(window, plan, revert),
        };
        self.memory.track(window, &plan, is_xps);
        plan
    }

    /// What the controller is doing.
    fn state(
        &self,
        plan: &Plan,
        wanted_changes: &[WantedChange<'_>],
        revert: &[Change],
    ) -> ControllerState {
        let any =
            |is: fn(Option<&Hold>) -> bool| wanted_changes.iter().any(|it| is(it.hold.as_ref()));
        if plan.placements.is_empty() && plan.changes.is_empty() {
            ControllerState::Observing
        } else if !revert.is_empty() || any(|hold| hold.is_none_or(Hold::is_short)) {
            ControllerState::Settling
        } else if any(|hold| hold.is_some_and(Hold::is_timed)) {
            ControllerState::HoldOff
        } else if self.memory.verifications.is_open() {
            ControllerState::Verifying
        } else {
            ControllerState::Settled
        }
    }

    /// Stores what the plan of the next window depends on.
    fn remember(
        &mut self,
        window: &Window<'_>,
        plan: &Plan,
        wanted_changes: &[WantedChange<'_>],
        revert: &[Change],
    ) {
        self.memory.placed = plan.placements.iter().map(|it| it.netdev.name.clone()).collect();
        let held =
            wanted_changes.iter().filter(|it| it.hold.as_ref().is_some_and(|it| !it.is_short()));
        self.memory.held_queues = held.filter_map(|it| window.queue(&it.change.target)).collect();
        if self.memory.rest.is_none() && revert.is_empty() {
            self.memory.rest = Rest::begin(plan, wanted_changes, window);
        }
    }
}
