//! Recorded outcomes with their bundles: what the default chooses there, what the model expects.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use netsilo_decide::plan::{Goal, expected_cost, plan};
use netsilo_model::cost::assumed::Assumed;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::subject::Subject;
use netsilo_trial::stats::Estimate;

use crate::experiment::record::{LoadRecord, Recorded, Start, middle};
use crate::outcome::rank::tau;

/// Recorded outcomes with their bundles read.
pub(super) struct RecordedOutcomes {
    /// What was measured.
    pub(super) recorded: Recorded,
    observations: HashMap<String, Observation>,
}

/// How well the model orders what was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Order {
    /// Pairs of placements that measured unlike.
    pub(super) pairs: usize,
    /// Those that the model orders as measured.
    pub(super) right: usize,
    /// Kendall's tau-b of expected cost and what was measured, the mean over loads and starts.
    pub(super) tau: f64,
}

impl RecordedOutcomes {
    /// Reads the bundles in the folder of a record; a load that was never measured is left out.
    pub(super) fn new(folder: &Path, mut recorded: Recorded) -> Result<Self> {
        recorded.loads.retain(|load| load.complete_rounds() > 0);
        let mut observations = HashMap::new();
        for load in &recorded.loads {
            let name = &load.name;
            ensure!(!load.starts.is_empty(), "{folder:?}: {name} has no start");
            for Start { bundle, placement } in &load.starts {
                let known = load.settings.get(*placement).is_some_and(|it| it.is_placement());
                ensure!(known, "{folder:?}: {name}: {bundle} starts from no placement");
                if observations.contains_key(bundle) {
                    continue;
                }
                let file: PathBuf = folder.join(bundle);
                let opened = netsilo_sys::bundle::open(file.clone());
                let opened = opened.with_context(|| format!("cannot read {file:?}"))?;
                observations.insert(bundle.clone(), opened);
            }
        }
        Ok(Self { recorded, observations })
    }

    /// What was observed in a start.
    pub(super) fn observation(&self, start: &Start) -> &Observation {
        &self.observations[&start.bundle]
    }

    /// The placements that the default chooses with these assumptions, one for each start.
    pub(super) fn chosen(&self, load: &LoadRecord, assumed: Assumed) -> Result<Vec<usize>> {
        load.starts.iter().map(|start| self.chosen_from(load, start, assumed)).collect()
    }

    fn chosen_from(&self, load: &LoadRecord, start: &Start, assumed: Assumed) -> Result<usize> {
        let present = &load.settings[start.placement].cpus;
        let cpus = choice(&self.observations[&start.bundle], &load.netdevs, present, assumed);
        let known = load.settings.iter().position(|setting| setting.cpus == cpus);
        known.with_context(|| format!("from {}: {cpus:?} was not measured", start.bundle))
    }

    /// The regret of the default for each load with these assumptions, from its worst start.
    pub(super) fn regrets(&self, assumed: Assumed) -> Result<Vec<Estimate>> {
        let worst = |load: &LoadRecord| -> Result<Estimate> {
            let chosen = self.chosen(load, assumed)?.into_iter();
            let regrets = chosen.map(|chosen| load.regret(chosen));
            let worst = regrets.max_by(|a, b| a.value.total_cmp(&b.value));
            worst.with_context(|| format!("{} has no start", load.name))
        };
        self.recorded.loads.iter().map(worst).collect()
    }

    /// The count by which settings compare; `None`: by their rates.
    pub(super) fn counted(&self) -> Option<&'static str> {
        self.recorded.loads.iter().find_map(LoadRecord::counted)
    }

    /// How well the model orders the placements.
    pub(super) fn order(&self, assumed: Assumed) -> Order {
        let (mut right, mut pairs, mut taus) = (0, 0, Vec::new());
        for load in &self.recorded.loads {
            let placements: Vec<usize> = load.placements().collect();
            let scores: Vec<f64> = placements.iter().map(|it| load.score(*it)).collect();
            for start in &load.starts {
                let costs = self.costs(load, start, &placements, assumed);
                let both: Vec<(f64, f64)> =
                    scores.iter().copied().zip(costs.iter().map(|cost| -cost)).collect();
                taus.extend(tau(&both));
                for a in 0..both.len() {
                    for b in (0..a).filter(|b| scores[*b] != scores[a]) {
                        pairs += 1;
                        right += usize::from((scores[a] > scores[b]) == (costs[a] < costs[b]));
                    }
                }
            }
        }
        Order { pairs, right, tau: taus.iter().sum::<f64>() / taus.len() as f64 }
    }

    /// The cost that the model expects of each placement, in shares of a CPU: the median over the
    /// starts.
    pub(super) fn expected(&self, load: &LoadRecord, assumed: Assumed) -> Vec<(usize, f64)> {
        let placements: Vec<usize> = load.placements().collect();
        let by_start: Vec<Vec<f64>> =
            load.starts.iter().map(|it| self.costs(load, it, &placements, assumed)).collect();
        let of = |at: usize| middle(&by_start.iter().map(|costs| costs[at]).collect::<Vec<_>>());
        placements.iter().enumerate().map(|(at, placement)| (*placement, of(at) / 1e9)).collect()
    }

    /// The cost that the model expects of each of these placements, as seen from a start.
    fn costs(
        &self,
        load: &LoadRecord,
        start: &Start,
        placements: &[usize],
        assumed: Assumed,
    ) -> Vec<f64> {
        let costs = Costs { assumed, ..Costs::default() };
        let analysis = Analysis::new(&self.observations[&start.bundle], &costs);
        let expected = |placement: &usize| {
            let cpus = &load.settings[*placement].cpus;
            let on = |label: &Subject| {
                cpus.get(position(label, &load.netdevs, cpus.len())?)?.parse().ok().map(CpuId)
            };
            expected_cost(&analysis, &goal(&load.netdevs), on)
                .map_or(f64::NAN, |parts| parts.total())
        };
        placements.iter().map(expected).collect()
    }
}

fn goal(netdevs: &[String]) -> Goal {
    Goal { netdevs: netdevs.to_vec(), ..Goal::default() }
}

/// The position of an rx queue among those of all netdevs, each of which has the same number.
pub(super) fn position(label: &Subject, netdevs: &[String], queues: usize) -> Option<usize> {
    let Subject::Queue(netdev, queue) = label else { return None };
    let each = queues / netdevs.len().max(1);
    let first = netdevs.iter().position(|it| it == netdev)? * each;
    let queue = *queue as usize;
    (queue < each).then_some(first + queue)
}

/// The CPU of each queue that the default chooses.
pub(crate) fn choice(
    observation: &Observation,
    netdevs: &[String],
    present: &[String],
    assumed: Assumed,
) -> Vec<String> {
    let costs = Costs { assumed, ..Costs::default() };
    let plan = plan(&Analysis::new(observation, &costs), &goal(netdevs));
    // A queue that the plan does not name stays where it is.
    let mut cpus = present.to_vec();
    for placement in &plan.placements {
        let Some(at) = position(&placement.label, netdevs, present.len()) else { continue };
        cpus[at] = placement.cpus.to_string();
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_numbered_netdev_by_netdev() {
        let netdevs = ["eth0", "eth1"].map(str::to_owned);
        let at =
            |netdev: &str, queue| position(&Subject::Queue(netdev.to_owned(), queue), &netdevs, 4);
        assert_eq!((at("eth0", 1), at("eth1", 0)), (Some(1), Some(2)));
        assert_eq!((at("eth1", 2), at("eth2", 0)), (None, None));
        assert_eq!(position(&Subject::Machine, &netdevs, 4), None);
    }
}
