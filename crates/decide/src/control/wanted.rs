//! Phase four: what is wanted. The plan, with the knobs that are held where they are, and with the
//! earlier choice among equal places.

use std::collections::BTreeMap;

use super::hold::Hold;
use super::memory::Memory;
use super::view::{Window, is_xps};
use crate::judge::annotate::plan_with_verdicts;
use crate::plan::{Goal, Override, Plan, plan, plan_xps};
use netsilo_model::change::{Change, Target, apply_to, ordered};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;

impl Memory {
    /// All that is wanted: the plan of the rest if it goes on, else a new one.
    pub(super) fn want(&mut self, window: &Window<'_>) -> Plan {
        let rest = self.rest.take().filter(|_| self.to_revert.is_empty());
        self.rest = rest.and_then(|rest| rest.goes_on(window));
        match &self.rest {
            Some(rest) => rest.plan().clone(),
            None => self.prefer_earlier_wants(self.plan_around_held(window), window),
        }
    }

    fn plan(&self, window: &Window<'_>, goal: &Goal) -> Plan {
        plan_with_verdicts(window.analysis, goal)
    }

    /// The plan, but with the queues that were held in the last window where they are: the others
    /// find their places around them.
    fn plan_around_held(&self, window: &Window<'_>) -> Plan {
        let plan = self.plan(window, &self.policy.goal);
        if self.held_queues.is_empty() {
            return plan;
        }
        let leave = |(netdev, queue): &(String, u32)| Override {
            netdev: netdev.clone(),
            queues: Some(CpuSet::from_cpu(CpuId(*queue))),
            leave: true,
            ..Override::default()
        };
        let mut goal = self.policy.goal.clone();
        goal.overrides.splice(0..0, self.held_queues.iter().map(leave));
        let mut around = self.plan(window, &goal);
        let held = |change: &&Change| {
            window.queue(&change.target).is_some_and(|queue| self.held_queues.contains(&queue))
        };
        around.changes.retain(|change| !held(&change));
        around.changes.extend(plan.changes.into_iter().filter(|change| held(&change)));
        around.changes = ordered(around.changes);
        around.placements = plan.placements;
        around
    }

    /// The plan, but with the last window's wants instead of this window's where the planner, after
    /// they were written, would let them stay: of equal places the first named one counts, so that
    /// noise does not choose.
    fn prefer_earlier_wants(&self, mut wanted: Plan, window: &Window<'_>) -> Plan {
        let Observation { after, attribution, .. } = window.analysis.observation;
        let earlier = self.knobs.iter().filter_map(|(target, knob)| {
            let change = knob.wanted_before(target, target.value_in(after)?)?;
            Some((target.clone(), change))
        });
        let earlier: BTreeMap<Target, Change> = earlier.collect();
        let as_earlier =
            |now: &Change| earlier.get(&now.target).is_some_and(|earlier| earlier.new == now.new);
        if earlier.is_empty() || wanted.changes.is_empty() || wanted.changes.iter().all(as_earlier)
        {
            return wanted;
        }
        let planned_after = |changes: &[Change]| {
            let (before, attribution) = (Snapshot::default(), attribution.clone());
            let followed = Observation { before, after: apply_to(after, changes), attribution };
            let Analysis { rates, costs, .. } = window.analysis;
            plan(&Analysis::with_rates(&followed, rates.clone(), costs), &self.policy.goal).changes
        };
        // Two alike may have exchanged their names: try all of the earlier wants together first.
        let all: Vec<Change> = earlier.values().cloned().collect();
        if planned_after(&all).is_empty() {
            wanted.changes = ordered(all);
            return wanted;
        }
        let choice = |now: &Change| earlier.get(&now.target).unwrap_or(now).clone();
        let choices: Vec<Change> = wanted.changes.iter().map(choice).collect();
        let moved_again = planned_after(&choices);
        for (change, choice) in wanted.changes.iter_mut().zip(choices) {
            if !moved_again.iter().any(|again| again.target == choice.target) {
                *change = choice;
            }
        }
        wanted
    }

    /// The plan with XPS for the CPUs that the interrupts will have; interrupts that are held for
    /// longer keep their CPUs.
    pub(super) fn plan_xps(&self, window: &Window<'_>, plan: Plan, revert: &[Change]) -> Plan {
        if self.policy.goal.xps.is_none() {
            return plan;
        }
        let candidates = self.candidates(window, &plan).into_iter();
        let moving =
            candidates.filter(|it| it.hold.as_ref().is_none_or(Hold::is_short)).map(|it| it.change);
        let moves: Vec<Change> =
            revert.iter().chain(moving).filter(|it| !is_xps(&it.target)).cloned().collect();
        let xps = plan_xps(&apply_to(window.after(), &moves), &self.policy.goal);
        let others = plan.changes.into_iter().filter(|change| !is_xps(&change.target));
        Plan { changes: ordered(others.chain(xps).collect()), ..plan }
    }
}
