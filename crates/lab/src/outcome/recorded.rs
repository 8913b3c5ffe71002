//! Measured outcomes as files: the rates of each placement, and bundles of the states from which
//! the default has to choose.

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
use netsilo_stats::median;
use serde::{Deserialize, Serialize};

/// The name of the file beside the bundles.
const FILE: &str = "outcomes.json";

/// What was measured on one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recorded {
    /// The machine, and how it was measured.
    pub(super) about: String,
    /// The netdev whose queues were placed.
    pub(super) netdev: String,
    /// The placements: the CPU of each rx queue, by queue.
    pub(super) placements: Vec<Vec<String>>,
    /// The loads.
    pub(super) loads: Vec<Load>,
}

/// What came of each placement under one load.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    /// Its name.
    pub(super) name: String,
    /// Transactions or bytes per second by placement and round.
    pub(super) rates: Vec<Vec<f64>>,
    /// States in which the default is asked, each several times.
    pub(super) starts: Vec<Start>,
}

/// A state in which the default is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    /// The placement at that moment, by its index.
    pub(super) placement: usize,
    /// The file name of a bundle of that moment.
    pub(super) bundle: String,
}

impl Load {
    /// The median rate of a placement.
    pub(super) fn rate(&self, placement: usize) -> f64 {
        middle(&self.rates[placement])
    }

    /// How much less a placement does than the best one.
    ///
    /// The best one is that of the odd rounds; the even rounds tell by how much. With one round
    /// (medians of others) it is both.
    pub(super) fn regret(&self, chosen: usize) -> f64 {
        let rounds = |placement: usize, first: usize| -> f64 {
            let all = &self.rates[placement];
            middle(&all.iter().copied().skip(first % all.len()).step_by(2).collect::<Vec<_>>())
        };
        let odd = |placement: &usize| rounds(*placement, 0);
        let best = (0..self.rates.len()).max_by(|a, b| odd(a).total_cmp(&odd(b)));
        best.map_or(0.0, |best| 1.0 - rounds(chosen, 1) / rounds(best, 1))
    }
}

fn middle(rates: &[f64]) -> f64 {
    median(rates).unwrap_or(f64::NAN)
}

impl Recorded {
    /// Writes the file beside the bundles.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("cannot write {path:?}"))
    }
}

/// Recorded outcomes with their bundles read.
pub(super) struct Outcomes {
    /// What was measured.
    pub(super) recorded: Recorded,
    observations: HashMap<String, Observation>,
}

impl Outcomes {
    /// Reads a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        let recorded: Recorded =
            serde_json::from_str(&text).with_context(|| format!("{path:?} is not as written"))?;
        let mut observations = HashMap::new();
        for load in &recorded.loads {
            let name = &load.name;
            ensure!(load.rates.len() == recorded.placements.len(), "{path:?}: {name}: rates");
            ensure!(!load.starts.is_empty(), "{path:?}: {name} has no start");
            ensure!(load.rates.iter().all(|rates| !rates.is_empty()), "{path:?}: {name}: no rate");
            for Start { bundle, .. } in &load.starts {
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

    /// The placements that the default chooses with these assumptions, one for each start.
    pub(super) fn chosen(&self, load: &Load, assumed: Assumed) -> Result<Vec<usize>> {
        load.starts.iter().map(|start| self.chosen_from(start, assumed)).collect()
    }

    /// Of all pairs of placements that measured unlike, how many the model orders as measured, and
    /// how many there are.
    pub(super) fn ordered(&self, assumed: Assumed) -> (usize, usize) {
        let costs = Costs { assumed, ..Costs::default() };
        let mut pairs = Vec::new();
        for load in &self.recorded.loads {
            for start in &load.starts {
                let analysis = Analysis::new(&self.observations[&start.bundle], &costs);
                let expected: Vec<f64> = (self.recorded.placements.iter())
                    .map(|placement| self.expected(&analysis, placement))
                    .collect();
                for a in 0..expected.len() {
                    for b in (0..a).filter(|b| load.rate(*b) != load.rate(a)) {
                        pairs.push((load.rate(a) > load.rate(b)) == (expected[a] < expected[b]));
                    }
                }
            }
        }
        (pairs.iter().filter(|right| **right).count(), pairs.len())
    }

    /// The cost that the model expects of a placement.
    fn expected(&self, analysis: &Analysis<'_>, placement: &[String]) -> f64 {
        let on = |label: &Subject| match label {
            Subject::Queue(_, queue) => placement.get(*queue as usize)?.parse().ok().map(CpuId),
            _ => None,
        };
        expected_cost(analysis, &goal(&self.recorded.netdev), on)
            .map_or(f64::NAN, |parts| parts.total())
    }

    fn chosen_from(&self, start: &Start, assumed: Assumed) -> Result<usize> {
        let Recorded { placements, netdev, .. } = &self.recorded;
        let present = &placements[start.placement];
        let cpus = choice(&self.observations[&start.bundle], netdev, present, assumed);
        let known = placements.iter().position(|placement| *placement == cpus);
        known.with_context(|| format!("from {}: {cpus:?} was not measured", start.bundle))
    }

    /// The regret of the default for each load with these assumptions, from its worst start.
    pub(super) fn regrets(&self, assumed: Assumed) -> Result<Vec<f64>> {
        let worst = |load: &Load| -> Result<f64> {
            let chosen = self.chosen(load, assumed)?;
            Ok(chosen.into_iter().map(|chosen| load.regret(chosen)).fold(0.0, f64::max))
        };
        self.recorded.loads.iter().map(worst).collect()
    }
}

fn goal(netdev: &str) -> Goal {
    Goal { netdevs: vec![netdev.to_owned()], ..Goal::default() }
}

/// The CPU of each queue that the default chooses.
pub(super) fn choice(
    observation: &Observation,
    netdev: &str,
    present: &[String],
    assumed: Assumed,
) -> Vec<String> {
    let costs = Costs { assumed, ..Costs::default() };
    let plan = plan(&Analysis::new(observation, &costs), &goal(netdev));
    // A queue that the plan does not name stays where it is.
    let mut cpus = present.to_vec();
    for placement in &plan.placements {
        let Subject::Queue(_, queue) = &placement.label else { continue };
        if let Some(cpu) = cpus.get_mut(*queue as usize) {
            *cpu = placement.cpus.to_string();
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_what_a_choice_loses_in_the_even_rounds() {
        let rates = vec![vec![200.0, 100.0, 220.0, 100.0], vec![100.0, 50.0, 90.0, 60.0]];
        let load = Load { name: String::new(), rates, starts: Vec::new() };
        assert_eq!(load.regret(0), 0.0);
        assert!((load.regret(1) - 0.45).abs() < 1e-9);
    }

    #[test]
    fn one_round_tells_both() {
        let rates = vec![vec![100.0], vec![80.0]];
        let load = Load { name: String::new(), rates, starts: Vec::new() };
        assert!((load.regret(1) - 0.2).abs() < 1e-9);
    }
}
