//! Makes the plan of a goal: netdevs and CPUs first, then interrupts, then what depends on them.

use std::iter;

use netsilo_model::change::{Change, ordered};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::rates::Rates;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_predict::live::forecast::AS_IT_IS;
use netsilo_predict::live::judge::Judge;

use crate::place::AlgorithmName;
use crate::plan::choice::{Proposed, choose};
use crate::plan::contents::{Plan, Refusal};
use crate::plan::goal::Goal;
use crate::plan::matching_outcome::{MatchingOutcome, settable};
use crate::plan::placement::Basis;
use crate::plan::placement_cost::Detail;
use crate::plan::places::present_places;
use crate::plan::{arfs, by_value, flow_rules, placement, selection};

/// Plans the changes that reach a goal. Where the goal leaves the placement to netsilo, and
/// something is nearly full, the placement is chosen by its forecast.
///
/// Load comes from the whole observation; settings come from its later snapshot. The weights of
/// the cost model are those of the analysis.
pub fn plan(analysis: &Analysis<'_>, goal: &Goal) -> Plan {
    plan_in_detail(analysis, goal, Detail::Full, None)
}

/// The same with so much detail, by this judge of the analysis, if there is one.
pub(crate) fn plan_in_detail(
    analysis: &Analysis<'_>,
    goal: &Goal,
    detail: Detail,
    judge: Option<&Judge<'_>>,
) -> Plan {
    let plan = proposed(analysis, goal, Basis::Algorithms, detail);
    // RPS and RFS take work along: what is placed with them is judged once they are in effect.
    let steers = goal.rps.is_some() || goal.rfs.is_some() || goal.arfs.is_some();
    if goal.algorithm != AlgorithmName::Auto || !goal.irqs || steers {
        return plan;
    }
    let plan = choose(analysis, judge, plan, || others(analysis, goal));
    let chosen = plan.choice.as_ref().map(|choice| choice.chosen.proposer.as_str());
    match chosen.filter(|chosen| *chosen != AlgorithmName::Auto.as_str()) {
        Some(other) if detail != Detail::WithoutCosts => {
            Plan { choice: plan.choice.clone(), ..proposed_by(analysis, goal, other, detail) }
        }
        _ => plan,
    }
}

/// The plans of the machine as it is and of all algorithms but the default; `None` if something is
/// where the goal does not allow it.
fn others(analysis: &Analysis<'_>, goal: &Goal) -> Option<Vec<Proposed>> {
    let by = |proposer: &'static str| Proposed {
        proposer,
        plan: proposed_by(analysis, goal, proposer, Detail::WithoutCosts),
    };
    let as_it_is = by(AS_IT_IS);
    if as_it_is.plan.placements.iter().any(|it| it.moves) {
        return None;
    }
    let algorithms = AlgorithmName::ALL.iter().filter(|it| **it != AlgorithmName::Auto);
    Some(iter::once(as_it_is).chain(algorithms.map(|it| by(it.as_str()))).collect())
}

/// The plan of a proposer: of an algorithm, or of the machine as it is.
fn proposed_by(analysis: &Analysis<'_>, goal: &Goal, proposer: &str, detail: Detail) -> Plan {
    match AlgorithmName::ALL.iter().find(|it| it.as_str() == proposer) {
        Some(algorithm) => {
            let goal = Goal { algorithm: *algorithm, ..goal.clone() };
            proposed(analysis, &goal, Basis::Algorithms, detail)
        }
        None => proposed(analysis, goal, Basis::Present, detail),
    }
}

/// The plan with the placement of one proposer.
fn proposed(analysis: &Analysis<'_>, goal: &Goal, basis: Basis<'_>, detail: Detail) -> Plan {
    let after = analysis.after();
    let (netdevs, found) = selection::netdevs(after, goal);
    let (pool, allowed) = selection::pool(&after.topology, goal);
    let defaults = by_value::defaults(after, goal);
    let (places, placed) = placement::place(analysis, &netdevs, pool, goal, basis, detail);
    let advised = arfs::advise(analysis, &netdevs, goal, &placed.placements);
    let plan = found
        .and(allowed)
        .and(defaults)
        .and(placed)
        .and(by_value::xps(after, &netdevs, &places, goal))
        .and(by_value::rps(after, &netdevs, goal))
        .and(by_value::rfs(after, &netdevs, goal))
        .and(arfs::arfs(after, &netdevs, goal))
        .and(flow_rules::steer(&netdevs, goal))
        .and(advised);
    Plan { changes: ordered(plan.changes), even_if_owned: goal.even_if_owned, ..plan }
}

/// Plans the state that a search measured as the best one, for a goal that only limits netdevs and
/// CPUs; plans by the model if that state cannot be reached, with the reason.
pub fn plan_as_measured(
    analysis: &Analysis<'_>,
    goal: &Goal,
    matching: &MatchingOutcome<'_>,
) -> Plan {
    measured(analysis, goal, matching)
        .unwrap_or_else(|why| plan(analysis, goal).without_outcome(&matching.basis.outcome, &why))
}

/// The plan of a measured state; an error if it is not exactly that state.
fn measured(
    analysis: &Analysis<'_>,
    goal: &Goal,
    matching: &MatchingOutcome<'_>,
) -> Result<Plan, String> {
    let after = analysis.after();
    let (netdevs, found) = selection::netdevs(after, goal);
    let (pool, allowed) = selection::pool(&after.topology, goal);
    let pool = pool.ok_or("no cpu is allowed")?;
    matching.check_present(analysis, &pool)?;
    let knobs = matching.knobs(after, &settable(after, goal), &pool)?;
    let cpus = Some(pool.clone());
    let basis = Basis::Outcome(matching);
    let (places, placed) = placement::place(analysis, &netdevs, cpus, goal, basis, Detail::Full);
    let plan = found.and(allowed).and(placed);
    matching.check_places(analysis, &pool, &places, &plan.changes)?;
    let plan = Plan {
        changes: ordered([plan.changes, knobs].concat()),
        even_if_owned: goal.even_if_owned,
        measured: Some(matching.basis.clone()),
        ..plan
    };
    if let [Refusal { subject, reason, .. }, ..] = plan.refused_on(after).as_slice() {
        return Err(format!("{subject}: {reason}"));
    }
    Ok(plan)
}

/// Plans XPS alone, for the present placement of the interrupts.
pub(crate) fn plan_xps(rates: &Rates, after: &Snapshot, goal: &Goal) -> Vec<Change> {
    let (netdevs, _) = selection::netdevs(after, goal);
    by_value::xps(after, &netdevs, &present_places(rates, after), goal).changes
}
