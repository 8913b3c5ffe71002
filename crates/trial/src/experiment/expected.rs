//! The model's predictions for the settings under a load, compared with the measurements.

use crate::stats::Estimate;
use serde::{Deserialize, Serialize};

use crate::comparison::Scale;
use crate::experiment::compared::UnderLoad;
use crate::experiment::measure::TrialMeasure;
use crate::experiment::records::{Expectation, ExpectedChange};

/// The predicted changes under one load, with the measured ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExpectedUnderLoad {
    /// Name of the load.
    pub load: String,
    /// Changes by setting, in the experiment's order.
    pub settings: Vec<ExpectedBesideMeasured>,
    /// Why nothing was predicted; `None` if something was.
    pub why_not: Option<String>,
}

/// The predicted change of the rate with a setting, and the measured change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExpectedBesideMeasured {
    /// Name of the setting.
    pub setting: String,
    /// Relative change of the load that fits, with its 90 % interval; `None` if the model knows
    /// none of the changed knobs.
    pub expected: Option<Estimate>,
    /// Knobs of the setting that the model does not know.
    pub not_modeled: Vec<String>,
    /// Relative change of the measured rate; `None` without a common round with the reference, or
    /// if times are invalid.
    pub measured: Option<f64>,
    /// Whether the interval of the predicted change contains the measured one.
    pub holds: Option<bool>,
}

impl ExpectedUnderLoad {
    /// The prediction for a setting.
    pub fn setting(&self, name: &str) -> Option<&ExpectedBesideMeasured> {
        self.settings.iter().find(|it| it.setting == name)
    }

    /// Compares the measurements with the predictions.
    pub(super) fn new(expectation: &Expectation, load: &UnderLoad) -> Self {
        let beside = |its: &ExpectedChange| {
            let measured = load.setting(&its.setting).and_then(|cell| {
                let rate = cell.measured(TrialMeasure::Rate)?;
                let against = rate.against.as_ref()?;
                let is_ratio = against.scale == Scale::Ratio && !rate.time_invalid;
                is_ratio.then_some(against.change)
            });
            ExpectedBesideMeasured {
                setting: its.setting.clone(),
                expected: its.change,
                not_modeled: its.not_modeled.clone(),
                measured,
                holds: its.change.zip(measured).map(|(expected, it)| expected.contains(it)),
            }
        };
        Self {
            load: load.load.clone(),
            settings: expectation.settings.iter().map(beside).collect(),
            why_not: expectation.why_not.clone(),
        }
    }
}
