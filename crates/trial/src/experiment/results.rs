//! The results of an experiment: every load, the overall counts of verdicts, and the steps without
//! a result.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::experiment::compared::{CellResult, ERROR_RATE, UnderLoad, under};
use crate::experiment::expected::ExpectedUnderLoad;
use crate::experiment::measure::TrialMeasure;
use crate::experiment::plan::{Experiment, Step};
use crate::experiment::records::{Expectation, Failed, Record, SiloMap, Trial};
use crate::experiment::stage_costs::{EarlyDrop, StageCosts, early_drops};

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Results {
    /// Schema of this document: 1.
    pub schema: u32,
    /// Name of its definition (`matrix`).
    pub kind: String,
    /// The setting with which the others are compared.
    pub reference: String,
    /// Planned number of rounds.
    pub rounds: u32,
    /// Probability that each interval does not contain the true value.
    #[serde(rename = "doubt")]
    pub error_rate: f64,
    /// Why times get no verdict; `None` if times are valid.
    #[serde(rename = "times_invalid")]
    pub times_invalid: Option<String>,
    /// Verdicts on rates, and how many of them chance alone would give.
    pub rates: VerdictCounts,
    /// Verdicts on all other measures.
    pub others: VerdictCounts,
    /// Results by load, in the experiment's order.
    pub loads: Vec<UnderLoad>,
    /// The model's predictions under each load, in the same order. Loads without a prediction are
    /// left out.
    #[serde(default)]
    pub expected: Vec<ExpectedUnderLoad>,
    /// Time of receive work by stage, by load, then setting, in the experiment's order.
    pub stages: Vec<StageCosts>,
    /// Each load compared with the same load dropped early.
    pub early_drops: Vec<EarlyDrop>,
    /// Steps without a result, with the last reason.
    pub failed: Vec<Failed>,
    /// Steps that did not run because the experiment was interrupted.
    pub not_tried: Vec<Step>,
    /// Number of ignored records, because their setting, load or round is not in the experiment.
    #[serde(rename = "strangers")]
    pub unknown_records: usize,
}

/// Number of verdicts, and of wrong ones to expect by chance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VerdictCounts {
    /// Intervals that gave a verdict.
    pub made: usize,
    /// Intervals that exclude zero.
    pub differ: usize,
    /// Maximum number of intervals that are expected to exclude zero if no setting changed
    /// anything.
    pub by_chance: f64,
}

impl Results {
    /// Computes the results from records. If a step was repeated, the later record counts.
    pub fn from_records(experiment: &Experiment, records: &[Record]) -> Self {
        let steps: BTreeSet<Step> = experiment.steps().into_iter().collect();
        let mut trials: BTreeMap<&Step, &Trial> = BTreeMap::new();
        let mut failed: BTreeMap<&Step, &Failed> = BTreeMap::new();
        let mut expectations: BTreeMap<&str, &Expectation> = BTreeMap::new();
        let mut unknown_records = 0;
        for record in records {
            match record {
                Record::Trial(trial) if steps.contains(&trial.step) => {
                    trials.insert(&trial.step, trial);
                }
                Record::Failed(it) if steps.contains(&it.step) => {
                    failed.insert(&it.step, it);
                }
                Record::Map(map) if experiment.has(&map.load, &map.setting) => {}
                Record::Expected(it)
                    if experiment.loads.iter().any(|load| load.name == it.load) =>
                {
                    expectations.insert(&it.load, it);
                }
                _ => unknown_records += 1,
            }
        }
        failed.retain(|step, _| !trials.contains_key(step));
        let loads: Vec<UnderLoad> =
            experiment.loads.iter().map(|load| under(experiment, load, &trials)).collect();
        let expected = loads.iter().filter_map(|load| {
            Some(ExpectedUnderLoad::new(expectations.get(load.load.as_str())?, load))
        });
        let not_tried = experiment.steps().into_iter();
        let stages: Vec<StageCosts> =
            last_maps(experiment, records).filter_map(StageCosts::from_map).collect();
        Self {
            schema: 1,
            kind: experiment.kind.clone(),
            reference: experiment
                .settings
                .first()
                .map_or_else(String::new, |setting| setting.name.clone()),
            rounds: experiment.rounds,
            error_rate: ERROR_RATE,
            times_invalid: experiment.machine.times_invalid.clone(),
            rates: chance(&loads, |measure| measure == TrialMeasure::Rate),
            others: chance(&loads, |measure| measure != TrialMeasure::Rate),
            not_tried: not_tried
                .filter(|it| !trials.contains_key(it) && !failed.contains_key(it))
                .collect(),
            early_drops: early_drops(experiment, &loads, &stages),
            expected: expected.collect(),
            loads,
            stages,
            failed: failed.into_values().cloned().collect(),
            unknown_records,
        }
    }
}

impl Experiment {
    fn has(&self, load: &str, setting: &str) -> bool {
        self.loads.iter().any(|it| it.name == load)
            && self.settings.iter().any(|it| it.name == setting)
    }
}

/// The last map of each load and setting, in the experiment's order.
fn last_maps<'a>(
    experiment: &'a Experiment,
    records: &'a [Record],
) -> impl Iterator<Item = &'a SiloMap> {
    let last = |load: &str, setting: &str| {
        records.iter().rev().find_map(|record| match record {
            Record::Map(map) if map.load == load && map.setting == setting => Some(&**map),
            _ => None,
        })
    };
    let pairs = experiment
        .loads
        .iter()
        .flat_map(|load| experiment.settings.iter().map(move |it| (load, it)));
    pairs.filter_map(move |(load, setting)| last(&load.name, &setting.name))
}

fn chance(loads: &[UnderLoad], of: impl Fn(TrialMeasure) -> bool) -> VerdictCounts {
    let cells = loads.iter().flat_map(|load| &load.settings);
    let measured = cells.flat_map(|cell| &cell.measures).filter(|it| of(it.measure));
    let given: Vec<CellResult> = measured
        .filter_map(|it| Some(it.against.as_ref()?.verdict))
        .filter(|it| it.is_given())
        .collect();
    let differ = given.iter().filter(|verdict| verdict.differs()).count();
    VerdictCounts { made: given.len(), differ, by_chance: given.len() as f64 * ERROR_RATE }
}
