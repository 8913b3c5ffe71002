//! What is wanted of a window: the plan, with what is held, or was wanted before, where it is.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::change::{Change, Target, apply_to, ordered};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;

use crate::control::knob_state::Hold;
use crate::control::view::View;
use crate::control::{Controller, is_xps};
use crate::judge::annotate::plan_with_verdicts;
use crate::plan::{Goal, Override, Plan, plan, xps_of};

impl Controller {
    /// All that is wanted.
    pub(super) fn wanted(&self, analysis: &Analysis<'_>, view: &View<'_>) -> Plan {
        let planned = |goal: &Goal| plan_with_verdicts(analysis, goal);
        let wanted = self.around_what_is_held(planned(&self.policy.goal), view, planned);
        self.as_wanted_before(wanted, analysis)
    }

    /// The plan, but with what was held in the last window where it is: the others find their
    /// places around it.
    fn around_what_is_held(
        &self,
        plan: Plan,
        view: &View<'_>,
        plan_for: impl Fn(&Goal) -> Plan,
    ) -> Plan {
        if self.held.is_empty() {
            return plan;
        }
        let leave = |(netdev, queue): &(String, u32)| Override {
            netdev: netdev.clone(),
            queues: Some(CpuSet::of(CpuId(*queue))),
            leave: true,
            ..Override::default()
        };
        let mut goal = self.policy.goal.clone();
        goal.overrides.splice(0..0, self.held.iter().map(leave));
        let mut around = plan_for(&goal);
        let held = |change: &&Change| {
            view.queue(&change.target).is_some_and(|queue| self.held.contains(&queue))
        };
        around.changes.retain(|change| !held(&change));
        around.changes.extend(plan.changes.into_iter().filter(|change| held(&change)));
        around.changes = ordered(around.changes);
        around.placements = plan.placements;
        around
    }

    /// The plan, but with the last window's wishes where this window's put something else in their
    /// place and yet would let them stay, had they been followed: of equals the first one named
    /// counts, so that noise does not choose.
    fn as_wanted_before(&self, mut wanted: Plan, analysis: &Analysis<'_>) -> Plan {
        let observation = analysis.observation;
        let wishes = self.knobs.iter().filter_map(|(target, knob)| {
            knob.wanted_before(target, target.value_in(&observation.after)?)
        });
        let before: BTreeMap<Target, Change> =
            wishes.map(|change| (change.target.clone(), change)).collect();
        if before.is_empty()
            || wanted.changes.is_empty()
            || wanted
                .changes
                .iter()
                .all(|now| before.get(&now.target).is_some_and(|before| before.new == now.new))
        {
            return wanted;
        }
        let then = |changes: &[Change]| {
            let (before, attribution) = (Snapshot::default(), observation.attribution.clone());
            let followed =
                Observation { before, after: apply_to(&observation.after, changes), attribution };
            let followed = Analysis::with_rates(&followed, analysis.rates.clone(), analysis.costs);
            plan(&followed, &self.policy.goal).changes
        };
        // One of two alike could have been named.
        let all: Vec<Change> = before.values().cloned().collect();
        if then(&all).is_empty() {
            wanted.changes = ordered(all);
            return wanted;
        }
        let earlier: Vec<Change> = wanted
            .changes
            .iter()
            .map(|now| before.get(&now.target).unwrap_or(now).clone())
            .collect();
        let would_move = then(&earlier);
        for (change, earlier) in wanted.changes.iter_mut().zip(earlier) {
            if !would_move.iter().any(|would| would.target == earlier.target) {
                *change = earlier;
            }
        }
        wanted
    }

    /// XPS is worked out from where the interrupts will be: those that are held for longer stay
    /// where they are.
    pub(super) fn follow_interrupts(
        &self,
        now: Duration,
        wanted: &mut Plan,
        revert: &[Change],
        view: &View<'_>,
    ) {
        if self.policy.goal.xps.is_none() {
            return;
        }
        let decided = self.decide(now, wanted, view).into_iter();
        let will_be = decided
            .filter(|(_, hold)| hold.as_ref().is_none_or(Hold::is_short))
            .map(|(change, _)| change);
        let moves: Vec<Change> =
            revert.iter().chain(will_be).filter(|it| !is_xps(&it.target)).cloned().collect();
        wanted.changes.retain(|change| !is_xps(&change.target));
        wanted.changes.extend(xps_of(&apply_to(view.after, &moves), &self.policy.goal));
        wanted.changes = ordered(std::mem::take(&mut wanted.changes));
    }
}
