//! The choice of a placement: the judge ([`netsilo_predict::live::judge`]) forecasts the plan of
//! each proposer.
//!
//! Where nothing gets full, every placement carries the load, and the one of least cost is the
//! plan. Where something does, another one is the plan if clearly more load fits with it.

use netsilo_model::derive::analysis::Analysis;
use netsilo_predict::live::claim::is_near_full;
use netsilo_predict::live::forecast::AS_IT_IS;
use netsilo_predict::live::judge::Judge;
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;

use crate::place::AlgorithmName;
use crate::plan::contents::{Choice, Plan, Rated};

/// How much more load must fit with another placement than with the one of least cost, as a share,
/// where that one moves something, too (`evidence/outcomes.md` shows the regret).
const MORE: f64 = 0.15;

/// The same where that one leaves everything in place: the next forecast differs a little, and what
/// was just placed should stay.
const MORE_TO_MOVE: f64 = 0.25;

/// The plan of a proposer.
pub(super) struct Proposed {
    /// The algorithm, or [`AS_IT_IS`].
    pub(super) proposer: &'static str,
    pub(super) plan: Plan,
}

/// Chooses between the plan of least cost and those of the other proposers, which are made only if
/// something is nearly full; there are none where the plan of least cost has to move something.
/// `judge` is that of the analysis; `None`: it is made here.
///
/// With the plan of least cost, it is nearly full sooner where that plan moves something: the next
/// forecast, which differs a little, would compare the others too.
pub(super) fn choose(
    analysis: &Analysis<'_>,
    judge: Option<&Judge<'_>>,
    least_cost: Plan,
    others: impl FnOnce() -> Option<Vec<Proposed>>,
) -> Plan {
    let own = || Some(Judge::new(Work::new(analysis).ok()?, 1.0));
    let own = judge.is_none().then(own).flatten();
    let judge = judge.or(own.as_ref());
    let Some(judge) = judge.filter(|it| it.work().check_costs().is_ok()) else { return least_cost };
    let fits =
        |plan: &Plan| judge.fits(&Proposal::new("placement", analysis.after(), &plan.changes));
    let moves = least_cost.placements.iter().any(|it| it.moves);
    let more = if moves { MORE } else { MORE_TO_MOVE };
    let is_full = |fits: &f64| is_near_full(fits * (1.0 + more) / (1.0 + MORE_TO_MOVE));
    let Some(least_cost_fits) = fits(&least_cost).filter(is_full) else { return least_cost };
    let Some(others) = others() else { return least_cost };
    let proposer = AlgorithmName::Auto.as_str().to_owned();
    let mut rated = vec![Rated { proposer, fits: least_cost_fits }];
    let mut plans = vec![least_cost];
    for Proposed { proposer, plan } in others {
        let is_new = plans.iter().all(|known| known.changes != plan.changes);
        if let Some(fits) = is_new.then(|| fits(&plan)).flatten() {
            rated.push(Rated { proposer: proposer.to_owned(), fits });
            plans.push(plan);
        }
    }
    let number = chosen(&rated, more);
    let (plan, chosen) = (plans.swap_remove(number), rated.swap_remove(number));
    let runner_up = best(&rated).map(|number| rated.swap_remove(number));
    Plan { choice: Some(Choice { chosen, runner_up }), ..plan }
}

/// The number of the proposal to choose. The first one is of least cost; another one must be better
/// by `more`.
fn chosen(all: &[Rated], more: f64) -> usize {
    let is_worth = |from: usize, to: usize| all[to].fits > all[from].fits * (1.0 + more);
    let present = all.iter().position(|it| it.proposer == AS_IT_IS);
    let base = present.filter(|present| is_worth(0, *present)).unwrap_or(0);
    best(all).filter(|best| is_worth(base, *best)).unwrap_or(base)
}

/// The number of the first one with which most load fits.
fn best(all: &[Rated]) -> Option<usize> {
    let fuller = |a: usize, b: usize| if all[b].fits > all[a].fits { b } else { a };
    (0..all.len()).reduce(fuller)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_of(fits: &[(&str, f64)]) -> String {
        let rated = |(proposer, fits): &(&str, f64)| Rated {
            proposer: (*proposer).to_owned(),
            fits: *fits,
        };
        let all: Vec<Rated> = fits.iter().map(rated).collect();
        all[chosen(&all, MORE)].proposer.clone()
    }

    #[test]
    fn least_cost_is_chosen_unless_clearly_more_fits_with_another_one() {
        let of = |as_it_is, spread| {
            chosen_of(&[("auto", 1.0), (AS_IT_IS, as_it_is), ("same-cpu", 0.9), ("spread", spread)])
        };
        assert_eq!(of(0.8, 1.05), "auto");
        assert_eq!(of(0.8, 1.3), "spread");
        assert_eq!(of(1.25, 1.3), AS_IT_IS, "too little more than without a write");
        assert_eq!(of(1.05, 1.3), "spread");
        assert_eq!(chosen_of(&[("auto", 1.0)]), "auto");
    }
}
