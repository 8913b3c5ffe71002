//! The best placement together with the knobs that rank first.

use netsilo_model::change::{Change, ordered};
use netsilo_model::derive::analysis::Analysis;

use crate::judge::annotate::plan_with_verdicts;
use crate::judge::candidates::candidate::{Candidate, CandidateEstimate, Ranking};
use crate::judge::verdict::Claim;
use crate::plan::{AlgorithmName, Goal, Plan};

/// Number of knobs that are tried together with the best placement: those that rank first.
pub(super) const COMBINED: usize = 4;

/// A knob, and the model's prediction for it.
#[derive(Clone)]
pub(super) struct KnobCandidate {
    pub(super) name: String,
    /// The goal whose plan sets the knob; `None` if `plan` is made in another way.
    pub(super) goal: Option<Goal>,
    pub(super) plan: Plan,
    pub(super) expected: CandidateEstimate,
    /// Whether a gain is predicted, if the ranking covers it.
    pub(super) may_gain: bool,
}

/// The knobs that change something, sorted by predicted gain. Knobs that need a permission that was
/// not given come last.
pub(super) fn ranked(
    knobs: Vec<KnobCandidate>,
    allow_interruption: bool,
    ranking: Ranking<'_>,
) -> Vec<KnobCandidate> {
    let changes = |it: &KnobCandidate| !it.plan.changes.is_empty();
    let knobs: Vec<KnobCandidate> = knobs.into_iter().filter(changes).collect();
    let candidate = |it: &KnobCandidate| Candidate {
        name: it.name.clone(),
        plan: it.plan.clone(),
        expected: it.expected.clone(),
    };
    let gains = ranking(&knobs.iter().map(candidate).collect::<Vec<_>>());
    let gain = |at: usize| gains.get(at).copied().flatten().unwrap_or(0.0);
    let mut all: Vec<(f64, KnobCandidate)> =
        knobs.into_iter().enumerate().map(|(at, knob)| (gain(at), knob)).collect();
    all.sort_by(|(a, of_a), (b, of_b)| {
        let is_refused = |it: &KnobCandidate| !allow_interruption && interrupts(&it.plan).is_some();
        is_refused(of_a)
            .cmp(&is_refused(of_b))
            .then(b.total_cmp(a))
            .then(of_a.expected.rank().cmp(&of_b.expected.rank()))
    });
    let with_gain =
        |(gain, knob): (f64, KnobCandidate)| KnobCandidate { may_gain: gain > 0.0, ..knob };
    all.into_iter().map(with_gain).collect()
}

/// The first change that may stop the traffic of its device.
pub(super) fn interrupts(plan: &Plan) -> Option<&Change> {
    plan.changes.iter().find(|it| it.target.interrupts_traffic().is_some())
}

/// The goal with an algorithm that places interrupts.
pub(super) fn placing(goal: Goal, algorithm: AlgorithmName) -> Goal {
    Goal { irqs: true, algorithm, ..goal }
}

/// The placement with the lowest cost by the model.
pub(super) struct Best<'a> {
    pub(super) analysis: &'a Analysis<'a>,
    pub(super) algorithm: AlgorithmName,
    pub(super) placement: Plan,
}

impl Best<'_> {
    /// Placement and knob in one plan; `None` if one of them undoes the other.
    pub(super) fn with(&self, knob: &KnobCandidate) -> Option<Plan> {
        match &knob.goal {
            Some(goal) => {
                let goal = placing(goal.clone(), self.algorithm);
                Some(plan_with_verdicts(self.analysis, &goal))
            }
            None => merged(&self.placement, &knob.plan.changes),
        }
    }

    /// The placement with the first two compatible knobs, among those that may gain.
    pub(super) fn with_two(
        &self,
        ranked: &[KnobCandidate],
    ) -> Option<(String, Plan, CandidateEstimate)> {
        let is_good = |it: &&KnobCandidate| {
            it.may_gain || matches!(it.expected, CandidateEstimate::Verdict(Claim::Help, _))
        };
        let good: Vec<&KnobCandidate> = ranked.iter().take(COMBINED).filter(is_good).collect();
        let pairs = good
            .iter()
            .enumerate()
            .flat_map(|(at, first)| good.iter().skip(at + 1).map(move |second| (*first, *second)));
        pairs.into_iter().find_map(|(first, second)| {
            // the plan of a goal is made together with the placement; other changes are added to it
            let (goal, other) = match (&first.goal, &second.goal) {
                (_, None) => (first, second),
                (None, Some(_)) => (second, first),
                (Some(_), Some(_)) => return None,
            };
            let plan = merged(&self.with(goal)?, &other.plan.changes)?;
            let name = format!("{}+{}+{}", self.algorithm, first.name, second.name);
            Some((name, plan, first.expected.clone()))
        })
    }
}

/// A plan with more changes; `None` if one of them undoes another.
fn merged(plan: &Plan, more: &[Change]) -> Option<Plan> {
    let clashes = |a: &Change, b: &Change| {
        a.target == b.target || a.target.voids(&b.target) || b.target.voids(&a.target)
    };
    if plan.changes.iter().any(|a| more.iter().any(|b| clashes(a, b))) {
        return None;
    }
    let changes = ordered([plan.changes.clone(), more.to_vec()].concat());
    Some(Plan { changes, ..plan.clone() })
}
