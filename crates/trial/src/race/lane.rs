//! What is known about one candidate, and its comparison with another one.

use std::collections::BTreeMap;

use crate::stats::sequential::{Look, Rules};
use crate::stats::{Estimate, signed_rank};

use crate::comparison::{Better, Scale};
use crate::race::record::Counts;
use crate::race::rules::RaceRules;
use crate::race::standing::Status;
use crate::workload::WorkloadMeasure;

/// The values of one candidate.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    /// The objective by round.
    pub(super) values: BTreeMap<u32, f64>,
    /// What was counted in the same windows.
    pub(super) counts: BTreeMap<u32, Counts>,
    pub(super) status: Status,
    /// Whether it broke a guard rail when the current state broke it too.
    pub(super) excused: bool,
    /// Number of windows without a value.
    pub(super) lost: usize,
}

impl Lane {
    pub(super) fn new() -> Self {
        Self {
            values: BTreeMap::new(),
            counts: BTreeMap::new(),
            status: Status::In,
            excused: false,
            lost: 0,
        }
    }

    pub(super) fn is_in(&self) -> bool {
        self.status == Status::In
    }

    /// How much worse this candidate is than another, in each round since this one that measured
    /// both.
    pub(super) fn losses(&self, than: &Self, since: u32, rules: &RaceRules) -> Vec<f64> {
        let values = self.values.range(since..);
        let both = values.filter_map(|(round, b)| Some((than.values.get(round)?, b)));
        both.map(|(a, b)| rules.loss(*a, *b)).collect()
    }
}

/// The losses of a count in each round since this one that counted both.
pub(super) fn losses_of_count(
    measure: WorkloadMeasure,
    (lane, than): (&Lane, &Lane),
    since: u32,
) -> Vec<f64> {
    let rules =
        RaceRules { scale: measure.scale(), better: measure.better(), ..RaceRules::default() };
    let of = |lane: &Lane, round| lane.counts.get(round)?.get(&measure).copied();
    let rounds = lane.counts.range(since..).map(|(round, _)| round);
    rounds.filter_map(|it| Some(rules.loss(of(than, it)?, of(lane, it)?))).collect()
}

/// Intervals at the numbers of rounds fixed beforehand.
#[derive(Debug, Clone)]
pub(super) struct Looks {
    pub(super) rules: Rules,
    at: Vec<usize>,
}

impl Looks {
    pub(super) fn new(rules: Rules) -> Self {
        Self { at: rules.looks(), rules }
    }

    /// The look that is due at exactly this many losses.
    pub(super) fn due(&self, losses: &[f64]) -> Option<Look> {
        self.at.contains(&losses.len()).then(|| self.rules.look(losses)).flatten()
    }

    /// The interval of a comparison that ends between two looks, for no reason that is in the
    /// losses. It has the error rate of all looks that were not due.
    pub(super) fn at_the_end(&self, losses: &[f64]) -> Option<Estimate> {
        let left = self.at.iter().filter(|pairs| **pairs > losses.len()).count();
        signed_rank::interval(losses, self.rules.error_rate * left as f64 / self.at.len() as f64)
    }

    /// The last look that was due.
    pub(super) fn last(&self, losses: &[f64]) -> Option<Look> {
        let pairs = *self.at.iter().rfind(|pairs| **pairs <= losses.len())?;
        self.rules.look(&losses[..pairs])
    }
}

/// The comparison of one candidate with the current state, by windows of its own.
#[derive(Debug, Clone)]
pub(super) struct Final {
    pub(super) candidate: usize,
    /// Number of rounds before it.
    pub(super) since: u32,
    pub(super) looks: Looks,
}

/// An interval of losses, converted to the change of the objective that is shown to people.
pub(super) fn as_change(loss: Estimate, rules: &RaceRules) -> Estimate {
    let signed = match rules.better {
        Better::Lower => loss,
        Better::Higher => Estimate { value: -loss.value, low: -loss.high, high: -loss.low },
    };
    match rules.scale {
        Scale::Ratio => signed.map(f64::exp_m1),
        Scale::Difference => signed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rounds_that_measured_both_are_compared() {
        let lane = |values: &[(u32, f64)]| Lane {
            values: values.iter().copied().collect(),
            ..Lane::new()
        };
        let (a, b) = (lane(&[(0, 1.0), (2, 1.0), (3, 1.0)]), lane(&[(1, 9.0), (2, 2.0), (3, 0.5)]));
        let losses = b.losses(&a, 0, &RaceRules::default());
        assert_eq!(losses, [2.0_f64.ln(), 0.5_f64.ln()]);
    }

    #[test]
    fn a_loss_of_a_rate_is_a_lower_rate() {
        let rules = RaceRules { better: Better::Higher, ..RaceRules::default() };
        let loss = Estimate { value: 0.1, low: 0.0, high: 0.2 };
        let change = as_change(loss, &rules);
        assert!(
            change.low < change.value && change.value < 0.0 && change.high == 0.0,
            "{change:?}"
        );
    }
}
