//! What the cost model expects of any placement, chosen or not.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::subject::Subject;

use crate::place::model::Model;
use crate::place::parts::Parts;
use crate::plan::goal::Goal;
use crate::plan::placement::{Prepared, prepare};
use crate::plan::selection;

/// The cost of a goal's netdevs with each queue on the CPU that `on` returns, or where the queue is
/// if that is `None`; `None` if no CPU is allowed.
pub fn expected_cost(
    analysis: &Analysis<'_>,
    goal: &Goal,
    on: impl Fn(&Subject) -> Option<CpuId>,
) -> Option<Parts> {
    let (netdevs, _) = selection::netdevs(analysis.after(), goal);
    let pool = selection::pool(&analysis.after().topology, goal).0?;
    let Prepared { vectors, capacity, .. } = prepare(analysis, &netdevs, pool, goal);
    let at: Vec<Option<CpuId>> =
        vectors.iter().map(|vector| on(&vector.label).or(vector.present)).collect();
    Some(Model::new(&capacity, &vectors).placed(&at).cost())
}
