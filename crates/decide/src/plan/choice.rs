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
struct Proposed {
    rated: Rated,
    plan: Plan,
}

/// Who proposes a placement.
#[derive(Debug, Clone, Copy)]
pub(super) enum Proposer {
    /// Nothing moves that may stay.
    AsItIs,
    /// An algorithm.
    Algorithm(AlgorithmName),
}

impl Proposer {
    fn name(self) -> &'static str {
        match self {
            Self::AsItIs => AS_IT_IS,
            Self::Algorithm(name) => name.as_str(),
        }
    }

    /// The algorithms that are compared with the default.
    fn algorithms() -> impl Iterator<Item = Self> {
        let named = AlgorithmName::ALL.iter().filter(|it| **it != AlgorithmName::Auto);
        named.copied().map(Self::Algorithm)
    }
}

/// Chooses between the plan of least cost and those of other proposers, which `plan_of` makes. If
/// something must move, because it is where it may not be, the plan of least cost moves it.
pub(super) fn choose(
    analysis: &Analysis<'_>,
    least_cost: Plan,
    plan_of: impl Fn(Proposer) -> Plan,
) -> Plan {
    let Ok(work) = Work::new(analysis) else { return least_cost };
    let judge = Judge::new(work, 1.0);
    let fits = |plan: &Plan| {
        let proposal = Proposal::new("placement", analysis.after(), &plan.changes);
        judge.judge(&proposal).0.map(|expected| expected.fits.value)
    };
    let proposed = |proposer: Proposer, plan: Plan| {
        let rated = Rated { proposer: proposer.name().to_owned(), fits: fits(&plan)? };
        Some(Proposed { rated, plan })
    };
    let Some(least_cost_fits) = fits(&least_cost) else { return least_cost };
    let moves = least_cost.placements.iter().any(|it| it.moves);
    let more = if moves { MORE } else { MORE_TO_MOVE };
    if !is_near_full(least_cost_fits * (1.0 + more) / (1.0 + MORE_TO_MOVE)) {
        return least_cost;
    }
    let proposer = AlgorithmName::Auto.as_str().to_owned();
    let rated = Rated { proposer, fits: least_cost_fits };
    let as_it_is = plan_of(Proposer::AsItIs);
    if as_it_is.placements.iter().any(|it| it.moves) {
        return least_cost;
    }
    let mut all = vec![Proposed { rated, plan: least_cost }];
    let others = Proposer::algorithms().map(|proposer| (proposer, plan_of(proposer)));
    for (proposer, plan) in std::iter::once((Proposer::AsItIs, as_it_is)).chain(others) {
        if all.iter().all(|known| known.plan.changes != plan.changes) {
            all.extend(proposed(proposer, plan));
        }
    }
    let chosen = chosen(&all.iter().map(|it| &it.rated).collect::<Vec<_>>(), more);
    let Proposed { rated: chosen, plan } = all.swap_remove(chosen);
    let runner_up = all.into_iter().map(|it| it.rated).reduce(better);
    Plan { choice: Some(Choice { chosen, runner_up }), ..plan }
}

/// The number of the proposal to choose. The first one is of least cost; another one must be better
/// by `more`.
fn chosen(all: &[&Rated], more: f64) -> usize {
    let is_worth = |from: usize, to: usize| all[to].fits > all[from].fits * (1.0 + more);
    let present = all.iter().position(|it| it.proposer == AS_IT_IS);
    let base = present.filter(|present| is_worth(0, *present)).unwrap_or(0);
    let more =
        |best: usize, other: usize| if all[other].fits > all[best].fits { other } else { best };
    let best = (0..all.len()).reduce(more).unwrap_or(base);
    if is_worth(base, best) { best } else { base }
}

/// The one with which more load fits; the first one if that is equal.
fn better(a: Rated, b: Rated) -> Rated {
    if b.fits > a.fits { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_of(fits: &[(&str, f64)]) -> String {
        let all: Vec<Rated> = fits
            .iter()
            .map(|(proposer, fits)| Rated { proposer: (*proposer).to_owned(), fits: *fits })
            .collect();
        all[chosen(&all.iter().collect::<Vec<_>>(), MORE)].proposer.clone()
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
