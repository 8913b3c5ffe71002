//! What an experiment records while it runs: trials, maps, predictions, failures.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::stats::Estimate;
use netsilo_model::derive::silo::Silos;
use netsilo_model::derive::stages::Stages;
use serde::{Deserialize, Serialize};

use crate::experiment::plan::{Experiment, Step};
use crate::traffic::{EndMachine, LoadResult};

/// One line of `records.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The result of a trial.
    Trial(Box<Trial>),
    /// The silos under a setting and a load, from a separate trial whose result does not count.
    Map(Box<SiloMap>),
    /// The model's predictions for the settings under a load, written before these are measured.
    Expected(Box<Expectation>),
    /// A trial without a result.
    Failed(Failed),
}

/// The result of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// Start time, in milliseconds since 1970.
    pub started_ms: u64,
    /// The measurements of each sender and its receiver.
    pub runs: Vec<LoadResult>,
    /// The machine under test, if it is neither sender nor receiver; otherwise it is the server of
    /// the runs.
    pub between: Option<EndMachine>,
}

/// The silos under a setting and a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiloMap {
    /// Name of the load.
    pub load: String,
    /// Name of the setting.
    pub setting: String,
    /// Where each queue is processed, and which processes read its data.
    pub silos: Silos,
    /// Where receive work spends its time, from another separate trial; `None` if not requested.
    #[serde(default)]
    pub sampled: Option<Sampled>,
}

/// The predictions of the receive path's model for the settings under a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// Name of the load.
    pub load: String,
    /// The predicted change for each setting except the reference.
    pub settings: Vec<ExpectedChange>,
    /// Why there is no prediction: there was too little data.
    pub why_not: Option<String>,
}

/// The change predicted for a setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpectedChange {
    /// Name of the setting.
    pub setting: String,
    /// Relative change of the load that fits, compared with the reference; `None` if the model
    /// knows none of the changed knobs.
    pub change: Option<Estimate>,
    /// Knobs of the setting that the model does not know.
    pub not_modeled: Vec<String>,
}

/// A step without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failed {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// The reason.
    pub why: String,
}

/// Time of receive work by stage, from a trial without a result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Samples by stage and CPU.
    pub stages: Stages,
    /// Packets that the netdevs under test received during the samples; `None` if one of them was
    /// not counted.
    pub received: Option<u64>,
    /// Time of all CPUs in the NET_RX and NET_TX softirqs during the samples, measured at entry and
    /// exit.
    pub softirq: Option<Duration>,
}

impl Experiment {
    /// The remaining steps after these records, in order. A step without a result is repeated.
    pub fn remaining_steps(&self, records: &[Record]) -> Vec<Step> {
        let done: BTreeSet<&Step> = records.iter().filter_map(Record::done).collect();
        self.steps().into_iter().filter(|step| !done.contains(step)).collect()
    }
}

impl Record {
    /// The step for which this record has a result.
    fn done(&self) -> Option<&Step> {
        match self {
            Self::Trial(trial) => Some(&trial.step),
            Self::Map(_) | Self::Expected(_) | Self::Failed(_) => None,
        }
    }
}

impl Trial {
    /// The machine under test; `None` if it was not measured.
    pub fn under_test(&self) -> Option<&EndMachine> {
        self.between.as_ref().or_else(|| self.runs.first().map(|run| &run.server.side))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::samples::experiment;

    #[test]
    fn a_step_with_a_result_is_not_repeated() {
        let experiment = experiment();
        let steps = experiment.steps();
        let done = |step: &Step| {
            let trial = Trial { step: step.clone(), started_ms: 0, runs: vec![], between: None };
            Record::Trial(Box::new(trial))
        };
        let failed = Record::Failed(Failed { step: steps[1].clone(), why: "it broke".into() });
        assert_eq!(
            experiment.remaining_steps(&[done(&steps[0]), failed, done(&steps[2])])[..2],
            [steps[1].clone(), steps[3].clone()]
        );
    }

    #[test]
    fn a_record_round_trips_as_one_line() {
        let step = Step { round: 1, load: "a".into(), setting: "none".into() };
        let failed = Record::Failed(Failed { step, why: "a\nb".into() });
        let line = serde_json::to_string(&failed).unwrap();
        assert_eq!(line, r#"{"failed":{"round":1,"load":"a","setting":"none","why":"a\nb"}}"#);
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), failed);
    }
}
