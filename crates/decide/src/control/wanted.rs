//! Phase four: what is wanted. This is the plan, with held knobs at their current places, and with
//! the earlier choice among equal places.

use std::collections::BTreeMap;
use std::mem::replace;

use super::decision::LogKind;
use super::hold::Hold;
use super::memory::Memory;
use super::view::{Window, is_xps};
use crate::judge::annotate::{plan_by_outcome, plan_with_verdicts};
use crate::plan::find_outcome::{FindOutcome, FoundOutcome};
use crate::plan::{Override, Plan, Unchanged, plan, plan_xps};
use netsilo_model::change::{Change, Target, apply_to, ordered};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;

impl Memory {
    /// Everything that is wanted: the plan of the resting state if that continues, else a new plan.
    ///
    /// irqbalance's ban list is decided with the writes, because only a part of the plan may be
    /// written.
    pub(super) fn want(&mut self, window: &Window<'_>, outcomes: &FindOutcome<'_>) -> Plan {
        let rest = self.rest.take().filter(|_| self.to_revert.is_empty());
        self.rest = rest.and_then(|rest| rest.goes_on(window));
        if let Some(rest) = &self.rest {
            return rest.plan().clone();
        }
        let plan = self.plan_by_outcome(window, &outcomes(window.analysis)).without_bans();
        self.note_basis(&plan);
        match plan.measured {
            Some(_) => plan,
            None => self.prefer_earlier_wants(self.around_held(plan, window), window),
        }
    }

    /// The plan by a measured outcome, if each of its changes may be written some day. Otherwise
    /// the plan by the model.
    fn plan_by_outcome(&self, window: &Window<'_>, found: &FoundOutcome<'_>) -> Plan {
        let goal = &self.policy.goal;
        let plan = plan_by_outcome(window.analysis, goal, found);
        let Some(basis) = &plan.measured else { return plan };
        let obstacle = plan.changes.iter().find_map(|change| {
            let why = self.knobs.get(&change.target)?.obstacle()?;
            Some(format!("{} {why}", change.target))
        });
        match obstacle {
            None => plan,
            Some(why) => {
                plan_with_verdicts(window.analysis, goal).without_outcome(&basis.outcome, &why)
            }
        }
    }

    /// Logs when plans begin or stop to follow an outcome. A different outcome counts as a change
    /// of the workload. The same outcome again does not, so a workload that only just matches moves
    /// nothing.
    fn note_basis(&mut self, plan: &Plan) {
        match &plan.measured {
            Some(basis) => {
                let is_other = self.followed.as_ref() != Some(&basis.outcome);
                if is_other {
                    self.workload.note_change();
                    self.followed = Some(basis.outcome.clone());
                }
                if !replace(&mut self.follows, true) || is_other {
                    let why = format!("outcome {}, {}", basis.outcome, basis.in_words());
                    self.log(None, LogKind::Follow, why);
                }
            }
            None if replace(&mut self.follows, false) => {
                let none = || "no outcome of this machine exists any more".to_owned();
                let of = |it: &Unchanged| format!("{}: {}", it.subject, it.reason);
                let why = plan.unused_outcome.as_ref().map_or_else(none, of);
                self.log(None, LogKind::Estimate, why);
            }
            None => {}
        }
    }

    /// The plan, but queues that were held in the last window stay where they are, and the others
    /// are placed around them.
    fn around_held(&self, plan: Plan, window: &Window<'_>) -> Plan {
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
        let mut around = plan_with_verdicts(window.analysis, &goal).without_bans();
        let held = |change: &&Change| {
            window.queue(&change.target).is_some_and(|queue| self.held_queues.contains(&queue))
        };
        around.unused_outcome = plan.unused_outcome;
        around.changes.retain(|change| !held(&change));
        around.changes.extend(plan.changes.into_iter().filter(|change| held(&change)));
        around.changes = ordered(around.changes);
        around.placements = plan.placements;
        around
    }

    /// The plan, but with the last window's wants instead of this window's, if the planner would
    /// let them stay after they were written. Among equal places, the earlier one counts, so that
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
        // Two similar queues may have exchanged their places, so first try all earlier wants
        // together.
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

    /// The plan with XPS for the future CPUs of the interrupts. Interrupts that are held for long
    /// keep their CPUs.
    pub(super) fn plan_xps(&self, window: &Window<'_>, plan: Plan, revert: &[Change]) -> Plan {
        if self.policy.goal.xps.is_none() {
            return plan;
        }
        let wanted_changes = self.wanted_changes(window, &plan).into_iter();
        let moving = wanted_changes
            .filter(|it| it.hold.as_ref().is_none_or(Hold::is_short))
            .map(|it| it.change);
        let moves: Vec<Change> =
            revert.iter().chain(moving).filter(|it| !is_xps(&it.target)).cloned().collect();
        let settings = apply_to(window.after(), &moves);
        let xps = plan_xps(&window.analysis.rates, &settings, &self.policy.goal);
        let others = plan.changes.into_iter().filter(|change| !is_xps(&change.target));
        Plan { changes: ordered(others.chain(xps).collect()), ..plan }
    }
}
