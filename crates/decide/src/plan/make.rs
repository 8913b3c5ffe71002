//! Makes the plan of a goal: netdevs and CPUs first, then interrupts, then what depends on them.

use netsilo_model::change::{Change, ordered};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::host::Snapshot;

use crate::plan::contents::Plan;
use crate::plan::goal::Goal;
use crate::plan::places::present_places;
use crate::plan::{arfs, by_value, flow_rules, placement, selection};

/// Plans the changes that reach a goal.
///
/// Load comes from the whole observation; settings come from its later snapshot. The weights of
/// the cost model are those of the analysis.
pub fn plan(analysis: &Analysis<'_>, goal: &Goal) -> Plan {
    let after = analysis.after();
    let mut plan = Plan::default();
    let netdevs = selection::netdevs(after, goal, &mut plan);
    let pool = selection::pool(&after.topology, goal, &mut plan);
    by_value::defaults(after, goal, &mut plan);
    let places = placement::place(analysis, &netdevs, pool, goal, &mut plan);
    by_value::xps(after, &netdevs, &places, goal, &mut plan);
    by_value::rps(after, &netdevs, goal, &mut plan);
    by_value::rfs(after, &netdevs, goal, &mut plan);
    arfs::arfs(after, &netdevs, goal, &mut plan);
    flow_rules::steer(&netdevs, goal, &mut plan);
    arfs::advise(analysis, &netdevs, goal, &mut plan);
    plan.changes = ordered(plan.changes);
    plan.even_if_owned = goal.even_if_owned;
    plan
}

/// Plans XPS alone, for the present placement of the interrupts.
pub(crate) fn plan_xps(after: &Snapshot, goal: &Goal) -> Vec<Change> {
    let mut plan = Plan::default();
    let netdevs = selection::netdevs(after, goal, &mut plan);
    by_value::xps(after, &netdevs, &present_places(after), goal, &mut plan);
    plan.changes
}
